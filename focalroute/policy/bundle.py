"""Policy bundles on disk, checked before they serve. `focalroute.policy.publish` writes them.

root/
  CURRENT              the version that serves, such as "v000003"
  CHALLENGER           optional: the version that is on trial against it, see `focalroute.policy.slot`
  v000003/
    decider.onnx       see `focalroute.learn.export`
    fusion.onnx
    manifest.json      schema, version, parent, names, layout, ...; SHA-256 of every file and of the manifest itself
    experience.npz     optional: long-run accuracies and a memory of texts, see `focalroute.observe.experience`
    learner.npz        optional: the learner's state; serving never reads it
  trial.npz            optional: the state of the trial, see `focalroute.learn.trial`; serving never reads it
  .lock, .updating, .tmp-*  the publisher's
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import PolicyError
from focalroute.core.files import read_regular
from focalroute.core.records import COST_WEIGHT_RANGE, F32, Evidence, Observation
from focalroute.observe.experience import Experience
from focalroute.observe.layout import CANDIDATE, CONTEXT, ENDPOINT, LAYOUT, MEMBER, width
from focalroute.policy.onnx_model import MAX_BYTES, Inputs, Session, Signature

CURRENT = "CURRENT"
CHALLENGER = "CHALLENGER"
#: A sequential policy's file in place of ``decider.onnx`` and ``fusion.onnx`` (see `focalroute.policy.sequential`).
DER_FILE = "der.onnx"
SCHEMA = 1
#: The shipped bundle.
COLD = Path(__file__).parent / "cold"
#: The layout as in a manifest: lists, since the order of the slices matters.
SLICES = {part: [list(item) for item in layout.items()] for part, layout in LAYOUT.items()}
#: Names in manifests from before 24 November 2026 -> their names now.
_FORMER_NAMES = {
    "price_of_money": "cost_weight",
    "standing": "relative_skill",
    "toll": "cost_penalty",
    "log_toll": "log_cost_penalty",
}

_MAX_UNPACKED = 256 * 2**20

_LONGEST_CURRENT = 20
_VERSION = re.compile(r"v([0-9]{6,18})")
_YEAR_10000 = 253_402_300_800  # Unix time; no later one can be written as a date
_AGAIN = "restore it, roll back, or publish again"
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "version": int,
    "parent": (int, type(None)),
    "created_at": (int, float),
    "names": list,
    "layout": dict,
    "hyperparameters": dict,
    "metrics": dict,
    "sha256": dict,
}
_LOGITS = ("tensor(float)", (None, None))
#: Inputs and outputs of ``decider.onnx``.
DECIDER: Signature = {
    "context": ("tensor(float)", (None, width(CONTEXT))),
    "endpoints": ("tensor(float)", (None, None, width(ENDPOINT))),
    "ids": ("tensor(int64)", (None,)),
    "logits": _LOGITS,
}
#: Inputs and outputs of ``fusion.onnx``.
FUSION: Signature = {
    "members": ("tensor(float)", (None, None, None, width(MEMBER))),
    "candidates": ("tensor(float)", (None, None, width(CANDIDATE))),
    "ids": ("tensor(int64)", (None, None)),
    "logits": _LOGITS,
}


@dataclass(frozen=True, slots=True)
class Published:
    """The manifest's fields that every published policy has.

    Attributes:
        version: 0 for the shipped one.
        parent: the version it was learned from; None: from none.
        created_at: Unix time.
        names: the endpoints it knows, in the order of its embeddings (row 0 is for all others) or actions.
        hyperparameters: of its training.
        metrics: measured results.
    """

    version: int
    parent: int | None
    created_at: float
    names: tuple[str, ...]
    hyperparameters: Mapping[str, Any]
    metrics: Mapping[str, Any]


_P = TypeVar("_P", bound=Published)


@dataclass(frozen=True, slots=True)
class Policy(Published):
    """A bundle that passed its checks, ready to serve. Immutable; any number of threads may use it at once.

    Attributes:
        decider_onnx: the Decider's file; the learner reads the weights from it.
        fusion_onnx: the Fusion's.
        experience: its record of the past; None: none.
        trained_on: digests of the recorded questions that it or its ancestors were trained on.
    """

    decider_onnx: bytes = field(repr=False)
    fusion_onnx: bytes = field(repr=False)
    experience: Experience | None = field(repr=False)
    _decider: Session = field(repr=False)
    _fusion: Session = field(repr=False)
    _rows: Mapping[str, int] = field(repr=False)
    trained_on: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def knows_pool(self) -> bool:
        """Whether it was trained on a log of its pool, so that it need not explore by sampling."""
        return self.experience is not None

    def ids(self, endpoints: Sequence[str]) -> NDArray[np.int64]:
        """Return the embedding row of each endpoint; 0 for unknown ones."""
        rows = self._rows
        return np.array([rows.get(name, 0) for name in endpoints], np.int64)

    def served(self, cost_weight: float) -> tuple[float, bool]:
        """Return the cost weight to decide at, and whether to ask one endpoint, by the text, instead of using the nets.

        The ``metrics`` say what did best on the validation part at some weights (see
        `focalroute.learn.offline.reinforce.ValidationPoint`). If both neighbours of this weight serve themselves, in
        the same way, the weight itself serves, too; otherwise what serves at the neighbour that is nearer on a
        logarithmic scale. Without such measurements, as at the start, the nets are not used above `COST_WEIGHT_RANGE`,
        and weights below it are raised to it, as nothing shows that asking more endpoints gives more right answers.
        """
        curve = {point["cost_weight"]: point for point in self.metrics.get("curve", ())}
        if not curve:
            return max(cost_weight, COST_WEIGHT_RANGE[0]), cost_weight > COST_WEIGHT_RANGE[1]
        below = max((weight for weight in curve if weight <= cost_weight), default=min(curve))
        above = min((weight for weight in curve if weight >= cost_weight), default=max(curve))
        low, high = _served(curve, below), _served(curve, above)
        if (low[0], high[0]) == (below, above) and low[1] == high[1]:
            return cost_weight, low[1]
        return high if cost_weight**2 > below * above else low

    def decider_logits(self, observation: Observation, ids: NDArray[np.int64]) -> F32:
        """Return z of every endpoint, float32 (N,), given their embedding rows; PolicyError on failure."""
        inputs: Inputs = {"context": observation.context[None], "endpoints": observation.endpoints[None], "ids": ids}
        logits: F32 = self._decider.run(inputs)[0]
        return logits

    def fusion_logits(self, evidence: Evidence, ids: NDArray[np.int64]) -> F32:
        """Return each candidate's score, float32 (K,), given the members' embedding rows; PolicyError on failure."""
        inputs: Inputs = {"members": evidence.members[None], "candidates": evidence.candidates[None], "ids": ids[None]}
        logits: F32 = self._fusion.run(inputs)[0]
        return logits


def _served(curve: Mapping[float, Mapping[str, Any]], cost_weight: float) -> tuple[float, bool]:
    """Return the weight that serves at a measured one, and whether one endpoint is then asked.

    Points of an earlier version of this package have neither.
    """
    served = float(curve[cost_weight].get("served", cost_weight))
    return served, bool(curve[served].get("alone", served > COST_WEIGHT_RANGE[1]))


def cold() -> Policy:
    """Return the shipped policy, the cold start, trained on synthetic pools by `examples.shipped_policy.training`.

    Each process checks and opens it once.
    """
    return _cold(os.getpid())


@cache
def _cold(process: int) -> Policy:
    """Open the shipped policy once per process: after a fork, another thread of the parent may have been using its."""
    return load_folder(COLD)


def versions(root: str | Path) -> tuple[int, ...]:
    """Return the versions in a folder, oldest first; none if there is no such folder."""
    try:
        found = [_VERSION.fullmatch(path.name) for path in Path(root).iterdir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise PolicyError(f"{root}: cannot be read: {error.strerror}; give the folder of the bundles") from None
    return tuple(sorted(int(match[1]) for match in found if match))


def current(root: str | Path) -> int:
    """Return the version that serves; PolicyError if ``CURRENT`` cannot be read."""
    return _read_pointer(Path(root) / CURRENT)


def challenger(root: str | Path) -> int | None:
    """Return the version on trial, if any; PolicyError if ``CHALLENGER`` cannot be read."""
    path = Path(root) / CHALLENGER
    return _read_pointer(path) if os.path.lexists(path) else None


def _read_pointer(path: Path) -> int:
    """Return the version that ``CURRENT`` or ``CHALLENGER`` names."""
    match = _VERSION.fullmatch(read_file(path, path.parent, _LONGEST_CURRENT).decode(errors="replace").strip())
    if match is None:
        kept = ", ".join(map(str, versions(path.parent)))
        raise PolicyError(f"{path}: does not name a version; roll back to one by its number ({kept}), or publish again")
    return int(match[1])


def folder_of(root: str | Path, version: int) -> Path:
    """Return the folder of a version."""
    return Path(root) / f"v{version:06d}"


def load(root: str | Path, version: int | None = None) -> Policy:
    """Load the policy of this version (None: the current one).

    Raises:
        PolicyError: it fails a check; the message names the file, the reason and what to do.
    """
    return load_version(root, version, load_folder)


def load_version(root: str | Path, version: int | None, load_folder: Callable[[Path], _P]) -> _P:
    """Load the folder of this version (None: the current one).

    Raises:
        PolicyError: it fails a check, or its manifest names another version.
    """
    version = current(root) if version is None else version
    folder = folder_of(root, version)
    policy = load_folder(folder)
    if policy.version != version:
        raise PolicyError(f"{folder / 'manifest.json'}: is of version {policy.version}, not {version}; {_AGAIN}")
    return policy


def load_folder(folder: Path) -> Policy:
    """Load the policy in one version's folder.

    Raises:
        PolicyError: it fails a check; the message names the file, the reason and what to do.
    """
    manifest = manifest_of(folder)
    decider, fusion = (verified(folder, name, manifest) for name in ("decider.onnx", "fusion.onnx"))
    policy = Policy(
        **header(manifest),
        decider_onnx=decider,
        fusion_onnx=fusion,
        experience=_experience(folder, manifest),
        _decider=opened(folder / "decider.onnx", decider, DECIDER),
        _fusion=opened(folder / "fusion.onnx", fusion, FUSION),
        _rows={name: row for row, name in enumerate(manifest["names"], 1)},
        trained_on=frozenset(str(manifest.get("trained_on", "")).split()),
    )
    _run_trial(folder, policy)
    return policy


def _experience(folder: Path, manifest: Mapping[str, Any]) -> Experience | None:
    if "experience.npz" not in manifest["sha256"]:
        return None
    arrays = _arrays(folder / "experience.npz", manifest)
    try:
        return Experience.of(arrays)
    except ValueError as error:
        raise PolicyError(f"{folder / 'experience.npz'}: {error}; {_AGAIN}") from None


def learner(root: str | Path, version: int) -> dict[str, NDArray[Any]] | None:
    """Return the arrays that the learner stored with a version, if any; PolicyError if they are damaged."""
    folder = folder_of(root, version)
    manifest = manifest_of(folder)
    if "learner.npz" not in manifest["sha256"]:
        return None
    return _arrays(folder / "learner.npz", manifest)


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's content without its digest."""
    content = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_file(path: Path, root: Path, most: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file in ``root``; PolicyError if it is anything else, or longer than ``most``.

    Links are followed only within ``root``.
    """
    place = os.path.realpath(path)
    if COLD not in path.parents and not Path(place).is_relative_to(os.path.realpath(root)):  # installers may link ours
        raise PolicyError(f"{path}: is a link out of {root}; put the file itself there")
    try:
        data = read_regular(place, most + 1, os.O_NOFOLLOW)
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read: {error.strerror}; {_AGAIN}") from None
    if data is None:
        raise PolicyError(f"{path}: is not a regular file; {_AGAIN}")
    if len(data) > most:
        raise PolicyError(f"{path}: is larger than {most} bytes; {_AGAIN}")
    return data


def manifest_of(folder: Path, slices: Mapping[str, Any] = SLICES) -> dict[str, Any]:
    """Read the manifest and check its schema, integrity, types and layout; PolicyError if any is wrong."""
    path = folder / "manifest.json"
    try:
        manifest = dict(json.loads(read_file(path, folder.parent)))
        intact = manifest.get("digest") == digest(manifest)
    except (ValueError, TypeError, RecursionError) as error:
        raise PolicyError(f"{path}: is not a manifest: {type(error).__name__}: {error}; {_AGAIN}") from None
    if manifest.get("schema") != SCHEMA:
        found = manifest.get("schema")
        raise PolicyError(f"{path}: has schema {found!r}, this version of focalroute reads {SCHEMA}; publish it again")
    if not intact:
        raise PolicyError(f"{path}: was changed after it was published; {_AGAIN}")
    for key, types in _TYPES.items():
        if not isinstance(manifest.get(key), types):
            raise PolicyError(f"{path}: {key}: is missing or of a wrong type; {_AGAIN}")
    if not 0 <= manifest["created_at"] < _YEAR_10000:
        raise PolicyError(f"{path}: created_at: is not a time between 1970 and the year 9999; {_AGAIN}")
    names = manifest["names"]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise PolicyError(f"{path}: names: must be different strings; {_AGAIN}")
    if DER_FILE in manifest["sha256"] and slices is SLICES:
        raise PolicyError(f"{folder}: holds a sequential policy; it serves, but is not compared or updated like others")
    for key in ("layout", "hyperparameters", "metrics"):
        manifest[key] = _renamed(manifest[key])
    if manifest["layout"] != slices:
        raise PolicyError(f"{path}: was made for another layout of the observation; train it again with this version")
    return manifest


def _renamed(value: Any) -> Any:
    """Replace former names in a manifest's value, as keys and as names of slices."""
    if isinstance(value, dict):
        return {_FORMER_NAMES.get(key, key): _renamed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    return _FORMER_NAMES.get(value, value) if isinstance(value, str) else value


def _arrays(path: Path, manifest: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    data = verified(path.parent, path.name, manifest)
    try:
        return arrays_in(data)
    except ValueError as error:
        raise PolicyError(f"{path}: {error}; publish again") from error


def arrays_in(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a numpy archive; ValueError if it is damaged, or too large when unpacked."""
    try:
        if not data.startswith(b"PK"):  # numpy's own message would suggest unpickling it
            raise ValueError("not a zip file")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            unpacked = sum(member.file_size for member in arrays.zip.infolist())
            if unpacked > _MAX_UNPACKED:
                raise ValueError(f"{unpacked} bytes unpacked are more than {_MAX_UNPACKED}")
            return dict(arrays)
    except Exception as error:  # damage may raise anything
        raise ValueError(f"is not a plain array archive: {error}") from error


def header(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest's fields of `Published`."""
    return {field.name: manifest[field.name] for field in fields(Published)} | {"names": tuple(manifest["names"])}


def verified(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """Return a file's bytes; PolicyError if they do not match the manifest's SHA-256."""
    data = read_file(folder / name, folder.parent)
    if hashlib.sha256(data).hexdigest() != manifest["sha256"].get(name):
        raise PolicyError(f"{folder / name}: does not match its SHA-256 in the manifest; {_AGAIN}")
    return data


def opened(path: Path, model: bytes, signature: Signature) -> Session:
    """Open a model; PolicyError if it does not have this signature."""
    try:
        return Session(model, signature)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}; export it again with this version of focalroute") from None


def _run_trial(folder: Path, policy: Policy) -> None:
    """Read the curve, and run both models on zeros and on ones with every embedding, which also warms them up."""
    try:
        for point in policy.metrics.get("curve", ()):
            policy.served(float(point["cost_weight"]))
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        said = f"metrics: curve: cannot be read ({type(error).__name__}: {error}); {_AGAIN}"
        raise PolicyError(f"{folder / 'manifest.json'}: {said}") from None
    ids = np.arange(len(policy.names) + 1)
    for value in (0.0, 1.0):
        context, endpoints = _full(value, width(CONTEXT)), _full(value, ids.size, width(ENDPOINT))
        members, candidates = _full(value, 2, ids.size, width(MEMBER)), _full(value, 2, width(CANDIDATE))
        name = "decider.onnx"
        try:
            _check_size(policy.decider_logits(Observation(context, endpoints), ids), ids.size)
            name = "fusion.onnx"
            _check_size(policy.fusion_logits(Evidence(members, candidates, tuple(ids.tolist())), ids), 2)
        except PolicyError as error:
            raise PolicyError(f"{folder / name}: fails on a trial: {error}; {_AGAIN}") from None


def _check_size(logits: F32, size: int) -> None:
    if logits.shape != (size,):
        raise PolicyError(f"its output has the shape {logits.shape}, expected {(size,)}")


def _full(value: float, *shape: int) -> F32:
    return np.full(shape, value, np.float32)
