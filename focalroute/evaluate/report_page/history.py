"""Reads a store into arrays: n rated answers in the order of their feedback, N endpoints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import multimode
from typing import Any, Literal

import numpy as np

from focalroute.core.dollars import dollars
from focalroute.core.json_values import read_object
from focalroute.core.records import F64, I64, Bools, Feedback
from focalroute.evaluate.report_page.drawings import AskTimeline, CallSpan
from focalroute.learn.reward import credit
from focalroute.learn.trajectory import Costs, counting_feedback
from focalroute.observe.drift import Change
from focalroute.observe.observer import Observer
from focalroute.store.base import SYNTHESIS, StoredAnswer

_Rated = Sequence[tuple[StoredAnswer, Feedback]]
_Receipt = Mapping[str, Any]
_READ = {"calls", "cost", "latency_s", "policy_version"}
_TIMED = {"median": 0.5, "95 %": 0.95}


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """One endpoint's calls on the receipts of all answers.

    Attributes:
        by_round: number of answers for which it was asked in round 1, 2, ...
        usd: mean cost of the calls with a known cost; None: there are none.
        seconds: latencies of its usable replies, in order.
    """

    by_round: tuple[int, ...]
    usd: float | None
    seconds: F64


@dataclass(frozen=True, slots=True)
class History:
    """The answers of a store as arrays.

    Attributes:
        answers: number of answers read, rated or not.
        disputed: the share of the rated and of all answers whose members gave different answers; open texts aside.
        names: the endpoints in the latest pool's order, then those that left it.
        endpoints: one record for each name.
        tasks: for each answer with a task: the task, and the indices of the endpoints asked.
        worth: (n,) worth of the answers, in [0, 1]: (reward + 1) / 2.
        usd: (n,) cost of the answers; NaN: unknown.
        calls: (n,) number of endpoints asked.
        latency_s: (n,).
        confidence: (n,).
        version: (n,) version of the policy that answered.
        labelled: (n,) whether the right answer is known, and so every member's worth.
        vote: (n,) expected worth of a plurality vote with random ties; NaN if not labelled.
        known: (n, N) whether it is known if an endpoint (asked or probed) was right; only if labelled.
        right: (n, N) whether the endpoint was right.
        member: (n, N) whether the endpoint was a member of the answer.
        changes: (row, endpoint, change) for every detected change of an endpoint.
        timelines: those of the answers at the median and the 95th percentile of time.
    """

    answers: int
    disputed: tuple[float, float]
    names: tuple[str, ...]
    endpoints: tuple[EndpointRecord, ...]
    tasks: tuple[tuple[str, tuple[int, ...]], ...]
    worth: F64
    usd: F64
    calls: F64
    latency_s: F64
    confidence: F64
    version: I64
    labelled: Bools
    vote: F64
    known: Bools
    right: Bools
    member: Bools
    changes: tuple[tuple[int, str, Change], ...]
    timelines: tuple[AskTimeline, ...] = ()


def read_history(stored: Iterable[tuple[StoredAnswer, Sequence[Feedback]]]) -> History:
    """Read a store's answers and their feedback (see `focalroute.store.Store.recent`)."""
    rows = [(answer, said, receipt) for answer, said in stored if (receipt := _receipt(answer)) is not None]
    every = [(answer, receipt) for answer, _, receipt in rows]
    names, receipts = _names(every), {answer.id: receipt for answer, receipt in every}
    decided = [(answer, found) for answer, said, _ in rows if (found := counting_feedback(said)) is not None]
    rated = sorted(decided, key=lambda row: row[1].created_at)
    ours = [receipts[answer.id] for answer, _ in rated]
    known, right, member = _members(rated, names)
    return History(
        answers=len(rows),
        disputed=(_disputed(rated), _disputed(every)),
        names=names,
        endpoints=tuple(_records(names, every)),
        tasks=tuple(_tasks(every, names)),
        worth=np.array([(said.reward + 1) / 2 for _, said in rated]),
        usd=np.array([receipt["cost"] for receipt in ours], np.float64),
        calls=np.array([float(len(_asked(receipt))) for receipt in ours]),
        latency_s=np.array([float(receipt["latency_s"]) for receipt in ours]),
        confidence=np.array([_confidence(answer, receipt) for (answer, _), receipt in zip(rated, ours, strict=True)]),
        version=np.array([receipt["policy_version"] for receipt in ours], np.int64),
        labelled=np.array([_has_label(answer, said) for answer, said in rated], np.bool_),
        vote=np.array([_vote(answer, said) for answer, said in rated], np.float64),
        known=known,
        right=right,
        member=member,
        changes=tuple(_changes(rated, names)),
        timelines=tuple(_timelines([receipt for _, receipt in every])),
    )


def _receipt(answer: StoredAnswer) -> _Receipt | None:
    """The answer's receipt; None if it is damaged or of another version of this package."""
    found = read_object(answer.receipt)
    return found if found.keys() >= _READ else None


