"""Makes the report page of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from focalroute.core.records import F64, Bools
from focalroute.core.spelling import counted
from focalroute.evaluate.metrics import interval, span
from focalroute.evaluate.report_page import drawings
from focalroute.evaluate.report_page.history import EndpointRecord, History
from focalroute.evaluate.report_page.page import Page, Section, TextTable, tasks_section

#: With fewer rated answers nothing is drawn, as intervals would be too wide.
FEW = 10
_LEAST_TOGETHER = 20  # labelled answers of two endpoints, to show their diversity
_LEAST_OF_VERSION = 50  # rated answers of a policy's version, to show it
_MORE_DISPUTED = 0.1  # how much more often rated answers are disputed than all, to say so
_MOST_COMPARED = 5  # endpoints whose errors are compared
_VOTE = "vote of those asked"
_OURS = "focalroute"

_NO_FOLDER = "Give --policy FOLDER, the folder that updates are published to, to see what each of its versions learned."
_NO_FEEDBACK = (
    "Needs feedback for at least {few} answers; this store has it for {n}. Say how good answers were with "
    "ensemble.feedback(answer, label=...) or reward=..., also later and from another process."
)
_NO_LABELS = (
    "Needs labels for at least {few} answers; this store has them for {n}. A label (ensemble.feedback(answer, "
    "label=...)) tells which members were right, a reward only whether the answer was."
)


def store_page(history: History, name: str, updates: Section | None = None) -> Page:
    """Make the page of a store's history.

    Args:
        name: the store's name.
        updates: the section on a policy folder's updates.
    """
    rated, labelled = len(history.worth), int(history.labelled.sum())
    few = unlabelled = unasked = None
    if rated < FEW:
        few = Section(_NO_FEEDBACK.format(few=FEW, n=rated))
    if labelled < FEW:
        unlabelled = Section(_NO_LABELS.format(few=FEW, n=labelled))
    if not history.answers:
        unasked = Section("Needs answers: nothing was asked with this store yet.")
    return Page(
        title=f"focalroute: {name}",
        facts=_facts(history),
        lead=_lead(history),
        sections={
            "curve": few or _curve(history),
            "over-time": few or _over_time(history),
            "errors": unlabelled or _errors(history),
            "when-right": unlabelled or _when_right(history),
            "calibration": few or _calibration(history),
            "rounds": unasked or _rounds(history),
            "timeline": unasked or _timeline(history),
            "diversity": unlabelled or _diversity(history),
            "tasks": _tasks(history),
            "updates": updates or Section(_NO_FOLDER),
            "figures": unasked or _figures(history),
        },
    )


def _facts(history: History) -> dict[str, str]:
    versions = ", ".join(_version(number) for number in dict.fromkeys(history.version.tolist())) or "none yet"
    return {
        "answers": f"{history.answers:,}",
        "with feedback": f"{len(history.worth):,}",
        "with a label": f"{int(history.labelled.sum()):,}",
        "endpoints": str(len(history.names)),
        "policy": versions,
        "as of": datetime.now(UTC).date().isoformat(),
    }


def _version(number: int) -> str:
    return {0: "shipped", -1: "fallback", -2: "rule"}.get(number, f"version {number}")


def _lead(history: History) -> str:
    if not history.answers:
        return (
            "This store is empty. Ask with it (Ensemble(pool, store=...), or focalroute ask --store), then come back."
        )
    if len(history.worth) < FEW:
        answers = counted(history.answers, "answer")
        return (
            f"This page is about {answers}, with feedback for {len(history.worth)} of them. It shows which endpoints "
            f"were asked; to show how good the answers were it needs feedback for {FEW}."
        )
    dollars = _known_mean(history.usd)
    paid, vote = "at an unknown cost", ""
    if dollars is not None:
        paid = f"for ${1000 * dollars:.4g} per 1,000 queries"
    if history.labelled.all():
        vote = f" A vote of those asked would have {history.vote.mean():.3f}."
    rated, every = history.disputed
    harder = ""
    if rated > every + _MORE_DISPUTED:
        harder = (
            f" Members differ on {rated:.0%} of these, but only on {every:.0%} of all answers, so these are probably "
            "harder than average."
        )
    return (
        f"Of {len(history.worth):,} answers with feedback focalroute has {_scored(history)} "
        f"{history.worth.mean():.3f} (95 % interval {span(interval([history.worth]))}), {paid} and with "
        f"{history.calls.mean():.1f} calls a query.{vote}{harder}"
    )


def _scored(history: History) -> str:
    return "accuracy" if np.isin(history.worth, (0.0, 1.0)).all() else "score"


def _known_mean(amounts: F64) -> float | None:
    """Return the mean of the known amounts; None if none is known."""
    if np.isnan(amounts).all():
        return None
    return float(np.nanmean(amounts))


def _axis(history: History) -> drawings.CostAxis:
    return "usd" if (_known_mean(history.usd) or 0) > 0 else "calls"


# -- cost and quality --------------------------------------------------------------------------------------------------


def _curve(history: History) -> Section:
    axis, scored = _axis(history), _scored(history)
    everything = np.ones(len(history.worth), np.bool_)
    dots, vote, versions = [_point(history, _OURS, history.worth, everything, axis, ours=True)], "", ""
    if history.labelled.all():
        dots.append(_point(history, _VOTE, history.vote, everything, axis))
        vote = f" The “{_VOTE}” is what a plain vote of the same replies is worth."
    counts = Counter(history.version.tolist())
    if len(counts) > 1:
        versions = " Each version of the policy is shown for the queries that it answered."
        dots += [
            _point(history, _version(number), history.worth, history.version == number, axis)
            for number, count in counts.items()
            if count >= _LEAST_OF_VERSION
        ]
    for name, record, known, right in _by_endpoint(history):
        if known.sum() >= FEW and (axis == "calls" or record.usd is not None):
            cost = 1.0 if axis == "calls" else 1000 * (record.usd or 0.0)
            dots.append(drawings.MethodPoint(name, cost, *_quality(right[known].astype(np.float64)), hollow=True))
    return Section(
        f"{scored.capitalize()} against cost; up and to the left is better. Bars are 95 % intervals. Hollow: an "
        "endpoint alone, on the queries for which it was asked or probed and the right answer is known. Endpoints that "
        "are asked in later rounds get harder queries, so this is not a fair comparison between endpoints."
        f"{vote}{versions} To compare with baselines on the same queries, let every endpoint answer them (focalroute "
        "collect) and replay that log (focalroute eval).",
        drawings.CostQuality(tuple(dots), scored, axis),
    )


def _point(
    history: History, name: str, worth: F64, rows: Bools, axis: drawings.CostAxis, *, ours: bool = False
) -> drawings.MethodPoint:
    cost = 1000 * (_known_mean(history.usd[rows]) or 0.0)
    if axis == "calls":
        cost = float(history.calls[rows].mean())
    return drawings.MethodPoint(name, cost, *_quality(worth[rows]), ours=ours)


def _quality(worth: F64) -> tuple[float, float, float]:
    """Return the mean, and the ends of its 95 % interval."""
    return float(worth.mean()), *interval([worth])


def _by_endpoint(history: History) -> list[tuple[str, EndpointRecord, Bools, Bools]]:
    return list(zip(history.names, history.endpoints, history.known.T, history.right.T, strict=True))


# -- over time ---------------------------------------------------------------------------------------------------------


def _over_time(history: History) -> Section:
    scored, axis = _scored(history), _axis(history)
    methods = {_OURS: history.worth}
    if history.labelled.all():
        methods[_VOTE] = history.vote
    width = drawings.rolling_width(len(history.worth))
    paid = history.calls if axis == "calls" else 1000 * history.usd
    unknown = drawings.rolling_means(np.isnan(paid).astype(np.float64), width) > 0
    cost = np.where(unknown, np.nan, drawings.rolling_means(np.nan_to_num(paid), width))
    changes = [drawings.StreamEvent(row + 1.0, f"{name} was {change}") for row, name, change in history.changes]
    numbers, rows = np.unique(history.version, return_index=True)  # in a trial two versions answer by turns
    swaps = [
        drawings.StreamEvent(row + 1.0, f"{_version(number)} began to answer", found=False)
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True)
        if row
    ]
    found = [f"{number}: after {mark.at:.0f}, {mark.what}" for number, mark in enumerate(changes, 1)]
    noticed, dotted = "No endpoint changed.", ""
    if found:
        noticed = f"Solid lines mark where an endpoint changed. {'; '.join(found)}."
    if swaps:
        dotted = " Dotted lines: the first answer of another version of the policy."
    return Section(
        f"Means over {width} consecutive answers with feedback. Above: {scored}; below: what an answer costs, and its "
        f"seconds. {noticed}{dotted}",
        drawings.measure_over_time(
            methods,
            cost,
            history.latency_s,
            sorted((*changes, *swaps), key=lambda mark: mark.at),
            scored=scored,
            axis=axis,
            along="answers with feedback so far",
        ),
    )


# -- members -----------------------------------------------------------------------------------------------------------


def _errors(history: History) -> Section:
    rows, ours = history.labelled, (history.worth >= drawings.RIGHT).astype(np.float64)
    found = {_VOTE: drawings.compare_errors(ours[rows], history.vote[rows])}
    most = sorted(_by_endpoint(history), key=lambda one: -int(one[2].sum()))
    for name, _, known, right in most[:_MOST_COMPARED]:
        if known.sum() >= FEW:
            found[name] = drawings.compare_errors(ours[known], right[known].astype(np.float64))
    on = ", ".join(f"{name} {one.queries:,}" for name, one in found.items())
    return Section(
        "focalroute's answers beside the plain vote of the same replies, and beside each endpoint's own on the queries "
        f"for which it was asked or probed. Corrected: focalroute is right where the other is wrong; spoilt: the "
        f"reverse; the difference is the gain. Queries with a known answer: {on}.",
        drawings.ErrorComparison(found),
    )


def _when_right(history: History) -> Section:
    several = history.labelled & (history.member.sum(axis=1) > 1)
    if several.sum() < FEW:
        return Section(
            f"Needs at least {FEW} labelled answers for which two members or more replied; this store has "
            f"{int(several.sum())}."
        )
    right = (history.right & history.member)[several].sum(axis=1)
    most = int(history.member[several].sum(axis=1).max())
    methods = {_OURS: history.worth[several], _VOTE: history.vote[several]}
    drawing = drawings.measure_when_right(
        right, methods, most, scored=_scored(history), members="members asked that are right"
    )
    return Section(
        "Answers for which two members or more replied, by how many of these were right (RL-Focal's consensus plot). A "
        "vote needs many of them; a method that is right with few knows which endpoints to believe. Below: the share "
        "of queries of each kind. With none right, a synthesised or graded answer can still be worth something.",
        drawing,
    )


def _calibration(history: History) -> Section:
    found = drawings.measure_calibration(history.confidence, history.worth, _scored(history))
    return Section(f"{drawings.CALIBRATION}{found.expected_error:.3f}.", found)


def _diversity(history: History) -> Section:
    found = drawings.measure_diversity(history.names, history.known, history.right, _LEAST_TOGETHER)
    if all(value is None for row in found.values for value in row):
        return Section(
            f"Needs {_LEAST_TOGETHER} labelled answers for which two endpoints were both asked or probed; no two "
            "endpoints have that many."
        )
    return Section(
        f"Focal diversity of every two endpoints over the labelled answers for which both were asked or probed, where "
        f"there are at least {_LEAST_TOGETHER}: 0, they fail on the same queries; 1, never on the same. A member adds "
        "most beside one that it is diverse from.",
        found,
    )


# -- who is asked ------------------------------------------------------------------------------------------------------


def _rounds(history: History) -> Section:
    most = max((len(record.by_round) for record in history.endpoints), default=0)
    asked = np.zeros((most, len(history.names)))
    for number, record in enumerate(history.endpoints):
        asked[: len(record.by_round), number] = record.by_round
    shares = tuple(map(tuple, (asked / history.answers).tolist()))
    return Section(
        "The share of all answers for which each endpoint is asked. Round 1 is decided by the query and by the record "
        "of the endpoints; later rounds also by the replies so far.",
        drawings.AskedByRound(history.names, shares),
    )


def _timeline(history: History) -> Section:
    if not history.timelines:
        return Section("Needs answers whose receipts have a timeline, as those since 24 November 2026 do.")
    return Section(
        "The answers at the median and the 95th percentile of time. Thin: the call waited to be sent. Pale: until the "
        "first token, if it was streamed. The vertical line: the answer was complete. Bars that begin "
        "later belong to later rounds; with usd_per_second, an answer need not wait for a call that takes much longer.",
        drawings.Timelines(history.timelines),
    )


def _tasks(history: History) -> Section:
    asked = np.zeros((len(history.tasks), len(history.names)))
    for row, (_, endpoints) in enumerate(history.tasks):
        asked[row, list(endpoints)] = 1
    drawing, left = drawings.measure_tasks([task for task, _ in history.tasks], asked, history.names)
    return tasks_section(drawing, left, "Needs a task with the queries: ensemble.ask(..., task=...) names one.")


# -- the table ---------------------------------------------------------------------------------------------------------


def _figures(history: History) -> Section:
    columns = ("", "asked for", "known", "right", "95 %", "$ per 1,000", "seconds", "95 % within")
    rated = len(history.worth)
    ours = (
        _OURS,
        f"{history.answers:,}",
        f"{rated:,}",
        *_shares(history.worth),
        _amount(_known_mean(history.usd)),
        *_seconds(history.latency_s),
    )
    rows: list[Sequence[str]] = [ours]
    for name, record, known, right in _by_endpoint(history):
        shares = _shares(right[known].astype(np.float64))
        asked = f"{sum(record.by_round):,}"
        rows.append((name, asked, f"{int(known.sum()):,}", *shares, _amount(record.usd), *_seconds(record.seconds)))
    return Section(
        "Known: answers with feedback; for an endpoint, labelled answers for which it was asked or probed. Costs, "
        "where known, are per answer, for an endpoint per call; seconds are the mean and the 95th percentile. The "
        "total paid to each endpoint, including probes and failures, is in focalroute ledger.",
        table=TextTable(columns, rows, frozenset((0,))),
    )


def _shares(worth: F64) -> tuple[str, str]:
    if len(worth) < FEW:
        return "", ""
    return f"{worth.mean():.3f}", span(interval([worth]))


def _seconds(taken: F64) -> tuple[str, str]:
    return (f"{taken.mean():.2f}", f"{np.quantile(taken, 0.95):.2f}") if len(taken) else ("", "")


def _amount(usd: float | None) -> str:
    return "" if usd is None else f"{1000 * usd:.4f}"
