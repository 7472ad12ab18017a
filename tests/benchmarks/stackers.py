"""Two classical ways to stack probabilities, their penalties chosen by cross-validation: what Fusion is held to.

Both read the log-probabilities of all members, x in R^(N K), centred over the choices and scaled to variance 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegressionCV

__all__ = ["Penalties", "Task", "multinomial", "nested"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_FOLDS = 5
_INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_BIAS_PENALTIES = (0.1, 1.0, 10.0)
_MATRIX_PENALTIES = (3.0, 10.0, 30.0, 100.0)
_WEIGHT_PENALTIES = (1.0, 10.0, 100.0)
_NONE = np.inf  # the penalty of what a model does not have


@dataclass(frozen=True, slots=True)
class Task:
    """One task's labelled queries.

    Attributes:
        x: (n, N, K).
        label: (n,).
    """

    x: F64
    label: I64

    def take(self, rows: NDArray[np.bool_]) -> Task:
        """Only these queries."""
        return Task(self.x[rows], self.label[rows])


def multinomial(train: Task, test: Task) -> I64:
    """Multinomial logistic regression of the label on x, fitted on one task; the predictions (n,).

    Labels seen once or twice cannot be in every fold: the folds are then not stratified, which scikit-learn warns of.
    """
    model = LogisticRegressionCV(
        Cs=_INVERSE_PENALTIES,
        cv=_FOLDS,
        scoring="neg_log_loss",
        max_iter=200,
        l1_ratios=(0.0,),
        use_legacy_attributes=False,
    )
    model.fit(train.x.reshape(len(train.x), -1), train.label)
    found: I64 = model.predict(test.x.reshape(len(test.x), -1))
    return found


def nested(train: Sequence[Task], test: Sequence[Task], *, weights: bool = False) -> tuple[list[I64], Penalties]:
    """One model of all tasks: logits = sum_m (w_m + o_tm) x_m + c_t + D_t x, with w shared and the others shrunk to 0.

    The penalties are chosen by the log-loss on the folds.

    Args:
        train: labelled queries of every task.
        test: those to predict.
        weights: with the weights' offsets o_t instead of the free matrix D_t.

    Returns:
        The predictions of each task, and the penalties chosen.
    """
    folds = [np.arange(len(task.label)) % _FOLDS for task in train]

    def loss(penalties: Penalties) -> float:
        total = 0.0
        for fold in range(2):  # two of the five folds tell them apart
            rest = [task.take(of != fold) for task, of in zip(train, folds, strict=True)]
            held = [task.take(of == fold) for task, of in zip(train, folds, strict=True)]
            for task, logits in zip(held, _logits(_fitted(rest, penalties), held), strict=True):
                total -= float(_log_softmax(logits)[np.arange(len(logits)), task.label].sum())
        return total

    matrices, offsets = ((_NONE,), _WEIGHT_PENALTIES) if weights else (_MATRIX_PENALTIES, (_NONE,))
    best = min((Penalties(*some) for some in product(_BIAS_PENALTIES, matrices, offsets)), key=loss)
    return [logits.argmax(axis=1) for logits in _logits(_fitted(train, best), test)], best


class Penalties(NamedTuple):
    """Of the sums of squares of c_t, D_t and o_t."""

    bias: float
    matrix: float
    weights: float


@dataclass(frozen=True, slots=True)
class _Model:
    """w (N,), and of each task c_t (K,), D_t (N K, K) and o_t (N,)."""

    shared: F64
    biases: list[F64]
    matrices: list[F64]
    offsets: list[F64]

    @classmethod
    def of(cls, flat: F64, tasks: Sequence[Task]) -> _Model:
        """From all numbers in a row."""
        members, at = tasks[0].x.shape[1], 0

        def take(*shape: int) -> F64:
            nonlocal at
            at += int(np.prod(shape))
            return flat[at - int(np.prod(shape)) : at].reshape(shape)

        sizes = [task.x.shape[2] for task in tasks]
        return cls(
            take(members),
            [take(k) for k in sizes],
            [take(members * k, k) for k in sizes],
            [take(members) for _ in sizes],
        )

    def flat(self) -> F64:
        """All numbers in a row."""
        parts = [self.shared, *self.biases, *self.matrices, *self.offsets]
        return np.concatenate([part.ravel() for part in parts])


def _fitted(tasks: Sequence[Task], penalties: Penalties) -> _Model:
    """By L-BFGS."""

    def objective(flat: F64) -> tuple[float, F64]:
        model = _Model.of(flat, tasks)
        total, gradient = 0.0, _Model(np.zeros_like(model.shared), [], [], [])
        for n, (task, logits) in enumerate(zip(tasks, _logits(model, tasks), strict=True)):
            log_p = _log_softmax(logits)
            at = np.arange(len(logits))
            error = np.exp(log_p)
            error[at, task.label] -= 1
            c, d, o = model.biases[n], model.matrices[n], model.offsets[n]
            held = zip(penalties, (c, d, o), strict=True)
            total += sum(p * float((part * part).sum()) / 2 for p, part in held if np.isfinite(p))
            total -= float(log_p[at, task.label].sum())
            by_member = np.einsum("nmk,nk->m", task.x, error)
            gradient.shared[:] += by_member
            gradient.biases.append(error.sum(axis=0) + penalties.bias * c)
            gradient.matrices.append(_penalised(task.x.reshape(len(task.x), -1).T @ error, d, penalties.matrix))
            gradient.offsets.append(_penalised(by_member, o, penalties.weights))
        return total, gradient.flat()

    members = tasks[0].x.shape[1]
    size = members + sum(k + members * k * k + members for k in (task.x.shape[2] for task in tasks))
    found = minimize(objective, np.zeros(size), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    return _Model.of(found.x, tasks)


def _penalised(gradient: F64, part: F64, penalty: float) -> F64:
    """0 where the penalty is infinite: the part then stays at 0, where it began."""
    return gradient + penalty * part if np.isfinite(penalty) else np.zeros_like(part)


def _logits(model: _Model, tasks: Sequence[Task]) -> list[F64]:
    return [
        np.einsum("nmk,m->nk", task.x, model.shared + model.offsets[n])
        + model.biases[n]
        + task.x.reshape(len(task.x), -1) @ model.matrices[n]
        for n, task in enumerate(tasks)
    ]


def _log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: F64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found
