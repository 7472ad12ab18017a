"""The state of a challenger's trial, and the verdicts on earlier ones: ``trial.npz`` in the policy folder.

Every answer counts once. The champion is also watched: the same test compares it, on its own answers, with the version
that it took over from, which serves no asks.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from focalroute.core.errors import PolicyError
from focalroute.core.records import F64
from focalroute.learn.gate import WIDTH, Nets, evidence, judge
from focalroute.learn.trajectory import Episode
from focalroute.learn.update_report import Comparison
from focalroute.policy.bundle import arrays_in, read_file
from focalroute.policy.publish import changing, replace_file
from focalroute.policy.slot import CHALLENGER_SHARE

TRIAL = "trial.npz"
#: Least number of answers for a verdict: fewer may all come from one hour, or from one user.
LEAST = 100
#: A trial ends after this number of answers with feedback.
BUDGET = 2_000
#: A challenger that is not ahead after this number is dropped.
PATIENCE = 1_000
#: A challenger is dropped once the upper bound of its gain is below this, in points.
WORTH = 0.2

_KEPT = 50  # verdicts

_log = logging.getLogger("focalroute")

Verdict = Literal["better", "not better", "open"]


@dataclass(frozen=True, slots=True)
class Counted:
    """The answers already used in a comparison of two versions.

    Attributes:
        ids: of all answers used. Some give no evidence: those from which the challenger was learned or, once it serves,
            those for which it was published.
        values: the evidence of the others, see `focalroute.learn.gate.evidence`.
    """

    ids: tuple[str, ...] = ()
    values: F64 = field(default_factory=lambda: np.zeros((0, WIDTH)))

    def with_new(self, champion: Nets, other: Nets, episodes: Sequence[Episode], *, share: float) -> Counted:
        """Return this with the evidence of the episodes not used yet, up to `BUDGET`."""
        known = set(self.ids)
        new = [one for one in episodes if one.id not in known][: BUDGET - len(self.values)]
        values = evidence(champion, other, new, share=share)
        return Counted((*self.ids, *(one.id for one in new)), np.concatenate([self.values, values]))


@dataclass(frozen=True, slots=True)
class Trial:
    """A champion, its challenger, and its parent.

    Attributes:
        champion: the version that serves.
        challenger: the version on trial, if any.
        parent: the version that the champion took over from, while the champion is watched; else None.
        tried: the evidence on the challenger.
        watched: the evidence on the parent.
        record: the verdicts on earlier trials, oldest first: plain values.
    """

    champion: int
    challenger: int | None = None
    parent: int | None = None
    tried: Counted = Counted()
    watched: Counted = Counted()
    record: tuple[Mapping[str, Any], ...] = ()

    def with_record(self, version: int, outcome: str, comparison: Comparison, reason: str) -> Trial:
        """Return the trial with one more verdict on record."""
        entry = {"version": version, "outcome": outcome, "reason": reason, "gate": asdict(comparison)}
        return replace(self, record=(*self.record, entry)[-_KEPT:])


def with_new_evidence(
    trial: Trial, champion: Nets, other: Nets, episodes: Sequence[Episode], *, share: float = CHALLENGER_SHARE
) -> Trial:
    """Return the trial with the evidence of new answers on ``other``, which is the challenger or the parent.

    Args:
        share: share of the asks that the challenger decides; 0: it is tried on the champion's answers alone.
    """
    own = [one for one in episodes if one.trajectory.version == trial.champion]
    if other.version != trial.challenger:
        return replace(trial, watched=trial.watched.with_new(champion, other, own, share=0))
    if share:
        pair = {trial.champion, trial.challenger}
        own = [one for one in episodes if {one.trajectory.version, one.trajectory.rival} == pair]
    return replace(trial, tried=trial.tried.with_new(champion, other, own, share=share))


def verdict(counted: Counted) -> tuple[Verdict, Comparison]:
    """Return the verdict on the other policy, and the comparison that it is based on.

    "better": better than the champion with 95 % confidence; "not better": unlikely to prove better; else "open".
    """
    found = judge(counted.values)
    if found.episodes < LEAST:
        return "open", found
    if found.low > 0:
        return "better", found
    hopeless = found.high < WORTH or (found.episodes >= PATIENCE and found.gain <= 0)
    return ("not better" if hopeless or found.episodes >= BUDGET else "open"), found


def read_trial(root: str | Path, champion: int, challenger: int | None) -> Trial:
    """Read the trial's state. What it holds of another champion or challenger is dropped, except for the record."""
    path = Path(root) / TRIAL
    if not path.exists():
        return Trial(champion, challenger)
    try:
        arrays = arrays_in(read_file(path, path.parent))
        meta = json.loads(str(arrays["meta"]))
        tried, watched = (
            Counted(tuple(arrays[f"{name}.ids"].tolist()), arrays[f"{name}.values"].reshape(-1, WIDTH))
            for name in ("tried", "watched")
        )
        found = Trial(**{**meta, "record": tuple(meta["record"])}, tried=tried, watched=watched)
    except (ValueError, KeyError, TypeError, RecursionError, PolicyError) as error:
        _log.warning("%s: cannot be read, the trial begins anew: %s", path, error)
        return Trial(champion, challenger)
    if found.champion != champion:
        return Trial(champion, challenger, record=found.record)
    return found if found.challenger == challenger else replace(found, challenger=challenger, tried=Counted())


def write_trial(root: str | Path, trial: Trial) -> None:
    """Write the trial's state.

    Raises:
        PolicyError: the folder cannot be written.
    """
    meta = {name: getattr(trial, name) for name in ("champion", "challenger", "parent", "record")}
    arrays: dict[str, Any] = {"meta": np.array(json.dumps(meta))}
    for name, counted in (("tried", trial.tried), ("watched", trial.watched)):
        arrays[f"{name}.ids"] = np.array(counted.ids, np.str_) if counted.ids else np.zeros(0, "U1")
        arrays[f"{name}.values"] = counted.values
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **arrays)
    with changing(Path(root), "its trial does not go on"):
        replace_file(Path(root) / TRIAL, archive.getvalue())
