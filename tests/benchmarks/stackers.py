"""Two classical ways to stack probabilities, their penalties chosen by cross-validation: what Fusion is held to.

Both read the log-probabilities of all members, x in R^(N K), centred over the choices and scaled to variance 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegressionCV

__all__ = ["Task", "multinomial", "nested"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_FOLDS = 5
_INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_BIAS_PENALTIES = (0.1, 1.0, 10.0)
_MATRIX_PENALTIES = (10.0, 100.0, 1e3, 1e4)


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


def nested(train: Sequence[Task], test: Sequence[Task]) -> list[I64]:
    """One model of all tasks: logits = sum_m w_m x_m + c_t + D_t x, with w shared and c_t, D_t shrunk to 0.

    The two penalties are chosen by the log-loss on the folds; the predictions of each task.
    """
    folds = [np.arange(len(task.label)) % _FOLDS for task in train]

    def loss(penalties: tuple[float, float]) -> float:
        total = 0.0
        for fold in range(2):  # two of the five folds tell them apart
            rest = [task.take(of != fold) for task, of in zip(train, folds, strict=True)]
            held = [task.take(of == fold) for task, of in zip(train, folds, strict=True)]
            for task, logits in zip(held, _logits(_fitted(rest, *penalties), held), strict=True):
                total -= float(_log_softmax(logits)[np.arange(len(logits)), task.label].sum())
        return total

    best = min(product(_BIAS_PENALTIES, _MATRIX_PENALTIES), key=loss)
    return [logits.argmax(axis=1) for logits in _logits(_fitted(train, *best), test)]


def _fitted(tasks: Sequence[Task], bias: float, matrix: float) -> list[F64]:
    """w (N,), then c_t (K,) and D_t (N K, K) of each task, by L-BFGS."""
    members = tasks[0].x.shape[1]
    shapes: list[tuple[int, ...]] = [(members,)]
    for task in tasks:
        k = task.x.shape[2]
        shapes += [(k,), (members * k, k)]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

    def parts(flat: F64) -> list[F64]:
        return [part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True)]

    def objective(flat: F64) -> tuple[float, F64]:
        found = parts(flat)
        total, gradients = 0.0, [np.zeros(members)]
        for n, (task, logits) in enumerate(zip(tasks, _logits(found, tasks), strict=True)):
            c, d = found[1 + 2 * n], found[2 + 2 * n]
            log_p = _log_softmax(logits)
            at = np.arange(len(logits))
            error = np.exp(log_p)
            error[at, task.label] -= 1
            total += -float(log_p[at, task.label].sum()) + (bias * float(c @ c) + matrix * float((d * d).sum())) / 2
            gradients[0] = gradients[0] + np.einsum("nmk,nk->m", task.x, error)
            flat_x = task.x.reshape(len(task.x), -1)
            gradients += [error.sum(axis=0) + bias * c, flat_x.T @ error + matrix * d]
        return total, np.concatenate([gradient.ravel() for gradient in gradients])

    start = np.zeros(sum(int(np.prod(shape)) for shape in shapes))
    return parts(minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 200}).x)


def _logits(found: Sequence[F64], tasks: Sequence[Task]) -> list[F64]:
    w = found[0]
    return [
        np.einsum("nmk,m->nk", task.x, w) + found[1 + 2 * n] + task.x.reshape(len(task.x), -1) @ found[2 + 2 * n]
        for n, task in enumerate(tasks)
    ]


def _log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: F64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found
