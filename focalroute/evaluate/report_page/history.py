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
_NEEDED = {"calls", "cost", "latency_s", "policy_version"}
_QUANTILES = {"median": 0.5, "95 %": 0.95}  # of time, for which a timeline is drawn


@dataclass(frozen=True, slots=True)
class EndpointRecord:
    """One endpoint's calls on the receipts of all answers.

    Attributes:
        by_round: number of answers for which it was asked in round 1, 2, ...
        usd: mean cost of its calls, where known; None: no cost is known.
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
        disputed: the share of rated answers whose members gave different answers, and the share of all answers; both
            without open texts.
        names: the endpoints of the latest pool, in its order, then those that left it.
        endpoints: one record for each name.
        tasks: for each answer with a task, the task and the indices of the endpoints asked.
        worth: (n,) worth of the answers, in [0, 1]: (reward + 1) / 2.
        usd: (n,) cost of the answers; NaN: unknown.
        calls: (n,) number of endpoints asked.
        latency_s: (n,) seconds until the answers.
        confidence: (n,) confidence of the answers.
        version: (n,) version of the policy that answered.
        labelled: (n,) whether the right answer is known, and so whether each member was right.
        vote: (n,) expected worth of a plurality vote with random ties; NaN if not labelled.
        known: (n, N) whether it is known if an endpoint (asked or probed) was right; only if labelled.
        right: (n, N) whether the endpoint was right.
        member: (n, N) whether the endpoint was asked for the answer; only if labelled.
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
    every: list[tuple[StoredAnswer, _Receipt]] = []
    rated: list[tuple[StoredAnswer, Feedback]] = []
    for answer, given in stored:
        receipt = _receipt(answer)
        if receipt is None:
            continue
        every.append((answer, receipt))
        feedback = counting_feedback(given)
        if feedback is not None:
            rated.append((answer, feedback))
    rated.sort(key=lambda row: row[1].created_at)
    names, receipts = _names(every), {answer.id: receipt for answer, receipt in every}
    rated_receipts = [receipts[answer.id] for answer, _ in rated]
    known, right, member = _members(rated, names)
    return History(
        answers=len(every),
        disputed=(_disputed(rated), _disputed(every)),
        names=names,
        endpoints=tuple(_records(names, every)),
        tasks=tuple(_tasks(every, names)),
        worth=np.array([(feedback.reward + 1) / 2 for _, feedback in rated]),
        usd=np.array([receipt["cost"] for receipt in rated_receipts], np.float64),
        calls=np.array([float(len(_calls(receipt))) for receipt in rated_receipts]),
        latency_s=np.array([float(receipt["latency_s"]) for receipt in rated_receipts]),
        confidence=np.array([_confidence(answer, receipts[answer.id]) for answer, _ in rated]),
        version=np.array([receipt["policy_version"] for receipt in rated_receipts], np.int64),
        labelled=np.array([_has_label(answer, feedback) for answer, feedback in rated], np.bool_),
        vote=np.array([_vote(answer, feedback) for answer, feedback in rated], np.float64),
        known=known,
        right=right,
        member=member,
        changes=tuple(_changes(rated, names)),
        timelines=tuple(_timelines([receipt for _, receipt in every])),
    )


def _receipt(answer: StoredAnswer) -> _Receipt | None:
    """Return the answer's receipt; None if it is damaged or of another version of this package."""
    found = read_object(answer.receipt)
    return found if found.keys() >= _NEEDED else None


def _disputed(rows: Sequence[tuple[StoredAnswer, object]]) -> float:
    """Return the share of answers whose members gave different answers, without open texts."""
    disputed = [answer.disputed for answer, _ in rows if not answer.open_text]
    return sum(disputed) / max(len(disputed), 1)


def _calls(receipt: _Receipt) -> list[_Receipt]:
    """Return the calls on a receipt, without those that were never made."""
    return [call for call in receipt["calls"] if call["attempts"] or call["cost"] is not None]


def _names(rows: Sequence[tuple[StoredAnswer, _Receipt]]) -> tuple[str, ...]:
    """Return the endpoints of the latest pool, then all others that were asked or probed."""
    latest = next((answer.trajectory.endpoints for answer, _ in reversed(rows) if answer.trajectory), ())
    found = dict.fromkeys(latest)
    for answer, receipt in rows:
        found |= dict.fromkeys(call["endpoint"] for call in _calls(receipt))
        found |= dict.fromkeys(probe.endpoint for probe in answer.probes)
    return tuple(found)


def _confidence(answer: StoredAnswer, receipt: _Receipt) -> float:
    """Return the stored confidence; for receipts of versions that did not store it, the posterior."""
    stored = receipt.get("confidence")
    return float(answer.probabilities[answer.answered] if stored is None else stored)


def _records(names: Sequence[str], rows: Sequence[tuple[StoredAnswer, _Receipt]]) -> Iterable[EndpointRecord]:
    costs = Costs.of(answer for answer, _ in rows)
    calls = [call for _, receipt in rows for call in _calls(receipt)]
    for name in names:
        rounds = Counter(call["round"] for call in calls if call["endpoint"] == name)
        latency = [call["latency_s"] for call in calls if call["endpoint"] == name and call["error"] is None]
        yield EndpointRecord(
            tuple(rounds[number] for number in range(1, max(rounds, default=0) + 1)),
            costs.usd.get(name),
            np.array(latency, np.float64),
        )


def _timelines(receipts: Sequence[_Receipt]) -> Iterable[AskTimeline]:
    """Yield the timelines of two answers, chosen from those whose receipts have times."""
    timed = []
    for receipt in receipts:
        if receipt["calls"] and all(call.get("queued_s") is not None for call in receipt["calls"]):
            timed.append(receipt)
    timed.sort(key=lambda receipt: float(receipt["latency_s"]))
    if not timed:
        return
    for name, share in _QUANTILES.items():
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
            asked = {index[call["endpoint"]] for call in _calls(receipt)}
            yield answer.trajectory.task, tuple(sorted(asked))


def _has_label(answer: StoredAnswer, feedback: Feedback) -> bool:
    """Whether the right answer is known, and is comparable to those of the members."""
    return feedback.right is not None and answer.kind != SYNTHESIS


def _members(rated: _Rated, names: Sequence[str]) -> tuple[Bools, Bools, Bools]:
    """Return the arrays ``known``, ``right`` and ``member`` of `History`."""
    known, right, member = (np.zeros((len(rated), len(names)), np.bool_) for _ in range(3))
    index = {name: number for number, name in enumerate(names)}
    for row, (answer, feedback) in enumerate(rated):
        if _has_label(answer, feedback):
            for name, value in credit(answer, feedback).right.items():
                known[row, index[name]] = True
                right[row, index[name]] = value == 1
            member[row, [index[name] for name in answer.members]] = True
    return known, right, member


def _vote(answer: StoredAnswer, feedback: Feedback) -> float:
    """Return the expected worth of a plurality vote of the members, with random ties; NaN without a label."""
    if not _has_label(answer, feedback):
        return math.nan
    tied = multimode(member.candidate for member in answer.members.values() if member.candidate is not None)
    return sum(answer.keys[candidate] == feedback.right for candidate in tied) / max(len(tied), 1)


def _changes(rated: _Rated, names: Sequence[str]) -> Iterable[tuple[int, str, Change]]:
    """Yield the changes that an ensemble with all of this feedback would have detected."""
    if not names:
        return
    observer = Observer(names, [None] * len(names))
    for row, (answer, feedback) in enumerate(rated):
        for name, change in observer.learn(credit(answer, feedback), feedback.created_at).items():
            yield row, name, change
