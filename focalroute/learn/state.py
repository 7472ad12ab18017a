"""What the learner leaves with a version (``learner.npz``) to go on from: the critic, Adam's moments, what was used.

Keys: ``critic.<array>``, ``<net>.steps``, ``<net>.first.<array>``, ``<net>.second.<array>``, and ``uses.ids`` with
``uses.counts``: in how many updates of this line of versions each episode was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.learn.adam import Moments
from focalroute.learn.backward import Floats
from focalroute.learn.critic import CriticNet, critic_parameters
from focalroute.learn.mappo import Learner
from focalroute.learn.nets import DeciderNet, FusionNet, parameters

_TABLES = ("names", "vote")

Arrays = Mapping[str, NDArray[Any]]


def pack(learner: Learner, used: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """The state as named arrays."""
    arrays: dict[str, NDArray[Any]] = {
        f"critic.{key}": value for key, value in critic_parameters(learner.critic).items()
    }
    for net, moments in learner.moments.items():
        arrays[f"{net}.steps"] = np.array(moments.steps)
        arrays |= {f"{net}.first.{key}": value for key, value in moments.first.items()}
        arrays |= {f"{net}.second.{key}": value for key, value in moments.second.items()}
    ids = np.array(list(used), np.str_) if used else np.zeros(0, "U1")
    return {**arrays, "uses.ids": ids, "uses.counts": np.array(list(used.values()), np.int64)}


def uses(arrays: Arrays) -> dict[str, int]:
    """By episode, in how many updates it was; none where that is not kept."""
    if "uses.ids" not in arrays or "uses.counts" not in arrays:
        return {}
    return dict(zip(arrays["uses.ids"].tolist(), arrays["uses.counts"].tolist(), strict=False))


def unpack(arrays: Arrays, decider: DeciderNet, fusion: FusionNet) -> Learner:
    """The learner of these nets with the state that was packed; what is new in their tables has no moments yet.

    Raises:
        PolicyError: the state is not one that `pack` left for such nets.
    """
    try:
        critic = CriticNet(**{field.name: arrays[f"critic.{field.name}"] for field in fields(CriticNet)})
        moments = {
            "decider": _moments(arrays, "decider", parameters(decider)),
            "fusion": _moments(arrays, "fusion", parameters(fusion)),
            "critic": _moments(arrays, "critic", critic_parameters(critic)),
        }
    except (KeyError, ValueError) as error:
        raise PolicyError(f"learner.npz: does not fit this version of focalroute: {error}") from None
    return Learner(decider, fusion, critic, moments)


def _moments(arrays: Arrays, net: str, shapes: Mapping[str, Floats]) -> Moments:
    first, second = (
        {key: _padded(arrays[f"{net}.{part}.{key}"], like, key) for key, like in shapes.items()}
        for part in ("first", "second")
    )
    return Moments(int(arrays[f"{net}.steps"]), first, second)


def _padded(array: NDArray[Any], like: Floats, key: str) -> NDArray[Any]:
    """The array with rows of zeros for names that are new; ValueError if it differs otherwise."""
    new = len(like) - len(array) if key in _TABLES else 0
    padded = np.concatenate([array, np.zeros((max(new, 0), *array.shape[1:]), array.dtype)])
    if padded.shape != like.shape:
        raise ValueError(f"{key} has the shape {array.shape}, expected {like.shape}")
    return padded
