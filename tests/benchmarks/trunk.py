"""The ablation's other Decider: one hidden layer over all endpoints with a head for each, not one shared scorer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from focalroute.core.records import I64
from focalroute.learn.nets import DeciderNet, Floats, Gradients, Vjp
from focalroute.observe import layout

__all__ = ["branching", "trunk_pass"]

_HIDDEN = 64  # units


def branching(net: DeciderNet, endpoints: int, rng: np.random.Generator) -> DeciderNet:
    """Make a net for `trunk_pass`: its hidden units see every endpoint at once, and each endpoint has its own head.

    The linear part stays as it is (lookahead writes the cost weight into it), but each head gets its own bias.
    """
    context, columns = layout.width(layout.CONTEXT), endpoints * layout.width(layout.ENDPOINT)
    weights = rng.standard_normal((context + columns, _HIDDEN)) * np.sqrt(2 / (context + columns))
    return replace(
        net,
        bias=np.zeros(endpoints, np.float32),
        hidden_context=weights[:context].astype(np.float32),
        hidden_endpoint=weights[context:].astype(np.float32),
        hidden_name=np.zeros((net.names.shape[1], _HIDDEN), np.float32),
        hidden_bias=np.zeros(_HIDDEN, np.float32),
        out=np.zeros((_HIDDEN, endpoints), np.float32),
    )


def trunk_pass(net: DeciderNet, context: Floats, endpoints: Floats, _: I64) -> tuple[Floats, Vjp]:
    """Return logits (B, N) of a `branching` net and their vjp; ``endpoints`` (B, N, De) are in the pool's order."""
    flat = endpoints.reshape(len(endpoints), -1)
    hidden = np.maximum(context @ net.hidden_context + flat @ net.hidden_endpoint + net.hidden_bias, 0)
    linear = endpoints @ net.skip_endpoint + (context @ net.skip_context)[:, None] + net.bias

    def vjp(d: Floats) -> Gradients:
        d_hidden = (d @ net.out.T) * (hidden > 0)
        return {
            "names": np.zeros_like(net.names),
            "skip_context": d.sum(axis=1) @ context,
            "skip_endpoint": d.ravel() @ endpoints.reshape(-1, endpoints.shape[-1]),
            "skip_name": np.zeros_like(net.skip_name),
            "bias": d.sum(axis=0),
            "hidden_context": context.T @ d_hidden,
            "hidden_endpoint": flat.T @ d_hidden,
            "hidden_name": np.zeros_like(net.hidden_name),
            "hidden_bias": d_hidden.sum(axis=0),
            "out": hidden.T @ d,
        }

    return hidden @ net.out + linear, vjp
