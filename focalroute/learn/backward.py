"""The networks' gradients, written out: each pass gives the logits and the function that pulls gradients back.

The pull takes dL/dlogits and gives dL/d of every parameter, under the net's own names. Everything works in the type of
its inputs: float32 to learn, float64 to be checked against finite differences.

Time goes into passes over the hidden units, not into arithmetic. So the pulls build few arrays of that size: dL/dhidden
is d_b out_h where unit h of row b is on, whose two factors go onto what lies beside it in each product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from focalroute.learn.nets import DeciderNet, FusionNet
from focalroute.observe import layout

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
    hidden += (net.names @ net.hidden_name).take(ids, axis=0)
    np.maximum(hidden, 0, out=hidden)
    linear = _dense(endpoints, net.skip_endpoint) + (context @ net.skip_context + net.bias)[:, None]
    logits = _dense(hidden, net.out) + linear + (net.names @ net.skip_name)[ids]

    def pull(d: Floats) -> Gradients:
        on = (hidden > 0).astype(d.dtype)
        d_shared, d_row = (d[:, None] @ on)[:, 0] * net.out, d.sum(axis=1)
        member = _member(ids, len(net.names), d.dtype) * d.ravel()
        by_name, by_name_linear = (member @ _flat(on)) * net.out, member.sum(axis=1)
        names = by_name @ net.hidden_name.T + np.outer(by_name_linear, net.skip_name)
        return {
            "names": _but_unknown(names),
            "skip_context": d_row @ context,
            "skip_endpoint": d.ravel() @ _flat(endpoints),
            "skip_name": by_name_linear @ net.names,
            "bias": d.sum(keepdims=True).reshape(1),
            "hidden_context": context.T @ d_shared,
            "hidden_endpoint": ((_flat(endpoints) * d.reshape(-1, 1)).T @ _flat(on)) * net.out,
            "hidden_name": net.names.T @ by_name,
            "hidden_bias": d_shared.sum(axis=0),
            "out": d.ravel() @ _flat(hidden),
        }

    return logits, pull


def fusion_pass(net: FusionNet, members: Floats, candidates: Floats, ids: NDArray[np.int64]) -> tuple[Floats, Pull]:
    """Logits (B, K) and their pull, of ``members`` (B, K, m, Fm), ``candidates`` (B, K, Fc) and rows ``ids`` (B, m)."""
    present, vote = members[..., _MEMBER["present"].start], members[..., _MEMBER["vote"].start]
    together = np.einsum("bkmf->bkf", members)
    named = (net.names @ net.phi_name + net.phi_bias).take(ids, axis=0)
    phi = _dense(members, net.phi_member)
    phi += np.einsum("bkm,bmp->bkmp", present, named)
    np.maximum(phi, 0, out=phi)
    pooled = np.einsum("bkmp->bkp", phi)
    hidden = np.maximum(_dense(pooled, net.hidden_pool) + _dense(candidates, net.hidden_candidate) + net.hidden_bias, 0)
    linear = _dense(together, net.skip_member) + np.einsum("bkm,bm->bk", vote, net.vote[ids])
    logits = _dense(hidden, net.out) + linear + _dense(candidates, net.skip_candidate)

    def pull(d: Floats) -> Gradients:
        by_row = d.reshape(-1, 1)
        on = (_flat(hidden) > 0).astype(d.dtype)
        d_pooled = (by_row * (on @ (net.hidden_pool * net.out).T)).reshape(pooled.shape)
        d_phi = d_pooled[:, :, None] * (phi > 0).astype(d.dtype)
        member = _member(ids, len(net.names), d.dtype)
        by_name = member @ _flat(np.einsum("bkmp,bkm->bmp", d_phi, present))
        by_vote = member @ np.einsum("bk,bkm->bm", d, vote).ravel()
        return {
            "names": _but_unknown(by_name @ net.phi_name.T),
            "vote": _but_unknown(by_vote),
            "skip_member": d.ravel() @ _flat(together),
            "skip_candidate": d.ravel() @ _flat(candidates),
            "phi_member": _flat(members).T @ _flat(d_phi),
            "phi_name": net.names.T @ by_name,
            "phi_bias": by_name.sum(axis=0),
            "hidden_pool": ((by_row * _flat(pooled)).T @ on) * net.out,
            "hidden_candidate": ((by_row * _flat(candidates)).T @ on) * net.out,
            "hidden_bias": (d.ravel() @ on) * net.out,
            "out": d.ravel() @ _flat(hidden),
        }

    return logits, pull


def _flat(x: Floats) -> Floats:
    return x.reshape(-1, x.shape[-1])


def _dense(x: Floats, weights: Floats) -> Floats:
    """``x @ weights`` over the last axis, as one matrix product."""
    product: Floats = (_flat(x) @ weights).reshape(*x.shape[:-1], *weights.shape[1:])
    return product


def _member(ids: NDArray[np.int64], rows: int, dtype: np.dtype[Any]) -> Floats:
    """(rows, B P): 1 where an id is the row. ``member @ values`` adds values up by id, much faster than np.add.at."""
    member: Floats = (np.arange(rows)[:, None] == ids.ravel()).astype(dtype)
    return member


def _but_unknown(table: Floats) -> Floats:
    """Row 0 stands for every name that is not known, and stays zero."""
    table[0] = 0
    return table
