"""The networks, as frozen containers of float32 arrays, with their forward passes and gradients in numpy.

Letters as in `focalroute.core.records`, and: B rows of a batch, V known endpoint names, E the width of a name's
embedding, H hidden units, P units of the member network. Row 0 of every table over names is for unknown names and stays
zero.

`decider_pass` and `fusion_pass` return the logits and a vector-Jacobian product (vjp), which takes dL/dlogits and
returns the gradient of L with respect to each parameter, by name. They work in the type of their inputs: float32 to
learn, float64 to be checked against finite differences. Most of the time goes to memory traffic of arrays with an entry
for each hidden unit, not to arithmetic, so the vjps build few of them: dL/dhidden is d_b out_h where unit h of row b is
on, and each of these two factors is multiplied into the other operand of each product.

The central critic estimates one value for both agents, from what is known before a step's action. Its state is
[context, mean over endpoints of their features, mean of the Fusion's member features, maximum of each candidate
feature, 1 at the Fusion step]. The Fusion's parts are zero at a Decider step, where the context has the posterior so
far. The state never contains the decision for which it is the baseline: that would cancel the Decider's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.core.records import F32, Evidence, Observation
from focalroute.observe import layout

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MEMBER = layout.slices(layout.MEMBER)
Floats: TypeAlias = NDArray[np.floating[Any]]
Gradients: TypeAlias = dict[str, Floats]
Vjp: TypeAlias = Callable[[Floats], Gradients]


@dataclass(frozen=True, slots=True)
class DeciderNet:
    """Scores every endpoint by one shared network, linear plus one hidden layer (Wide & Deep, Cheng et al. 2016).

    z_bi = s . [context_b, endpoint_bi, e_i] + bias + out . relu(W [context_b, endpoint_bi, e_i] + hidden_bias), where
    e_i is the embedding of endpoint i's name; s and W are stored in three parts each.

    Attributes:
        names: (V + 1, E) the embeddings.
        skip_context: (Dc,), and likewise ``skip_endpoint`` (De,), ``skip_name`` (E,): the linear part.
        bias: (1,).
        hidden_context: (Dc, H), and likewise ``hidden_endpoint`` (De, H), ``hidden_name`` (E, H), ``hidden_bias`` (H,).
        out: (H,).
    """

    names: F32
    skip_context: F32
    skip_endpoint: F32
    skip_name: F32
    bias: F32
    hidden_context: F32
    hidden_endpoint: F32
    hidden_name: F32
    hidden_bias: F32
    out: F32

    @classmethod
    def initial(
        cls, rng: np.random.Generator, *, vocabulary: int = 0, hidden: int = 32, embedding: int = 8
    ) -> DeciderNet:
        """Return a net that scores everything 0: random hidden weights (He et al. 2015), all others zero."""
        context, endpoint = layout.width(layout.CONTEXT), layout.width(layout.ENDPOINT)
        weights = _he(rng, (context + endpoint + embedding, hidden))
        return cls(
            names=_zeros(vocabulary + 1, embedding),
            skip_context=_zeros(context),
            skip_endpoint=_zeros(endpoint),
            skip_name=_zeros(embedding),
            bias=_zeros(1),
            hidden_context=weights[:context],
            hidden_endpoint=weights[context : context + endpoint],
            hidden_name=weights[context + endpoint :],
            hidden_bias=_zeros(hidden),
            out=_zeros(hidden),
        )


@dataclass(frozen=True, slots=True)
class FusionNet:
    """Scores candidates by the members' evidence: linear plus a network over the *set* of members (Zaheer et al. 2017).

    With x_bkj the features of member j on candidate k, c_bk the candidate's own, e_j and a_j the embedding and the
    vote weight of the member's name:

        score_bk = sum_j (skip_member . x_bkj + a_j vote_bkj) + skip_candidate . c_bk
                   + out . relu(hidden_pool . sum_j phi_bkj + hidden_candidate . c_bk + hidden_bias)
        phi_bkj  = relu(phi_member . x_bkj + present_bkj (phi_name . e_j + phi_bias))

    A row of zeros (``present`` is 0) adds nothing, so it can pad a batch. The score has no bias, as it would cancel in
    the softmax over candidates.

    Attributes:
        names: (V + 1, E) the embeddings e.
        vote: (V + 1,) the vote weights a.
        skip_member: (Fm,).
        skip_candidate: (Fc,).
        phi_member: (Fm, P), and likewise ``phi_name`` (E, P), ``phi_bias`` (P,).
        hidden_pool: (P, H), and likewise ``hidden_candidate`` (Fc, H), ``hidden_bias`` (H,).
        out: (H,).
    """

    names: F32
    vote: F32
    skip_member: F32
    skip_candidate: F32
    phi_member: F32
    phi_name: F32
    phi_bias: F32
    hidden_pool: F32
    hidden_candidate: F32
    hidden_bias: F32
    out: F32

    @classmethod
    def initial(
        cls, rng: np.random.Generator, *, vocabulary: int = 0, phi: int = 16, hidden: int = 16, embedding: int = 8
    ) -> FusionNet:
        """Return a net that scores everything 0: random hidden weights (He et al. 2015), all others zero."""
        member, candidate = layout.width(layout.MEMBER), layout.width(layout.CANDIDATE)
        first, second = _he(rng, (member + embedding, phi)), _he(rng, (phi + candidate, hidden))
        return cls(
            names=_zeros(vocabulary + 1, embedding),
            vote=_zeros(vocabulary + 1),
            skip_member=_zeros(member),
            skip_candidate=_zeros(candidate),
            phi_member=first[:member],
            phi_name=first[member:],
            phi_bias=_zeros(phi),
            hidden_pool=second[:phi],
            hidden_candidate=second[phi:],
            hidden_bias=_zeros(hidden),
            out=_zeros(hidden),
        )


_Arrays = TypeVar("_Arrays", bound="DataclassInstance")
#: Either of the policy's nets.
Net = TypeVar("Net", DeciderNet, FusionNet)


def parameters(net: DataclassInstance) -> dict[str, F32]:
    """Return the arrays of a net by name, in the order of its fields."""
    return {field.name: getattr(net, field.name) for field in fields(net)}


def restored(kind: type[_Arrays], arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> _Arrays:
    """Make a net of this kind from its arrays, whose names begin with the prefix; KeyError if one is missing."""
    return kind(**{field.name: arrays[prefix + field.name] for field in fields(kind)})


def between(start: Net, end: Net, share: float) -> Net:
    """Interpolate linearly between two nets of the same sizes; ``share`` 0 gives the start, 1 the end."""
    old, new = parameters(start), parameters(end)
    return replace(end, **{name: old[name] + np.float32(share) * (new[name] - old[name]) for name in old})


def sharpened(net: DeciderNet, factor: float) -> DeciderNet:
    """Multiply the Decider's logits by a factor above 1: each head's likelier decision becomes more certain."""
    linear = ("skip_context", "skip_endpoint", "skip_name", "bias", "out")
    return replace(net, **{name: getattr(net, name) * np.float32(factor) for name in linear})


def zeroed(weights: F32, rows: int | slice) -> F32:
    """Return a copy of the weights that ignores the features in these rows."""
    changed = weights.copy()
    changed[rows] = 0
    return changed


def _he(rng: np.random.Generator, shape: tuple[int, int]) -> F32:
    weights: F32 = (rng.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)
    return weights


def _zeros(*shape: int) -> F32:
    return np.zeros(shape, np.float32)


def decider_pass(net: DeciderNet, context: Floats, endpoints: Floats, ids: NDArray[np.int64]) -> tuple[Floats, Vjp]:
    """Return the logits (B, P) and their vjp, of ``context`` (B, Dc), ``endpoints`` (B, P, De) and ``ids`` (B, P).

    ``ids`` are rows of the tables over names. Each row of the batch may have other endpoints, in any order, as the
    heads share one network. If all have the same and only the logits are needed, ``ids`` may be (P,).
    """
    shared = context @ net.hidden_context + net.hidden_bias
    hidden = _dense(endpoints, net.hidden_endpoint)
    hidden += shared[:, None, :]
    hidden += (net.names @ net.hidden_name).take(ids, axis=0)
    np.maximum(hidden, 0, out=hidden)
    linear = _dense(endpoints, net.skip_endpoint) + (context @ net.skip_context + net.bias)[:, None]
    logits = _dense(hidden, net.out) + linear + (net.names @ net.skip_name)[ids]

    def vjp(d: Floats) -> Gradients:
        on = (hidden > 0).astype(d.dtype)
        d_shared, d_row = (d[:, None] @ on)[:, 0] * net.out, d.sum(axis=1)
        one_hot = _one_hot(ids, len(net.names), d.dtype) * d.ravel()
        by_name, by_name_linear = (one_hot @ _flat(on)) * net.out, one_hot.sum(axis=1)
        names = by_name @ net.hidden_name.T + np.outer(by_name_linear, net.skip_name)
        return {
            "names": _without_unknown(names),
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

    return logits, vjp


def fusion_pass(net: FusionNet, members: Floats, candidates: Floats, ids: NDArray[np.int64]) -> tuple[Floats, Vjp]:
    """Return the logits (B, K) and their vjp, of ``members`` (B, K, m, Fm), ``candidates`` (B, K, Fc), ``ids`` (B, m).

    ``ids`` are rows of the tables over names.
    """
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

    def vjp(d: Floats) -> Gradients:
        by_row = d.reshape(-1, 1)
        on = (_flat(hidden) > 0).astype(d.dtype)
        d_pooled = (by_row * (on @ (net.hidden_pool * net.out).T)).reshape(pooled.shape)
        d_phi = d_pooled[:, :, None] * (phi > 0).astype(d.dtype)
        one_hot = _one_hot(ids, len(net.names), d.dtype)
        by_name = one_hot @ _flat(np.einsum("bkmp,bkm->bmp", d_phi, present))
        by_vote = one_hot @ np.einsum("bk,bkm->bm", d, vote).ravel()
        return {
            "names": _without_unknown(by_name @ net.phi_name.T),
            "vote": _without_unknown(by_vote),
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

    return logits, vjp


def _flat(x: Floats) -> Floats:
    return x.reshape(-1, x.shape[-1])


def _dense(x: Floats, weights: Floats) -> Floats:
    """Return ``x @ weights`` over the last axis, as one matrix product."""
    return (_flat(x) @ weights).reshape(*x.shape[:-1], *weights.shape[1:])


def _one_hot(ids: NDArray[np.int64], rows: int, dtype: np.dtype[Any]) -> Floats:
    """Return the ids as columns, (rows, B P). ``one_hot @ values`` sums by id, much faster than np.add.at."""
    one_hot: Floats = (np.arange(rows)[:, None] == ids.ravel()).astype(dtype)
    return one_hot


def _without_unknown(table: Floats) -> Floats:
    """Set row 0 of a gradient to zero: the row for unknown names is never learned."""
    table[0] = 0
    return table


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
        """Return a critic that values everything 0: random hidden weights (Glorot & Bengio 2010), all others zero."""
        weights = (rng.standard_normal((STATE, hidden)) / np.sqrt(STATE)).astype(np.float32)
        return cls(weights, np.zeros(hidden, np.float32), np.zeros(hidden, np.float32), np.zeros(1, np.float32))


def critic_pass(net: CriticNet, states: Floats) -> tuple[Floats, Vjp]:
    """Return the values (B,) of ``states`` (B, Ds), and their vjp."""
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
    """Return the state (Ds,) before a decision."""
    state = np.zeros(STATE, np.float32)
    state[:_OBSERVED] = np.concatenate([observation.context, observation.endpoints.mean(axis=0)])
    return state


def fusion_state(last: Observation | None, evidence: Evidence) -> F32:
    """Return the state (Ds,) before the answer: the last decision's observation, and the final evidence."""
    state = np.zeros(STATE, np.float32) if last is None else decider_state(last)
    state[_OBSERVED : _OBSERVED + _MEMBERS] = evidence.members.mean(axis=(0, 1))
    state[_OBSERVED + _MEMBERS : -1] = evidence.candidates.max(axis=0)
    state[-1] = 1
    return state


def values(
    net: CriticNet, states: Floats, run: Callable[[CriticNet, Floats], tuple[Floats, Vjp]] = critic_pass
) -> NDArray[np.floating[Any]]:
    """Return the values (...,) of ``states`` (..., Ds); ``run`` is an engine's critic pass."""
    flat, _ = run(net, states.reshape(-1, states.shape[-1]))
    return flat.reshape(states.shape[:-1])
