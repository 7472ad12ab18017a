"""Makes the report page of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from focalroute.evaluate.baselines import IN_HINDSIGHT
from focalroute.evaluate.eval_result import BESIDE, Figures, OperatingPoint, Report, Row, row_comparisons
from focalroute.evaluate.metrics import BLOCK, span
from focalroute.evaluate.output import trained_on_test
from focalroute.evaluate.report_page import drawings
from focalroute.evaluate.report_page.page import Page, Section, TextTable, tasks_section

_TIMELINE = "An evaluation replays recorded replies; the receipts in a store have it: focalroute report --store STORE."
_UPDATES = "An evaluation is of one policy, without updates; those of a folder: focalroute report --policy FOLDER."


def eval_page(report: Report, updates: Section | None = None) -> Page:
    """Make the page of a report; ``updates``: the section about a policy folder, if one is given."""
    return Page(
        title=f"focalroute on {Path(report.log).name}",
        facts=_facts(report),
        lead=_lead(report),
        sections={
            "curve": _curve(report),
            **_played(report, report.figures),
            "timeline": Section(_TIMELINE),
            "updates": updates or Section(_UPDATES),
            "figures": _figures(report),
        },
    )


def _facts(report: Report) -> dict[str, str]:
    seeds, task = str(report.seed), "not shown"
    if report.seeds > 1:
        seeds += f" to {report.seed + report.seeds - 1}"
    if report.show_task:
        task = "shown"
    facts = {
        "test queries": f"{report.n_test:,}",
        "before them": f"{report.n_train:,}",
        "split": report.split,
        "seeds" if report.seeds > 1 else "seed": seeds,
        "feedback": str(report.feedback_plan),
        "task": task,
        "policy": report.policy,
    }
    if report.bad_rows:
        facts["bad rows left out"] = f"{report.bad_rows:,}"
    if report.unpriced:
        facts["of unknown price, counted as free"] = ", ".join(report.unpriced)
    if report.never_right:
        facts["never right"] = ", ".join(report.never_right)
    return facts


def _lead(report: Report) -> str:
    point, free = report.shown, _is_free(report)
    warning, paid = "", f"At {_percent(point.cost_ratio)} of the cost of asking all,"
    if report.seen:
        warning = f"{trained_on_test(report.seen, report.n_test)} "
    if free:
        paid = "All calls are free, or of unknown cost:"
    baselines = []
    for row in report.methods:
        if row.name in BESIDE:
            spent = f"with {row.calls_per_query:.1f}" if free else f"at {_percent(row.cost_ratio)}"
            baselines.append(f"{row.name} {row.accuracy:.3f} {spent}")
    return (
        f"{warning}{paid} focalroute has {report.scored} {point.accuracy:.3f} (95 % interval "
        f"{span(point.accuracy_ci95)}) with {point.calls_per_query:.1f} calls a query; {', '.join(baselines)}."
    )


def _is_free(report: Report) -> bool:
    """Whether no call has a known cost above zero."""
    return not any(row.cost_ratio for row in (*report.focalroute, *report.methods))


def _curve(report: Report) -> Section:
    free = _is_free(report)
    points, oracle = [], ""
    for row in (*report.focalroute, *report.methods):
        if row.name == "oracle":
            oracle = f" Not drawn: the oracle, which always has the best answer of any endpoint, at {row.accuracy:.3f}."
            continue
        cost = row.calls_per_query if free else row.cost_ratio
        ours, hollow = isinstance(row, OperatingPoint), row.name in IN_HINDSIGHT
        points.append(drawings.MethodPoint(row.name, cost, row.accuracy, *row.accuracy_ci95, ours=ours, hollow=hollow))
    return Section(
        f"{report.scored.capitalize()} against cost; up and to the left is better. Bars are 95 % intervals. The line "
        "joins focalroute's operating points; a random mixture of two of them is on the line between. All other "
        f"points are baselines or controls; the hollow one was chosen on the test part.{oracle}",
        drawings.CostQuality(tuple(points), report.scored, "calls" if free else "share"),
    )


def _played(report: Report, figures: Figures) -> dict[str, Section]:
    """Return the sections on the test queries."""
    return {
        "over-time": _over_time(report, figures.over_time),
        "errors": _errors(report, figures),
        "when-right": Section(
            "The test queries by how many endpoints of the pool have the right answer recorded (RL-Focal's consensus "
            "plot). A vote needs many of them; a method that is right with few knows which endpoints to believe. "
            "Below: the share of queries of each kind.",
            figures.when_right,
        ),
        "calibration": _calibration(figures),
        "rounds": Section(
            "On how many of the queries each endpoint is asked. Round 1 is decided by the query and by the record of "
            "the endpoints; in later rounds, also by the replies so far.",
            figures.rounds,
        ),
        "diversity": Section(
            "Focal diversity of every two endpoints over their recorded answers to the test queries: 0, they fail on "
            "the same queries; 1, never on the same. A member adds most beside one that it is diverse from.",
            figures.diversity,
        ),
        "tasks": tasks_section(figures.tasks, figures.tasks_left, "This log names no tasks."),
    }


def _over_time(report: Report, drawn: drawings.OverTime) -> Section:
    listed = [f"{number}: after {mark.at:.0f}, {mark.what}" for number, mark in enumerate(drawn.marks, 1)]
    changes = " No change of an endpoint was detected."
    if listed:
        first = " with the first seed" if report.seeds > 1 else ""
        changes = f" Lines mark changes of endpoints that were detected{first}. {'; '.join(listed)}."
    return Section(
        f"Means over {drawn.width} consecutive test queries, all seeds. Above: {report.scored}; all lines rise and "
        "fall together where the queries get easier or harder. Below: focalroute's cost as a share of asking all "
        f"endpoints the same queries, and its seconds.{changes}",
        drawn,
    )


def _errors(report: Report, figures: Figures) -> Section:
    corrected = [
        f"of the errors of {name} it corrects {_percent(one.corrected / one.errors)}"
        for name, one in figures.errors.found.items()
        if one.errors
    ]
    caption = ""
    if corrected:
        caption = "; ".join(corrected).capitalize() + "."
    if report.scored != "accuracy":
        caption += " An answer counts as right if it scores at least a half."
    return Section(
        f"{report.shown.title} beside the best single endpoint and the vote of all. Corrected: it is right where the "
        f"other is wrong; spoilt: the reverse; the difference is the gain. {caption}",
        figures.errors,
    )


def _calibration(figures: Figures) -> Section:
    found = figures.calibration
    if found.expected_error is None:
        return Section("No query was answered, so there is no confidence to check.")
    return Section(f"{drawings.CALIBRATION}{found.expected_error:.3f}.", found)


def _figures(report: Report) -> Section:
    shown = report.shown
    columns = ("", report.scored, "95 %", "cost ratio", "$ per 1,000", "calls", "s", "p95 s", "ECE",
               f"{shown.title} minus it", "95 %", "curve minus it", "95 %")  # fmt: skip
    ours = [id(row) for row in report.focalroute]
    every: list[Row] = sorted((*report.focalroute, *report.methods), key=lambda row: -row.accuracy)
    return Section(
        "Curve minus it: focalroute's curve at the method's own cost, minus the method; empty where the method costs "
        "less than every operating point. best-single-hindsight and oracle know the test part; shuffled asks the "
        "endpoints that focalroute asked on another query. Cost ratio: the cost divided by that of asking every "
        "endpoint. ECE: the expected calibration error. "
        "s: seconds until the answer, mean and "
        f"p95{', modelled: the log has none' * report.modelled_seconds}. Intervals are Student's "
        f"over blocks of up to {BLOCK} consecutive test queries and over seeds. Differences are paired; their "
        "intervals are corrected for their number.",
        table=TextTable(
            columns,
            [tuple(_cells(row, shown)) for row in every],
            frozenset(number for number, row in enumerate(every) if id(row) in ours),
        ),
    )


def _cells(row: Row, shown: OperatingPoint) -> Iterator[str]:
    error, *differences = row_comparisons(row, shown)
    yield from (row.title, *row.cells(), error)
    for found in differences:
        yield from found.cells() if found else ("", "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"
