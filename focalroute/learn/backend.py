"""Runs the networks while they learn, in numpy, or in torch with autograd for long runs and large pools.

The torch functions compute the same as `focalroute.learn.nets`, written independently and without derivatives, so that
each checks the other. This is the only module that imports torch, and only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError, needing
from focalroute.learn.nets import (
    CriticNet,
    DeciderNet,
    Floats,
    FusionNet,
    Gradients,
    Vjp,
    critic_pass,
    decider_pass,
    fusion_pass,
    parameters,
)
from focalroute.observe import layout

if TYPE_CHECKING:
    from torch import Tensor

BackendName: TypeAlias = Literal["numpy", "torch"]
_Ids: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Backend:
    """One engine's passes, each from numpy arrays to outputs and their vjp.

    Attributes:
        decider: as `focalroute.learn.nets.decider_pass`.
        fusion: as `focalroute.learn.nets.fusion_pass`.
        critic: as `focalroute.learn.nets.critic_pass`.
        name: of the engine and its device.
    """

    decider: Callable[[DeciderNet, Floats, Floats, _Ids], tuple[Floats, Vjp]]
    fusion: Callable[[FusionNet, Floats, Floats, _Ids], tuple[Floats, Vjp]]
    critic: Callable[[CriticNet, Floats], tuple[Floats, Vjp]]
    name: str = "numpy"


NUMPY = Backend(decider_pass, fusion_pass, critic_pass)


def open_backend(backend: BackendName = "numpy", device: str | None = None) -> Backend:
    """Return the passes of an engine. Both engines give the same numbers on the same batch, up to rounding.

    Args:
        backend: "numpy", or "torch" (extra ``train``).
        device: torch's name of a device ("cpu", "cuda"); None: the processor.

    Raises:
        ConfigError: there is no such backend, torch is not installed or has no such device here, or numpy is given
            a device other than the processor.
    """
    if backend == "numpy":
        if device not in (None, "cpu"):
            raise ConfigError(f"device: numpy computes on the processor, not on {device!r}; give backend='torch'")
        return NUMPY
    if backend != "torch":
        raise ConfigError(f"backend: must be 'numpy' or 'torch', not {backend!r}")

    engine = TorchBackend(device or "cpu")
    return Backend(engine.decider, engine.fusion, engine.critic, f"torch on {device or 'cpu'}")


_MEMBER = layout.slices(layout.MEMBER)


class TorchBackend:
    """The passes on one device; each copies its arrays there and the results back.

    They compute in the widest type of their inputs, as numpy's passes do.

    Args:
        device: torch's name of it: "cpu", "cuda", "cuda:1".

    Raises:
        ConfigError: torch is not installed, or has no such device here.
    """

    def __init__(self, device: str) -> None:
        with needing("backend: needs torch", "train"):
            import torch
        try:
            self._device = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:  # the latter if torch was built without support for it
            raise ConfigError(f"device: torch cannot use {device!r} here: {error}") from None

    def decider(
        self, net: DeciderNet, context: Floats, endpoints: Floats, ids: NDArray[np.int64]
    ) -> tuple[Floats, Vjp]:
        """As `focalroute.learn.nets.decider_pass`."""
        return self._run(_decider, parameters(net), (context, endpoints), ids)

    def fusion(self, net: FusionNet, members: Floats, candidates: Floats, ids: NDArray[np.int64]) -> tuple[Floats, Vjp]:
        """As `focalroute.learn.nets.fusion_pass`."""
        return self._run(_fusion, parameters(net), (members, candidates), ids)

    def critic(self, net: CriticNet, states: Floats) -> tuple[Floats, Vjp]:
        """As `focalroute.learn.nets.critic_pass`."""
        return self._run(_critic, parameters(net), (states,))

    def _run(
        self,
        forward: Callable[..., Tensor],
        arrays: Mapping[str, Floats],
        features: tuple[Floats, ...],
        *ids: NDArray[np.int64],
    ) -> tuple[Floats, Vjp]:
        import torch

        dtype = np.result_type(*arrays.values(), *features)

        def tensor(array: NDArray[Any], dtype: Any = dtype) -> Tensor:
            return torch.from_numpy(np.array(array, dtype, order="C")).to(self._device)

        weights = {name: tensor(array).requires_grad_() for name, array in arrays.items()}
        result = forward(weights, *map(tensor, features), *(tensor(rows, np.int64) for rows in ids))

        def vjp(d: Floats) -> Gradients:
            found = torch.autograd.grad(result, tuple(weights.values()), tensor(d), retain_graph=True)
            return {name: gradient.cpu().numpy() for name, gradient in zip(weights, found, strict=True)}

        return result.detach().cpu().numpy(), vjp


def _decider(net: Mapping[str, Tensor], context: Tensor, endpoints: Tensor, ids: Tensor) -> Tensor:
    from torch.nn.functional import embedding

    names = embedding(ids, net["names"], padding_idx=0)
    shared = context @ net["hidden_context"] + net["hidden_bias"]
    hidden = (shared[:, None] + endpoints @ net["hidden_endpoint"] + names @ net["hidden_name"]).relu()
    linear = (context @ net["skip_context"])[:, None] + endpoints @ net["skip_endpoint"] + names @ net["skip_name"]
    return hidden @ net["out"] + linear + net["bias"]


def _fusion(net: Mapping[str, Tensor], members: Tensor, candidates: Tensor, ids: Tensor) -> Tensor:
    from torch.nn.functional import embedding

    present, vote = members[..., _MEMBER["present"]], members[..., _MEMBER["vote"]]
    names = embedding(ids, net["names"], padding_idx=0)
    votes = embedding(ids, net["vote"][:, None], padding_idx=0)
    phi = (members @ net["phi_member"] + present * (names @ net["phi_name"] + net["phi_bias"])[:, None]).relu()
    hidden = (phi.sum(2) @ net["hidden_pool"] + candidates @ net["hidden_candidate"] + net["hidden_bias"]).relu()
    linear = members @ net["skip_member"] + (vote * votes[:, None]).squeeze(-1)
    return hidden @ net["out"] + linear.sum(2) + candidates @ net["skip_candidate"]


def _critic(net: Mapping[str, Tensor], states: Tensor) -> Tensor:
    return (states @ net["hidden"] + net["hidden_bias"]).tanh() @ net["out"] + net["bias"]
