"""How the trial of a challenger stands, and what became of those before: ``trial.npz`` in the policy folder.

Every answer counts once. The champion is watched as well: against what it was learned from, by the same test on its own
answers, without giving any to the older one.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np

from focalroute.core.errors import PolicyError
from focalroute.core.records import F64
from focalroute.learn.gate import WIDTH, Nets, evidence, judge
from focalroute.learn.trajectory import Episode
from focalroute.learn.update_report import Comparison
from focalroute.policy.bundle import read_file
from focalroute.policy.publish import lock_folder, replace_file
from focalroute.policy.slot import CHALLENGER_SHARE

TRIAL = "trial.npz"
#: Fewer answers give no verdict: they may all come from one hour, or from one user.
LEAST = 100
#: A trial ends after this number of answers with feedback.
BUDGET = 2_000
#: A challenger that is not ahead after this number is dropped.
PATIENCE = 1_000
#: Points that a challenger has to be able to gain.
WORTH = 0.2

_KEPT = 50  # verdicts

_log = logging.getLogger("focalroute")

Verdict = Literal["better", "not better", "open"]


@dataclass(frozen=True, slots=True)
class Counted:
    """Answers that count no more: their ids, and of those that did what each said (`focalroute.learn.gate.evidence`).

    The others among the ids are those that the challenger was learned from.
    """

    ids: tuple[str, ...] = ()
    values: F64 = field(default_factory=lambda: np.zeros((0, WIDTH)))

    def more(self, champion: Nets, other: Nets, episodes: Sequence[Episode], *, share: float) -> Counted:
        """With those of the episodes that were not counted yet, as far as the budget goes."""
        known = set(self.ids)
        new = [one for one in episodes if one.id not in known][: BUDGET - len(self.values)]
        values = evidence(champion, other, new, share=share)
        return Counted((*self.ids, *(one.id for one in new)), np.concatenate([self.values, values]))


@dataclass(frozen=True, slots=True)
class Trial:
    """A champion, who challenges it, and what it came from.

    Attributes:
        champion: the version that serves.
        challenger: the one that is on trial; None: there is none.
        parent: the one that the champion took over from, while it is watched; None: it is not.
        tried: the evidence on the challenger.
        watched: the evidence on the parent.
        record: what became of earlier trials, oldest first: plain values.
    """

    champion: int
    challenger: int | None = None
    parent: int | None = None
    tried: Counted = Counted()
    watched: Counted = Counted()
    record: tuple[Mapping[str, Any], ...] = ()

    def noted(self, version: int, outcome: str, comparison: Comparison, reason: str) -> Trial:
        """With one more verdict on record."""
        entry = {"version": version, "outcome": outcome, "reason": reason, "gate": asdict(comparison)}
        return replace(self, record=(*self.record, entry)[-_KEPT:])


def with_new_evidence(
    trial: Trial, champion: Nets, other: Nets, episodes: Sequence[Episode], *, share: float = CHALLENGER_SHARE
) -> Trial:
    """The trial with what new answers say of the challenger, or else of the parent, whichever ``other`` is.

    Args:
        share: what the challenger decides of the asks; 0: it is tried on the champion's answers alone.
    """
    own = [one for one in episodes if one.trajectory.version == trial.champion]
    if other.version != trial.challenger:
        return replace(trial, watched=trial.watched.more(champion, other, own, share=0))
    if share:
        pair = {trial.champion, trial.challenger}
        own = [one for one in episodes if {one.trajectory.version, one.trajectory.rival} == pair]
    return replace(trial, tried=trial.tried.more(champion, other, own, share=share))


def verdict(counted: Counted) -> tuple[Verdict, Comparison]:
    """Whether the other policy is surely better than the champion, will not be shown to be, or neither yet."""
    found = judge(counted.values)
    if found.episodes < LEAST:
        return "open", found
    if found.low > 0:
        return "better", found
    hopeless = found.high < WORTH or (found.episodes >= PATIENCE and found.gain <= 0)
    return ("not better" if hopeless or found.episodes >= BUDGET else "open"), found


def read_trial(root: str | Path, champion: int, challenger: int | None) -> Trial:
    """How the trial stands; one that is not of these two is over, but its record stays."""
    path = Path(root) / TRIAL
    if not path.exists():
        return Trial(champion, challenger)
    try:
        with np.load(io.BytesIO(read_file(path, path.parent)), allow_pickle=False) as arrays:
            meta = json.loads(str(arrays["meta"]))
            tried, watched = (
                Counted(tuple(arrays[f"{name}.ids"].tolist()), arrays[f"{name}.values"].reshape(-1, WIDTH))
                for name in ("tried", "watched")
            )
            found = Trial(**{**meta, "record": tuple(meta["record"])}, tried=tried, watched=watched)
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, PolicyError) as error:
        _log.warning("%s: cannot be read, the trial begins anew: %s", path, error)
        return Trial(champion, challenger)
    if found.champion != champion:
        return Trial(champion, challenger, record=found.record)
    return found if found.challenger == challenger else replace(found, challenger=challenger, tried=Counted())


def write_trial(root: str | Path, trial: Trial) -> None:
    """Keep how the trial stands."""
    meta = {name: getattr(trial, name) for name in ("champion", "challenger", "parent", "record")}
    arrays: dict[str, Any] = {"meta": np.array(json.dumps(meta))}
    for name, counted in (("tried", trial.tried), ("watched", trial.watched)):
        arrays[f"{name}.ids"] = np.array(counted.ids, np.str_) if counted.ids else np.zeros(0, "U1")
        arrays[f"{name}.values"] = counted.values
    archive = io.BytesIO()
    np.savez_compressed(archive, allow_pickle=False, **arrays)
    with lock_folder(Path(root)):
        replace_file(Path(root) / TRIAL, archive.getvalue())
