"""The presets' network: one hidden layer of sigmoids, and heads that branch from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from focalroute.core.records import F32
from focalroute.learn.backward import Floats, Gradients, Pull


@dataclass(frozen=True, slots=True)
class Mlp:
    """z = sigmoid(x hidden + hidden_bias) out + out_bias; D inputs, H hidden units, O heads.

    Attributes:
        hidden: (D, H).
        hidden_bias: (H,).
        out: (H, O).
        out_bias: (O,).
    """

    hidden: F32
    hidden_bias: F32
    out: F32
    out_bias: F32

    @classmethod
    def initial(cls, rng: np.random.Generator, inputs: int, outputs: int, *, hidden: int = 32) -> Mlp:
        """A net whose heads are all 0: random hidden weights (Glorot & Bengio 2010), everything else zero."""
        weights = (rng.standard_normal((inputs, hidden)) * np.sqrt(2 / (inputs + hidden))).astype(np.float32)
        zeros = np.zeros(hidden, np.float32), np.zeros((hidden, outputs), np.float32), np.zeros(outputs, np.float32)
        return cls(weights, *zeros)


def mlp_parameters(net: Mlp) -> dict[str, F32]:
    """The arrays of a net by name, in the order of its fields."""
    return {field.name: getattr(net, field.name) for field in fields(net)}


def mlp_pass(net: Mlp, x: Floats) -> tuple[Floats, Pull]:
    """Heads (B, O) of inputs (B, D), and the function that pulls dL/dheads (B, O) back to the parameters."""
    z = x @ net.hidden
    z += net.hidden_bias
    hidden: Floats = 0.5 + 0.5 * np.tanh(0.5 * z)  # the sigmoid, without overflow

    def pull(d: Floats) -> Gradients:
        d_hidden = (d @ net.out.T) * hidden * (1 - hidden)
        return {
            "hidden": x.T @ d_hidden,
            "hidden_bias": d_hidden.sum(axis=0),
            "out": hidden.T @ d,
            "out_bias": d.sum(axis=0),
        }

    return hidden @ net.out + net.out_bias, pull
