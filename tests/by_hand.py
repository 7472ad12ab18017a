"""A Decider of linear weights set by hand, for tests that must know what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from focalroute.core.records import F32
from focalroute.learn.nets import DeciderNet
from focalroute.observe import layout

__all__ = ["linear_decider"]


def linear_decider() -> DeciderNet:
    """Asks about three, rather the accurate, the cheap and the unknown; later two more where replies disagree.

    z = 1.3 (ln 5.75 - ln N), that is 2.6 to 3.4 of 6 to 64 endpoints, less below; from round 2 on another 0.35 less,
    and 3 less for a margin of 1 between the first two candidates: nearly nobody.
    """
    return replace(
        DeciderNet.initial(np.random.default_rng(20261121)),
        skip_context=_weights(layout.CONTEXT, {"log_pool": -1.3 * 4, "first": 0.35, "margin": -3.0}),
        skip_endpoint=_weights(layout.ENDPOINT, {"accuracy": 8.0, "seen": -0.3, "price": -0.8}),
        bias=np.array([1.3 * np.log(5.75) - 0.35], np.float32),
    )


def _weights(names: layout.Layout, values: Mapping[str, float]) -> F32:
    """A vector over a layout's columns, zero but for these slices."""
    weights = np.zeros(layout.width(names), np.float32)
    for name, value in values.items():
        weights[layout.slices(names)[name]] = value
    return weights
