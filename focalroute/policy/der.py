"""The learned sequential policy (DER, arXiv 2412.07448) as a bundle, and which kind of bundle a folder holds.

root/v000001/
  der.onnx             seen (B, D) -> logits (B, N + 1): asking each of the N endpoints of the manifest, and STOP
  manifest.json        as of any bundle (`focalroute.policy.bundle`), with the layout of `focalroute.policy.sequential`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.records import F32, Observation
from focalroute.observe.layout import width
from focalroute.policy.bundle import (
    DER_FILE,
    Policy,
    load_folder,
    load_version,
    manifest_of,
    opened,
    verified,
)
from focalroute.policy.onnx_model import Session, Signature
from focalroute.policy.sequential import STEP, STEP_ENDPOINT

I64 = NDArray[np.int64]

#: The layout as a manifest holds it.
DER_SLICES = {
    "step": [list(item) for item in STEP.items()],
    "step_endpoint": [list(item) for item in STEP_ENDPOINT.items()],
}
_NEVER = -1e4  # the logit of an endpoint that the policy does not know


def flat(context: F32, endpoints: F32) -> F32:
    """Return the network's input, (B, Dc + N De), from contexts (B, Dc) and endpoints (B, N, De)."""
    return np.concatenate([context, endpoints.reshape(len(endpoints), -1)], axis=1)


@dataclass(frozen=True, slots=True)
class Der:
    """A learned sequential policy, ready to serve. Immutable; any number of threads may use it at once.

    An endpoint that it does not know is asked only where no other can be.

    Attributes:
        version: as of `focalroute.policy.bundle.Policy`, and so the next.
        names: the endpoints it knows, N of them, in the order of its actions.
    """

    version: int
    parent: int | None
    created_at: float
    names: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    _net: Session = field(repr=False)
    experience: ClassVar[None] = None

    def ids(self, endpoints: Sequence[str]) -> I64:
        """Each endpoint's place among the actions, (N,) of the pool; -1 for those it does not know."""
        return np.array([self.names.index(name) if name in self.names else -1 for name in endpoints], np.int64)

    def actions(self, observation: Observation, ids: I64) -> F32:
        """Logits, float32 (N + 1,) of the pool's endpoints and STOP, given their places; PolicyError if that fails."""
        known = ids >= 0
        rows = np.zeros((len(self.names), width(STEP_ENDPOINT)), np.float32)
        rows[ids[known]] = observation.endpoints[known]
        found = self._net.run({"seen": flat(observation.context[None], rows[None])})[0]
        logits = np.full(len(ids) + 1, _NEVER, np.float32)
        logits[:-1][known], logits[-1] = found[ids[known]], found[-1]
        return logits


def load_der(folder: Path) -> Der:
    """The sequential policy in one version's folder, if it passes every check.

    Raises:
        PolicyError: it does not; the message names the file, the reason and what to do.
    """
    manifest = manifest_of(folder, DER_SLICES)
    names = tuple(manifest["names"])
    inputs = width(STEP) + len(names) * width(STEP_ENDPOINT)
    shapes = {"seen": (None, inputs), "logits": (None, len(names) + 1)}
    signature: Signature = {name: ("tensor(float)", shape) for name, shape in shapes.items()}
    policy = Der(
        **{key: manifest[key] for key in ("version", "parent", "created_at", "hyperparameters", "metrics")},
        names=names,
        _net=opened(folder / DER_FILE, verified(folder, DER_FILE, manifest), signature),
    )
    seen = Observation(np.ones(width(STEP), np.float32), np.ones((len(names), width(STEP_ENDPOINT)), np.float32))
    try:
        policy.actions(seen, policy.ids(names))
    except (PolicyError, ValueError, IndexError) as error:
        raise PolicyError(f"{folder / DER_FILE}: fails on a trial: {error}; publish it again") from None
    return policy


def load_any_folder(folder: Path) -> Policy | Der:
    """The policy in one version's folder, of either kind; PolicyError if it fails its checks."""
    return load_der(folder) if (folder / DER_FILE).exists() else load_folder(folder)


def load_served(root: str | Path, version: int | None = None) -> Policy | Der:
    """The policy of this version (None: of the current one), of either kind, if it passes every check.

    Raises:
        PolicyError: it does not.
    """
    return load_version(root, version, load_any_folder)
