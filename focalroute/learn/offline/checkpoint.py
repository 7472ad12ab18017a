"""The progress of offline training, and the checkpoint file from which it resumes."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focalroute.core.errors import ConfigError
from focalroute.learn.adam import Moments
from focalroute.learn.nets import CriticNet, DeciderNet, FusionNet, parameters, restored
from focalroute.learn.offline import RecordedLog
from focalroute.learn.offline.reinforce import OfflineSettings, ValidationPoint
from focalroute.learn.offline.views import Masks
from focalroute.policy.publish import lock_folder, replace_file

_FORMAT = "1"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a training run; with the log, the settings and the seed it is all that resuming needs.

    Attributes:
        phase: number of phases done.
        done: iterations of the policy gradient done.
        rng: state of the generator, from its ``bit_generator``.
        masks: the endpoints asked, for each view.
        fusion: the net.
        trust: share of the way from the shipped Fusion to the learned one.
        decider: the present net.
        moments: Adam's state for it.
        best: the Decider that did best on the validation part.
        curve: its results there.
        score: their mean reward, see `score_of`.
        critic: the net.
    """

    phase: int
    done: int
    rng: Mapping[str, Any]
    masks: tuple[Masks, ...]
    fusion: FusionNet
    trust: float
    decider: DeciderNet
    moments: Moments
    best: DeciderNet
    curve: tuple[ValidationPoint, ...]
    score: float
    critic: CriticNet

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state as named arrays."""
        nets = {
            "fusion": parameters(self.fusion),
            "decider": parameters(self.decider),
            "best": parameters(self.best),
            "critic": parameters(self.critic),
            "first": self.moments.first,
            "second": self.moments.second,
        }
        return {
            **{f"{net}.{name}": np.asarray(array) for net, arrays in nets.items() for name, array in arrays.items()},
            "counts": np.array([self.phase, self.done, self.moments.steps]),
            "figures": np.array([self.trust, self.score]),
            "curve": np.array([astuple(point) for point in self.curve]).reshape(-1, len(fields(ValidationPoint))),
            "masks": np.array(self.masks, np.bool_),
            "rng": np.array(json.dumps(self.rng)),
        }

    @classmethod
    def of(cls, arrays: Arrays) -> Progress:
        """Restore the state from `arrays`.

        Raises:
            KeyError: an array is missing.
            ValueError: the arrays are not such a state.
        """
        decider = restored(DeciderNet, arrays, "decider.")
        phase, done, steps = arrays["counts"].tolist()
        trust, score = arrays["figures"].tolist()
        first, second = (parameters(restored(DeciderNet, arrays, part)) for part in ("first.", "second."))
        return cls(
            phase=phase,
            done=done,
            rng=json.loads(str(arrays["rng"])),
            masks=tuple((first, later) for first, later in arrays["masks"]),
            fusion=restored(FusionNet, arrays, "fusion."),
            trust=trust,
            decider=decider,
            moments=Moments(steps, first, second),
            best=restored(DeciderNet, arrays, "best."),
            curve=tuple(ValidationPoint(*row) for row in arrays["curve"].tolist()),
            score=score,
            critic=restored(CriticNet, arrays, "critic."),
        )


def made_for(recorded: RecordedLog, *, seed: int, settings: OfflineSettings, engine: str) -> dict[str, str]:
    """Return a fingerprint of all that a training run depends on; a checkpoint resumes only a run with the same one."""
    digest = hashlib.sha256()
    for field in fields(recorded):
        value = getattr(recorded, field.name)
        if value is not None:
            array = np.ascontiguousarray(value)
            digest.update(f"{field.name} {array.dtype} {array.shape} ".encode())
            digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    return {
        "format": _FORMAT,
        "log": digest.hexdigest(),
        "settings": json.dumps(asdict(settings), sort_keys=True),
        "seed": str(seed),
        "backend": engine,
    }


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file with the latest `Progress`: plain arrays without pickles, replaced atomically.

    Attributes:
        path: the file.
        made_for: see `made_for`.
    """

    path: Path
    made_for: Mapping[str, str]

    def write(self, progress: Progress) -> None:
        """Replace the checkpoint.

        Raises:
            ConfigError: it cannot be written.
        """
        archive = io.BytesIO()
        np.savez(archive, allow_pickle=False, **progress.arrays(), made_for=np.array(json.dumps(dict(self.made_for))))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with lock_folder(self.path.parent):  # a publisher there removes files that are half written
                replace_file(self.path, archive.getvalue())
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None

    def read(self) -> Progress | None:
        """Read the checkpoint; None if there is no such file.

        Raises:
            ConfigError: it is damaged, or of another log, seed, backend or settings.
        """
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as archive:
                arrays = dict(archive)
            kept = json.loads(str(arrays["made_for"]))
            progress = Progress.of(arrays)
        except FileNotFoundError:
            return None
        except Exception as error:  # damage may raise anything
            raise ConfigError(f"{self.path}: is damaged; remove it, or train without resume") from error
        other = [what for what, value in self.made_for.items() if kept.get(what) != value]
        if other:
            raise ConfigError(
                f"{self.path}: belongs to another training, which differs in {' and '.join(other)}; "
                "give the same again, or train without resume"
            )
        return progress
