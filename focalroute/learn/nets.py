"""The two networks, as frozen containers of float32 arrays with a batched numpy forward pass.

Letters as in `focalroute.core.records`, and: B rows of a batch, V known endpoint names, E the width of a name's
embedding,
H hidden units, P units of the member network. Row 0 of every table over names stands for a name not in it and stays
zero.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.observe import layout

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_MEMBER = layout.slices(layout.MEMBER)


@dataclass(frozen=True, slots=True)
class DeciderNet:
    """Scores every endpoint by one shared network, linear plus one hidden layer (Wide & Deep, Cheng et al. 2016).

    z_bi = s . [context_b, endpoint_bi, e_i] + bias + out . relu(W [context_b, endpoint_bi, e_i] + hidden_bias), where
    e_i is the embedding of endpoint i's name and s and W are kept in three parts each.

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
        """A net that scores everything 0: random hidden weights (He et al. 2015), everything else zero."""
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

    def forward(self, context: F32, endpoints: F32, ids: I64) -> F32:
        """Logits (B, N) of ``context`` (B, Dc), ``endpoints`` (B, N, De) and the endpoints' rows ``ids`` (N,)."""
        names = self.names[ids]
        shared = context @ self.hidden_context + self.hidden_bias
        hidden = _dense(endpoints, self.hidden_endpoint) + shared[:, None, :] + names @ self.hidden_name
        np.maximum(hidden, 0, out=hidden)
        linear = endpoints @ self.skip_endpoint + (context @ self.skip_context)[:, None] + names @ self.skip_name
        logits: F32 = hidden @ self.out + linear + self.bias
        return logits


@dataclass(frozen=True, slots=True)
class FusionNet:
    """Scores candidates by the members' evidence: linear plus a network over the *set* of members (Zaheer et al. 2017).

    With x_bkj the features of member j on candidate k, c_bk the candidate's own, e_j and a_j the embedding and the
    vote weight of the member's name:

        score_bk = sum_j (skip_member . x_bkj + a_j vote_bkj) + skip_candidate . c_bk
                   + out . relu(hidden_pool . sum_j phi_bkj + hidden_candidate . c_bk + hidden_bias)
        phi_bkj  = relu(phi_member . x_bkj + present_bkj (phi_name . e_j + phi_bias))

    A row of zeros (``present`` is 0) adds nothing, so it can pad a batch. There is no bias on the score: the softmax
    over candidates would not see it, as it does not see features that are equal for all candidates.

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
        """A net that scores everything 0: random hidden weights (He et al. 2015), everything else zero."""
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

    def forward(self, members: F32, candidates: F32, ids: I64) -> F32:
        """Logits (B, K) of ``members`` (B, K, m, Fm), ``candidates`` (B, K, Fc) and their rows ``ids`` (B, m)."""
        present, vote = members[..., _MEMBER["present"]], members[..., _MEMBER["vote"]]
        named = (self.names[ids] @ self.phi_name + self.phi_bias)[:, None]
        phi = _dense(members, self.phi_member) + present * named
        np.maximum(phi, 0, out=phi)
        hidden = phi.sum(axis=2) @ self.hidden_pool + candidates @ self.hidden_candidate + self.hidden_bias
        np.maximum(hidden, 0, out=hidden)
        linear = (members @ self.skip_member + vote[..., 0] * self.vote[ids][:, None]).sum(axis=2)
        logits: F32 = hidden @ self.out + linear + candidates @ self.skip_candidate
        return logits


#: Either of the two.
Net = TypeVar("Net", DeciderNet, FusionNet)


def parameters(net: DeciderNet | FusionNet) -> dict[str, F32]:
    """The arrays of a net by name, in the order of its fields."""
    return {field.name: getattr(net, field.name) for field in fields(net)}


def between(start: Net, end: Net, share: float) -> Net:
    """The net whose weights lie so far on the straight line from one net, 0, to another of the same sizes, 1."""
    old, new = parameters(start), parameters(end)
    return replace(end, **{name: old[name] + np.float32(share) * (new[name] - old[name]) for name in old})


def zeroed(weights: F32, rows: int | slice) -> F32:
    """A copy of the weights that takes no notice of the features in these rows."""
    changed = weights.copy()
    changed[rows] = 0
    return changed


def _dense(x: F32, weights: F32) -> F32:
    """``x @ weights`` over the last axis as one matrix product: numpy would otherwise make one small product a row."""
    product: F32 = (x.reshape(-1, x.shape[-1]) @ weights).reshape(*x.shape[:-1], weights.shape[1])
    return product


def _he(rng: np.random.Generator, shape: tuple[int, int]) -> F32:
    weights: F32 = (rng.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)
    return weights


def _zeros(*shape: int) -> F32:
    return np.zeros(shape, np.float32)