def _disputed(rows: Sequence[tuple[StoredAnswer, object]]) -> float:
    compared = [answer.disputed for answer, _ in rows if not answer.open_text]
    return sum(compared) / max(len(compared), 1)


def _asked(receipt: _Receipt) -> list[_Receipt]:
    """The calls made for the answer, without the one that synthesised it."""
    return [call for call in receipt["calls"] if call["attempts"] or call["cost"] is not None]


def _names(rows: Sequence[tuple[StoredAnswer, _Receipt]]) -> tuple[str, ...]:
    latest = next((answer.trajectory.endpoints for answer, _ in reversed(rows) if answer.trajectory), ())
    found = dict.fromkeys(latest)
    for answer, receipt in rows:
        found |= dict.fromkeys(call["endpoint"] for call in _asked(receipt))
        found |= dict.fromkeys(probe.endpoint for probe in answer.probes)
    return tuple(found)


def _confidence(answer: StoredAnswer, receipt: _Receipt) -> float:
    """The stored confidence; the posterior for receipts from before it was stored."""
    told = receipt.get("confidence")
    if told is None:
        told = answer.probabilities[answer.answered]
    return float(told)


def _records(names: Sequence[str], rows: Sequence[tuple[StoredAnswer, _Receipt]]) -> Iterable[EndpointRecord]:
    costs = Costs.of(answer for answer, _ in rows)
    calls = [call for _, receipt in rows for call in _asked(receipt)]
    for name in names:
        rounds = Counter(call["round"] for call in calls if call["endpoint"] == name)
        latency = [call["latency_s"] for call in calls if call["endpoint"] == name and call["error"] is None]
        yield EndpointRecord(
            tuple(rounds[number] for number in range(1, max(rounds, default=0) + 1)),
            costs.usd.get(name),
            np.array(latency, np.float64),
        )


def _timelines(receipts: Sequence[_Receipt]) -> Iterable[AskTimeline]:
    """Yield the timelines of two answers, of those whose receipts have times."""
    timed = [one for one in receipts if one["calls"] and all(call.get("queued_s") is not None for call in one["calls"])]
    timed.sort(key=lambda receipt: float(receipt["latency_s"]))
    if not timed:
        return
    for name, share in _TIMED.items():
        receipt = timed[int(share * len(timed))]
        title = f"{name}: {receipt['latency_s']:.3g} s"
        if receipt["cost"] is not None:
            title += f", {dollars(Decimal(receipt['cost']))}"
        yield AskTimeline(title, [_span(call) for call in receipt["calls"]], receipt["latency_s"])


def _span(call: _Receipt) -> CallSpan:
    outcome: Literal["done", "failed", "cancelled"] = "done"
    if call["error"] is not None:
        outcome = "cancelled" if call["error"]["kind"] == "cancelled" else "failed"
    times = call["queued_s"], call.get("sent_s"), call.get("first_token_s")
    return CallSpan(call["endpoint"], *times, call["queued_s"] + call["latency_s"], outcome)


def _tasks(
    rows: Sequence[tuple[StoredAnswer, _Receipt]], names: Sequence[str]
) -> Iterable[tuple[str, tuple[int, ...]]]:
    index = {name: number for number, name in enumerate(names)}
    for answer, receipt in rows:
        if answer.trajectory is not None and answer.trajectory.task is not None:
            asked = {index[call["endpoint"]] for call in _asked(receipt)}
            yield answer.trajectory.task, tuple(sorted(asked))


def _has_label(answer: StoredAnswer, said: Feedback) -> bool:
    return said.right is not None and answer.kind != SYNTHESIS


def _members(rated: _Rated, names: Sequence[str]) -> tuple[Bools, Bools, Bools]:
    known, right, member = (np.zeros((len(rated), len(names)), np.bool_) for _ in range(3))
    index = {name: number for number, name in enumerate(names)}
    for row, (answer, said) in enumerate(rated):
        if _has_label(answer, said):
            for name, value in credit(answer, said).right.items():
                known[row, index[name]] = True
                right[row, index[name]] = value == 1
            member[row, [index[name] for name in answer.members]] = True
    return known, right, member


def _vote(answer: StoredAnswer, said: Feedback) -> float:
    if not _has_label(answer, said):
        return math.nan
    tied = multimode(member.candidate for member in answer.members.values() if member.candidate is not None)
    return sum(answer.keys[candidate] == said.right for candidate in tied) / max(len(tied), 1)


def _changes(rated: _Rated, names: Sequence[str]) -> Iterable[tuple[int, str, Change]]:
    """Yield the changes that an ensemble with all of this feedback would have detected."""
    if not names:
        return
    observer = Observer(names, [None] * len(names))
    for row, (answer, said) in enumerate(rated):
        for name, change in observer.learn(credit(answer, said), said.created_at).items():
            yield row, name, change
