"""The central critic: one value for the team, of what is known before a step's action.

Its state is [context, mean over endpoints of their features, mean of the Fusion's member features, largest of each of
its candidate features, 1 at the Fusion step]. The Fusion's parts are zero at a Decider step, where what the Fusion made
of the replies so far is in the context. It never holds the decision it is the baseline of: that would cancel the
Decider's gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, Evidence, Observation
from focalroute.learn.nets import Floats, Gradients, Vjp
from focalroute.observe import layout

_OBSERVED = layout.width(layout.CONTEXT) + layout.width(layout.ENDPOINT)
_MEMBERS = layout.width(layout.MEMBER)
#: Width of a state, Ds.
STATE = _OBSERVED + _MEMBERS + layout.width(layout.CANDIDATE) + 1


@dataclass(frozen=True, slots=True)
class CriticNet:
    """V(s) = out . tanh(hidden s + hidden_bias) + bias.

    Attributes:
        hidden: (Ds, H).
        hidden_bias: (H,).
        out: (H,).
        bias: (1,).
    """

    hidden: F32
    hidden_bias: F32
    out: F32
    bias: F32

    @classmethod
    def initial(cls, rng: np.random.Generator, *, hidden: int = 32) -> CriticNet:
        """A critic that values everything 0: random hidden weights (Glorot & Bengio 2010), everything else zero."""
        weights = (rng.standard_normal((STATE, hidden)) / np.sqrt(STATE)).astype(np.float32)
        return cls(weights, np.zeros(hidden, np.float32), np.zeros(hidden, np.float32), np.zeros(1, np.float32))


def critic_pass(net: CriticNet, states: Floats) -> tuple[Floats, Vjp]:
    """Values (B,) of ``states`` (B, Ds), and the function that pulls dL/dvalues (B,) back to the parameters."""
    hidden: Floats = np.tanh(states @ net.hidden + net.hidden_bias)

    def vjp(d: Floats) -> Gradients:
        d_hidden = d[:, None] * net.out * (1 - hidden * hidden)
        return {
            "hidden": states.T @ d_hidden,
            "hidden_bias": d_hidden.sum(axis=0),
            "out": d @ hidden,
            "bias": d.sum(keepdims=True),
        }

    return hidden @ net.out + net.bias, vjp


def decider_state(observation: Observation) -> F32:
    """The state (Ds,) before a decision."""
    state = np.zeros(STATE, np.float32)
    state[:_OBSERVED] = np.concatenate([observation.context, observation.endpoints.mean(axis=0)])
    return state


def fusion_state(last: Observation | None, evidence: Evidence) -> F32:
    """The state (Ds,) before the answer: the last decision's observation, and all that was replied."""
    state = np.zeros(STATE, np.float32) if last is None else decider_state(last)
    state[_OBSERVED : _OBSERVED + _MEMBERS] = evidence.members.mean(axis=(0, 1))
    state[_OBSERVED + _MEMBERS : -1] = evidence.candidates.max(axis=0)
    state[-1] = 1
    return state


def values(
    net: CriticNet, states: Floats, run: Callable[[CriticNet, Floats], tuple[Floats, Vjp]] = critic_pass
) -> NDArray[np.floating[Any]]:
    """V of ``states`` (..., Ds), of their leading shape; ``run`` is the pass of the engine that computes it."""
    flat, _ = run(net, states.reshape(-1, states.shape[-1]))
    return flat.reshape(states.shape[:-1])
