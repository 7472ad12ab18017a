"""The rewards of the two works this project builds on, as they define them: RL-Focal's Eq. 6, and DER's.

Qualities are in [0, 1]; u = 2 quality - 1 in [-1, 1] is the scale of feedback.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


def eq6(u: ArrayLike, asked: ArrayLike, pool: int, *, alpha: float) -> F64:
    """RL-Focal's reward of the Decider (arXiv 2502.04492, Eq. 6): 1 where right, -1 - alpha |E| / N where wrong.

    Size is paid for by wrong answers only. Of a graded u, negative counts as wrong, and the penalty is taken off u. The
    Fusion's reward is u itself, which is alpha = 0.

    Args:
        u: the answers' rewards in [-1, 1], of any shape.
        asked: |E|, of the same shape.
        pool: N, at least 1.
        alpha: the penalty.

    >>> eq6([1, -1], [12, 6], 12, alpha=0.1).tolist()
    [1.0, -1.05]
    """
    reward = np.asarray(u, dtype=np.float64)
    return np.where(reward < 0, reward - alpha * np.asarray(asked) / pool, reward)


def der_reward(
    quality: ArrayLike,
    before: ArrayLike | None,
    cost: ArrayLike,
    *,
    alpha: float,
    beta: float,
    level: bool = True,
) -> F64:
    """DER's reward of asking one more expert (arXiv 2412.07448), its threshold bonus aside.

    At t = 0: P(y_0) - alpha C(M). Later: P(y_t) + beta (P(y_t) - P(y_(t-1))) - alpha C(M). Paid in full at every step,
    P rewards long routes: two steps at quality 1 earn more than one. With ``level`` False later steps earn the gain
    alone, so that with beta = 1 a route's rewards add up to P(its last answer) - alpha (its cost).

    Args:
        quality: P of the answer after this step, in [0, 1], of any shape.
        before: P of the answer before it, of the same shape; None at t = 0.
        cost: C of the expert asked, of the same shape.
        alpha: the price of cost.
        beta: the weight of the gain.
        level: whether P itself is paid at later steps too, as published.

    >>> float(der_reward(1.0, None, 0.5, alpha=0.1, beta=1.0)), float(der_reward(1.0, 0.0, 0.5, alpha=0.1, beta=1.0))
    (0.95, 1.95)
    """
    p: NDArray[Any] = np.asarray(quality, dtype=np.float64)
    paid = alpha * np.asarray(cost, dtype=np.float64)
    if before is None:
        return p - paid
    gain = beta * (p - np.asarray(before, dtype=np.float64))
    return (p if level else 0.0) + gain - paid


def der_bonus(quality: ArrayLike, exhausted: ArrayLike, *, threshold: float, bonus: float) -> F64:
    """What ends a route in DER: ``bonus`` where P >= p_0, minus it where T_max steps were not enough, else 0.

    It is settled once, at STOP or after step T_max, so that no route earns it twice.

    Args:
        quality: P of the last answer, of any shape.
        exhausted: whether T_max experts were asked, of the same shape.
        threshold: p_0.
        bonus: the size of the bonus.

    >>> der_bonus([1, 0, 0], [False, False, True], threshold=0.5, bonus=1.0).tolist()
    [1.0, 0.0, -1.0]
    """
    missed = np.where(np.asarray(exhausted), -bonus, 0.0)
    return np.where(np.asarray(quality, dtype=np.float64) >= threshold, bonus, missed)
