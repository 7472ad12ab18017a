"""A Fusion set by hand, of linear weights: where the training of the shipped policy starts (see `shipped`).

The hidden weights are random and their output weights zero: they do nothing yet, but have gradients.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from focalroute.learn.nets import FusionNet
from focalroute.observe import layout

_SEED = 20261121


def cold_fusion() -> FusionNet:
    """Naive Bayes over votes, that is plurality while no accuracy is known, and a quarter of the mass given.

    Where probabilities are known well, their log-likelihood ratio takes the place of the vote's weight.

    A feature that is equal for all candidates, such as a member's accuracy, has no effect here: it is in ``evidence``.
    """
    weights = np.zeros(layout.width(layout.MEMBER), np.float32)
    for name, weight in (("evidence", 1.0), ("probability", 0.25), ("calibrated", 1.0)):
        weights[layout.slices(layout.MEMBER)[name]] = weight
    return replace(FusionNet.initial(np.random.default_rng(_SEED)), skip_member=weights)
