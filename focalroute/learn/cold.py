"""Nets set by hand, of linear weights: where the training of the shipped policy starts (see `shipped`).

The hidden weights are random and their output weights zero: they do nothing yet, but have gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from focalroute.learn.nets import F32, DeciderNet, FusionNet
from focalroute.observe import layout

__all__ = ["cold_decider", "cold_fusion"]

_SEED = 20261121


def cold_decider() -> DeciderNet:
    """Asks about three, rather the accurate, the cheap and the unknown; later two more where replies disagree.

    z = 1.3 (ln 5.75 - ln N), that is 2.6 to 3.4 of 6 to 64 endpoints, less below; from round 2 on another 0.35 less,
    and 3 less for a margin of 1 between the first two candidates: nearly nobody.
    """
    return dataclasses.replace(
        DeciderNet.initial(np.random.default_rng(_SEED)),
        skip_context=_weights(layout.CONTEXT, {"log_pool": -1.3 * 4, "first": 0.35, "margin": -3.0}),
        skip_endpoint=_weights(layout.ENDPOINT, {"accuracy": 8.0, "seen": -0.3, "price": -0.8}),
        bias=np.array([1.3 * np.log(5.75) - 0.35], np.float32),
    )


def cold_fusion() -> FusionNet:
    """Naive Bayes over votes, that is plurality while no accuracy is known, and a quarter of the mass given.

    Where probabilities are known well, their log-likelihood ratio takes the place of the vote's weight.

    A feature that is equal for all candidates, such as a member's accuracy, has no effect here: it is in ``evidence``.
    """
    return dataclasses.replace(
        FusionNet.initial(np.random.default_rng(_SEED)),
        skip_member=_weights(layout.MEMBER, {"evidence": 1.0, "probability": 0.25, "calibrated": 1.0}),
    )


def _weights(names: layout.Layout, values: Mapping[str, float]) -> F32:
    """A vector over a layout's columns, zero but for these slices."""
    weights = np.zeros(layout.width(names), np.float32)
    for name, value in values.items():
        weights[layout.slices(names)[name]] = value
    return weights
