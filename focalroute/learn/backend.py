"""Which engine runs the networks while they learn: numpy, or torch where it is installed. All else is the same code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError
from focalroute.learn.backward import Floats, Pull, decider_pass, fusion_pass
from focalroute.learn.critic import CriticNet, critic_pass
from focalroute.learn.nets import DeciderNet, FusionNet

BackendName: TypeAlias = Literal["numpy", "torch"]
_Ids: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Backend:
    """One engine's passes, each from numpy arrays to logits and the function that pulls gradients back.

    Attributes:
        decider: as `focalroute.learn.backward.decider_pass`.
        fusion: as `focalroute.learn.backward.fusion_pass`.
        critic: as `focalroute.learn.critic.critic_pass`.
        name: the engine's, and where it computes.
    """

    decider: Callable[[DeciderNet, Floats, Floats, _Ids], tuple[Floats, Pull]]
    fusion: Callable[[FusionNet, Floats, Floats, _Ids], tuple[Floats, Pull]]
    critic: Callable[[CriticNet, Floats], tuple[Floats, Pull]]
    name: str = "numpy"


NUMPY = Backend(decider_pass, fusion_pass, critic_pass)


def passes(backend: BackendName = "numpy", device: str | None = None) -> Backend:
    """The passes of an engine. On the same batch both give the same numbers, up to rounding.

    Args:
        backend: "numpy", or "torch" (extra ``train``).
        device: where torch computes, as it names it ("cpu", "cuda"); None: the processor.

    Raises:
        ConfigError: there is no such backend, torch is not installed or has no such device here, or numpy is to
            compute anywhere but on the processor.
    """
    if backend == "numpy":
        if device not in (None, "cpu"):
            raise ConfigError(f"device: numpy computes on the processor, not on {device!r}; give backend='torch'")
        return NUMPY
    if backend != "torch":
        raise ConfigError(f"backend: must be 'numpy' or 'torch', not {backend!r}")
    from focalroute.learn._torch import TorchBackend

    engine = TorchBackend(device or "cpu")
    return Backend(engine.decider, engine.fusion, engine.critic, f"torch on {device or 'cpu'}")
