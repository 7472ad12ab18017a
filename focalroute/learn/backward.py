"""The networks' gradients, written out: each pass gives the logits and the function that pulls gradients back.

The pull takes dL/dlogits and gives dL/d of every parameter, under the net's own names. Everything works in the type of
its inputs: float32 to learn, float64 to be checked against finite differences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.observe import layout

__all__ = ["Floats", "Gradients", "Pull", "decider_pass", "fusion_pass"]

Floats: TypeAlias = NDArray[np.floating[Any]]
Gradients: TypeAlias = dict[str, Floats]
Pull: TypeAlias = Callable[[Floats], Gradients]

_MEMBER = layout.slices(layout.MEMBER)


def decider_pass(net: DeciderNet, context: Floats, endpoints: Floats, ids: NDArray[np.int64]) -> tuple[Floats, Pull]:
    """Logits (B, P) and their pull, of ``context`` (B, Dc), ``endpoints`` (B, P, De) and their rows ``ids`` (B, P).

    Each row of the batch may hold other endpoints, in any order: the heads share one network.
    """
    shared = context @ net.hidden_context + net.hidden_bias
    hidden = _dense(endpoints, net.hidden_endpoint)
    hidden += shared[:, None, :]
    hidden += (net.names @ net.hidden_name)[ids]
    np.maximum(hidden, 0, out=hidden)
    linear = endpoints @ net.skip_endpoint + (context @ net.skip_context + net.bias)[:, None]
    logits = hidden @ net.out + linear + (net.names @ net.skip_name)[ids]

    def pull(d: Floats) -> Gradients:
        d_hidden = d[..., None] * net.out
        d_hidden *= hidden > 0
        d_shared, d_row = d_hidden.sum(axis=1), d.sum(axis=1)
        by_name = _by_row(ids, d_hidden, len(net.names))
        by_name_linear = np.bincount(ids.ravel(), d.ravel(), len(net.names)).astype(d.dtype)
        names = by_name @ net.hidden_name.T + np.outer(by_name_linear, net.skip_name)
        return {
            "names": _but_unknown(names),
            "skip_context": d_row @ context,
            "skip_endpoint": d.ravel() @ _flat(endpoints),
            "skip_name": by_name_linear @ net.names,
            "bias": d.sum(keepdims=True).reshape(1),
            "hidden_context": context.T @ d_shared,
            "hidden_endpoint": _flat(endpoints).T @ _flat(d_hidden),
            "hidden_name": net.names.T @ by_name,
            "hidden_bias": d_shared.sum(axis=0),
            "out": d.ravel() @ _flat(hidden),
        }

    return logits, pull


def fusion_pass(net: FusionNet, members: Floats, candidates: Floats, ids: NDArray[np.int64]) -> tuple[Floats, Pull]:
    """Logits (B, K) and their pull, of ``members`` (B, K, m, Fm), ``candidates`` (B, K, Fc) and rows ``ids`` (B, m)."""
    present, vote = members[..., _MEMBER["present"]], members[..., _MEMBER["vote"]][..., 0]
    phi = _dense(members, net.phi_member)
    phi += present * (net.names @ net.phi_name + net.phi_bias)[ids][:, None]
    np.maximum(phi, 0, out=phi)
    pooled = phi.sum(axis=2)
    hidden = np.maximum(_dense(pooled, net.hidden_pool) + _dense(candidates, net.hidden_candidate) + net.hidden_bias, 0)
    linear = (members @ net.skip_member + vote * net.vote[ids][:, None]).sum(axis=2)
    logits = hidden @ net.out + linear + candidates @ net.skip_candidate

    def pull(d: Floats) -> Gradients:
        d_hidden = d[..., None] * net.out
        d_hidden *= hidden > 0
        d_phi = _dense(d_hidden, net.hidden_pool.T)[:, :, None, :] * (phi > 0)
        by_name = _by_row(ids, np.einsum("bkmp,bkm->bmp", d_phi, present[..., 0]), len(net.names))
        by_vote = np.bincount(ids.ravel(), np.einsum("bk,bkm->bm", d, vote).ravel(), len(net.names))
        return {
            "names": _but_unknown(by_name @ net.phi_name.T),
            "vote": _but_unknown(by_vote.astype(d.dtype)),
            "skip_member": d.ravel() @ _flat(members.sum(axis=2)),
            "skip_candidate": d.ravel() @ _flat(candidates),
            "phi_member": _flat(members).T @ _flat(d_phi),
            "phi_name": net.names.T @ by_name,
            "phi_bias": by_name.sum(axis=0),
            "hidden_pool": _flat(pooled).T @ _flat(d_hidden),
            "hidden_candidate": _flat(candidates).T @ _flat(d_hidden),
            "hidden_bias": _flat(d_hidden).sum(axis=0),
            "out": d.ravel() @ _flat(hidden),
        }

    return logits, pull


def _flat(x: Floats) -> Floats:
    return x.reshape(-1, x.shape[-1])


def _dense(x: Floats, weights: Floats) -> Floats:
    """``x @ weights`` over the last axis, as one matrix product."""
    product: Floats = (_flat(x) @ weights).reshape(*x.shape[:-1], weights.shape[1])
    return product


def _by_row(ids: NDArray[np.int64], values: Floats, rows: int) -> Floats:
    """``values`` (B, P, H) added up by ``ids`` (B, P): (rows, H). A matrix product, many times as fast as np.add.at."""
    member = (np.arange(rows)[:, None] == ids.ravel()).astype(values.dtype)
    total: Floats = member @ _flat(values)
    return total


def _but_unknown(table: Floats) -> Floats:
    """Row 0 stands for every name that is not known, and stays zero."""
    table[0] = 0
    return table
