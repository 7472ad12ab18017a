"""Adam (Kingma & Ba 2015, arXiv 1412.6980) with clipping by the gradient's global norm (Pascanu et al. 2013)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.nets import Floats, Gradients, parameters

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Net = TypeVar("_Net", bound="DataclassInstance")

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True)
class Moments:
    """Adam's state between updates.

    Attributes:
        steps: steps taken.
        first: parameter -> running mean of its gradient.
        second: parameter -> running mean of the gradient's square.
    """

    steps: int
    first: Mapping[str, Floats]
    second: Mapping[str, Floats]

    @classmethod
    def zero(cls, parameters: Mapping[str, Floats]) -> Moments:
        """Return the state before the first step."""
        first, second = ({key: np.zeros_like(value) for key, value in parameters.items()} for _ in range(2))
        return cls(0, first, second)


class Adam:
    """Minimises, one gradient at a time; the given parameters are not modified.

    All parameters are kept in one vector, since at these sizes an operation costs more than its arithmetic.

    Args:
        parameters: where to start.
        moments: the state after an earlier update, of the same names and shapes; None: there was none.
        learning_rate: eta of the next step; may be changed between steps.
        max_norm: longer gradients are scaled down to this length.

    Attributes:
        learning_rate: as given.
    """

    def __init__(
        self, parameters: Mapping[str, Floats], moments: Moments | None = None, *, learning_rate: float, max_norm: float
    ) -> None:
        moments = moments or Moments.zero(parameters)
        self._shapes = {key: value.shape for key, value in parameters.items()}
        self._ends = np.cumsum([value.size for value in parameters.values()]).tolist()
        self._at = self._vector(parameters)
        self._first, self._second = self._vector(moments.first), self._vector(moments.second)
        self._steps = moments.steps
        self.learning_rate = learning_rate
        self._max_norm = max_norm

    @property
    def parameters(self) -> Gradients:
        """The current parameters by name; later steps do not change arrays already returned."""
        return self._split(self._at)

    @property
    def moments(self) -> Moments:
        """Return the state to resume from."""
        return Moments(self._steps, self._split(self._first), self._split(self._second))

    def step(self, gradients: Mapping[str, Floats]) -> None:
        """Take one step against the gradients."""
        gradient = self._vector(gradients)
        norm = float(np.sqrt(gradient @ gradient))
        if norm > self._max_norm:
            gradient *= self._max_norm / norm
        self._steps += 1
        self._first = _BETA_1 * self._first + (1 - _BETA_1) * gradient
        self._second = _BETA_2 * self._second + (1 - _BETA_2) * gradient * gradient
        rate = float(self.learning_rate) / (1 - _BETA_1**self._steps)
        scale = np.sqrt(self._second / (1 - _BETA_2**self._steps)) + _EPSILON
        self._at = self._at - rate * self._first / scale

    def _vector(self, values: Mapping[str, Floats]) -> Floats:
        return np.concatenate([values[key].ravel() for key in self._shapes])

    def _split(self, vector: Floats) -> Gradients:
        starts = (0, *self._ends)
        return {
            key: vector[start:end].reshape(shape)
            for (key, shape), start, end in zip(self._shapes.items(), starts, self._ends, strict=False)
        }


def cosine_decay(step: int, steps: int, *, least: float = 0.05) -> float:
    """Return the factor of a learning rate that falls from 1 to ``least`` along a cosine."""
    return float(least + (1 - least) / 2 * (1 + np.cos(np.pi * step / steps)))


class MinibatchSettings(Protocol):
    """How `fit_minibatches` goes through its rows."""

    @property
    def epochs(self) -> int:
        """Passes over the rows."""

    @property
    def minibatch(self) -> int:
        """Approximate number of rows of a gradient step."""

    @property
    def max_norm(self) -> float:
        """Longest gradient; see `Adam`."""


def fit_minibatches(
    net: _Net,
    moments: Moments,
    gradients: Callable[[_Net, NDArray[np.intp]], Gradients | None],
    count: int,
    settings: MinibatchSettings,
    learning_rate: float,
    rng: np.random.Generator,
) -> tuple[_Net, Moments]:
    """Take Adam steps over shuffled minibatches of ``count`` rows, epoch by epoch.

    Args:
        net: where to start, a dataclass of its parameters.
        moments: Adam's state at the start.
        gradients: returns the gradients of a net on some rows, given by their indices; None ends the learning.
        rng: shuffles the rows.

    Returns:
        The last net, and Adam's state.
    """
    adam = Adam(parameters(net), moments, learning_rate=learning_rate, max_norm=settings.max_norm)
    parts = max(1, round(count / settings.minibatch))
    for _ in range(settings.epochs):
        for rows in np.array_split(rng.permutation(count), parts):
            found = gradients(net, rows)
            if found is None:
                return net, adam.moments
            adam.step(found)
            net = replace(net, **adam.parameters)
    return net, adam.moments
