"""Turns the Fusion's posteriors into confidences by Platt scaling, learned as labels come.

    confidence = sigmoid(alpha + beta logit q),    q the posterior of the answer

alpha and beta maximise the likelihood of the latest outcomes under a prior around (0, beta_0) that is worth `PRIOR`
outcomes (Platt 1999). The curve is monotone in q, so it never changes which answer is given. Members' errors are
correlated, so votes say less than they seem to: beta_0 is `SHARED_ERRORS`, but 1 for a policy that was trained on the
pool's own record.
"""

from __future__ import annotations

import math

import numpy as np

#: Outcomes that the prior weighs as much as.
PRIOR = 30

#: Share of the evidence that counts while it is unknown how correlated the members' errors are.
SHARED_ERRORS = 0.7

_CURVATURE = PRIOR / 4 * np.diag([1.0, 4.0])  # the log-likelihood's for `PRIOR` outcomes: q about 1/2, logits about 2
_IDENTITY = (0.0, 1.0)
_PRESUMED = (0.0, SHARED_ERRORS)
_FARTHEST = 8.0  # bound of a logit


class Recalibration:
    """The latest outcomes of answers, and the curve through them. Not thread-safe by itself; `Observer` guards it.

    Args:
        size: outcomes kept.

    Attributes:
        curve: the present alpha and beta.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._places: dict[str, int] = {}
        self._ids: list[str] = []
        self._next = 0
        self._rows = np.zeros((size, 2))  # 1, logit of q
        self._right = np.zeros(size)
        self._prior = self.curve = _PRESUMED

    def trust(self) -> None:
        """Make the identity the prior: the policy was trained on the pool's own record."""
        self._prior = _IDENTITY
        if not self._ids:
            self.curve = _IDENTITY

    def learn(self, answer_id: str, posterior: float, right: float) -> None:
        """Learn how right an answer with this posterior was, in [0, 1], replacing what was known of the answer."""
        place = self._places.get(answer_id)
        if place is None:
            place, self._next = self._next, (self._next + 1) % self._size
            if place < len(self._ids):
                del self._places[self._ids[place]]
                self._ids[place] = answer_id
            else:
                self._ids.append(answer_id)
            self._places[answer_id] = place
        self._rows[place] = 1, _logit(posterior)
        self._right[place] = right
        self._step()

    def _step(self) -> None:
        """Do one step of Newton's method from the last curve, which is enough after one more outcome."""
        known = len(self._ids)
        rows, curve = self._rows[:known], np.array(self.curve)
        p = 1 / (1 + np.exp(-rows @ curve))
        gradient = (self._right[:known] - p) @ rows - _CURVATURE @ (curve - self._prior)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows + _CURVATURE
        (a, b), (_, c) = hessian.tolist()
        d, e = gradient.tolist()
        scale = a * c - b * b  # Cramer's rule: `np.linalg.solve` takes most of a step's time for these two unknowns
        changes = (c * d - b * e) / scale, (a * e - b * d) / scale
        bounded = [min(max(change, -0.5), 0.5) for change in changes]
        alpha, beta = self.curve
        self.curve = alpha + bounded[0], max(beta + bounded[1], 0.0)


def recalibrated(posterior: float, curve: tuple[float, float]) -> float:
    """Return the confidence in an answer with this posterior.

    >>> recalibrated(0.9, (0.0, 1.0))
    0.9
    """
    if curve == _IDENTITY:
        return posterior
    alpha, beta = curve
    return 1 / (1 + math.exp(-alpha - beta * _logit(posterior)))


def _logit(p: float) -> float:
    least = 1 / (1 + math.exp(_FARTHEST))
    p = min(max(p, least), 1 - least)
    return math.log(p / (1 - p))
