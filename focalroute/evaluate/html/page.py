"""The page: one file, no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from focalroute.evaluate.html import _plots, numbers
from focalroute.evaluate.html._plots import Line
from focalroute.evaluate.lineup import IN_HINDSIGHT
from focalroute.evaluate.metrics import BLOCK, Comparison
from focalroute.evaluate.points import Point
from focalroute.evaluate.replayed import Replayed
from focalroute.evaluate.report import Method, Report, named

__all__ = ["SECTIONS", "check_extra", "page"]

#: The page's sections: what each is linked by, and its title.
SECTIONS = {
    "curve": "Cost and quality",
    "over-time": "Over the test stream",
    "errors": "Errors corrected",
    "when-right": "When exactly n endpoints are right",
    "calibration": "Can the confidence be believed?",
    "rounds": "Who is asked, by round",
    "diversity": "How differently the endpoints fail",
    "tasks": "Who is asked, by task",
    "figures": "All figures",
}
_BESIDE = ("best-single-train", "plurality")


def check_extra() -> None:
    """Say so if pages cannot be made.

    Raises:
        ConfigError: the extra ``report`` is not installed.
    """
    _plots.check()


def page(report: Report) -> str:
    """The report as HTML.

    Raises:
        ConfigError: the extra ``report`` is not installed.
        ValueError: the report does not hold what was played.
    """
    check_extra()
    if report.replayed is None:
        raise ValueError("replayed: a page is made from what was played; give the report that evaluate returned")
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    title = f"focalroute on {Path(report.log).name}"
    body = "\n".join(_body(report, report.replayed, title))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _body(report: Report, replayed: Replayed, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield _facts(report)
    yield f'<p class="lead">{_lead(report, replayed)}</p>'
    yield _curve(report)
    yield '<div class="grid">'
    yield _over_time(report, replayed)
    yield _errors(report, replayed)
    yield _when_right(report, replayed)
    yield _calibration(report, replayed)
    yield _rounds(replayed)
    yield _diversity(replayed)
    yield _tasks(replayed)
    yield "</div>"
    yield _figures(report, replayed)


def _facts(report: Report) -> str:
    facts = {
        "test queries": f"{report.n_test:,}",
        "before them": f"{report.n_train:,}",
        "split": report.split,
        "seeds": str(report.seed) if report.seeds == 1 else f"{report.seed} to {report.seed + report.seeds - 1}",
        "feedback": report.feedback,
        "task": "shown" if report.show_task else "not shown",
        "policy": report.policy,
    }
    listed = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{listed}</dl>'


def _lead(report: Report, replayed: Replayed) -> str:
    point = report.focalroute[replayed.shown]
    others = {row.name: row for row in report.methods}
    said = ", ".join(f"{name} {others[name].accuracy:.3f} at {_percent(others[name].cost_ratio)}" for name in _BESIDE)
    low, high = point.accuracy_ci95
    return (
        f"At {_percent(point.cost_ratio)} of the cost of asking everybody, focalroute has {report.scored} "
        f"<strong>{point.accuracy:.3f}</strong> ({low:.3f} to {high:.3f}) with {point.calls_per_query:.1f} calls a "
        f"query; {said}."
    )


def _curve(report: Report) -> str:
    methods = [row for row in report.methods if row.name != "oracle"]
    drawn = "".join(
        f'<div class="{where}">'
        + _plots.cost_quality(
            report.focalroute, methods, frozenset(IN_HINDSIGHT), report.scored, narrow=where == "narrow"
        )
        + "</div>"
        for where in ("wide", "narrow")
    )
    oracle = next(row for row in report.methods if row.name == "oracle")
    return _section(
        "curve",
        drawn,
        f"{report.scored.capitalize()} against cost; up and to the left is better. Bars are 95 % intervals. The line "
        "joins focalroute's operating points; between two of them either may be played by chance. Every other point is "
        "a baseline or control; the hollow one was picked by looking at the test part. Not drawn: the oracle, which "
        f"always has the best answer that anybody gave, at {oracle.accuracy:.3f}.",
    )


def _over_time(report: Report, replayed: Replayed) -> str:
    width = numbers.rolling_width(report.n_test)
    lines = [Line(_at(report, replayed), numbers.rolling(replayed.worth().mean(axis=0), width))]
    lines += [Line(name, numbers.rolling(replayed.worth(name).mean(axis=0), width)) for name in _BESIDE]
    paid = np.mean([run.played.usd for run in replayed.ours[replayed.shown]], axis=0)
    everybody = numbers.rolling(replayed.table.usd[replayed.test].sum(axis=1), width)
    spent = numbers.rolling(paid, width)
    cost = np.divide(spent, everybody, out=np.zeros_like(spent), where=everybody > 0)
    return _section(
        "over-time",
        _plots.over_time(lines, cost, width, report.scored),
        f"Means over {width} consecutive test queries, all seeds. Above: {report.scored}; all lines rise and fall "
        "together where the queries get easier or harder. Below: what focalroute paid of what asking everybody on the "
        "same queries costs.",
    )


def _errors(report: Report, replayed: Replayed) -> str:
    found = {name: numbers.corrected(replayed, name) for name in _BESIDE}
    said = []
    for name, one in found.items():
        if one.errors:
            said.append(f"of the errors of {name} it corrects {_percent(one.corrected / one.errors)}")
    wrong = "" if report.scored == "accuracy" else " An answer counts as right if it scores at least a half."
    return _section(
        "errors",
        _plots.errors(found),
        f"{_at(report, replayed)} beside the best single endpoint and the vote of all. Corrected: it is right where "
        "the other is wrong; spoilt: the reverse; the difference is the gain. "
        + ("; ".join(said).capitalize() + "." if said else "")
        + wrong,
    )


def _when_right(report: Report, replayed: Replayed) -> str:
    rows, ours = numbers.consensus(replayed)
    lines = [Line(_at(report, replayed), ours), *(Line(name, numbers.consensus(replayed, name)[1]) for name in _BESIDE)]
    return _section(
        "when-right",
        _plots.when_right(rows, lines, report.scored),
        "The test queries by how many endpoints of the pool have the right answer recorded. A vote needs many of them; "
        "what is right with few knows whom to believe. Below: how many queries there are of each kind.",
    )


def _calibration(report: Report, replayed: Replayed) -> str:
    found = numbers.calibration(replayed)
    if not found.count.any():
        return _section("calibration", "", "No query was answered, so that there is no confidence to check.")
    return _section(
        "calibration",
        _plots.reliability(found, report.scored),
        f"Answers by their confidence, in {numbers.BINS} bins, and what those of a bin turned out to be worth. On the "
        "dashed line it is just as sure as it is right; below it is too sure. Expected calibration error, the mean "
        f"distance from that line: {found.expected_error:.3f}.",
    )


def _rounds(replayed: Replayed) -> str:
    shares = numbers.asked_by_round(replayed)
    return _section(
        "rounds",
        _plots.rounds(replayed.table.names, shares),
        "On how many of the queries each endpoint is asked. Round 1 is decided by the query and by the record of the "
        "endpoints; in later rounds the replies so far are known, and whoever is then asked is asked because of them.",
    )


def _tasks(replayed: Replayed) -> str:
    tasks, asked, more = numbers.asked_by_task(replayed)
    if not tasks:
        return _section("tasks", "", "This log names no tasks.")
    left = f" The {more} smallest tasks are left out." if more else ""
    return _section(
        "tasks",
        _plots.matrix("tasks", tasks, replayed.table.names, asked, digits=0),
        "On how many percent of a task's queries each endpoint is asked. Columns of even shade: the topic makes no "
        f"difference to whom it asks.{left}",
    )


def _diversity(replayed: Replayed) -> str:
    names = replayed.table.names
    return _section(
        "diversity",
        _plots.matrix("diversity", names, names, numbers.pairwise_diversity(replayed), digits=2),
        "Focal diversity of every two endpoints over their recorded answers to the test queries: 0, they fail on the "
        "same queries; 1, never on the same. A member adds most beside one that it is diverse from.",
    )


def _figures(report: Report, replayed: Replayed) -> str:
    shown = report.focalroute[replayed.shown]
    columns = (
        "",
        report.scored,
        "95 %",
        "cost ratio",
        "$ per 1,000",
        "calls",
        f"{_at(report, replayed)} minus it",
        "95 %",
        "curve minus it",
        "95 %",
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    every: list[Point | Method] = [*report.focalroute, *report.methods]
    rows = "\n".join(_row(row, shown) for row in sorted(every, key=lambda row: -row.accuracy))
    return (
        f'<section id="figures">\n<h2>{SECTIONS["figures"]}</h2>\n'
        "<p class=\"soft\">Curve minus it: focalroute's curve at the method's own cost, minus the method; empty where "
        "the method costs less than every operating point. best-single-hindsight and oracle know the test part; "
        "shuffled asks whom focalroute asked on another query. All intervals are paired where two are compared, by a "
        f"bootstrap over blocks of up to {BLOCK} consecutive test queries, each with its answers of all seeds.</p>\n"
        '<div class="scroll" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n</section>"
    )


def _row(row: Point | Method, shown: Point) -> str:
    ours = isinstance(row, Point)
    cells = [
        f"{row.accuracy:.4f}",
        _interval(row.accuracy_ci95, ".3f"),
        f"{row.cost_ratio:.3f}",
        f"{row.cost_usd_per_query * 1000:.4f}",
        f"{row.calls_per_query:.2f}",
        *_difference(None if isinstance(row, Point) else shown.minus[row.name]),
        *_difference(None if isinstance(row, Point) else row.curve_minus),
    ]
    data = "".join(f"<td>{cell}</td>" for cell in cells)
    kind = ' class="ours"' if ours else ""
    return f'<tr{kind}><th scope="row">{escape(named(row))}</th>{data}</tr>'


def _section(name: str, drawn: str, caption: str) -> str:
    return (
        f'<section id="{name}">\n<h2>{SECTIONS[name]}</h2>\n<figure>\n{drawn}\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>\n</section>"
    )


def _at(report: Report, replayed: Replayed) -> str:
    return named(report.focalroute[replayed.shown])


def _percent(share: float) -> str:
    return f"{100 * share:.0f}\u00a0%"


def _interval(ends: Sequence[float], form: str) -> str:
    return f"{ends[0]:{form}} to {ends[1]:{form}}"


def _difference(found: Comparison | None) -> tuple[str, str]:
    return ("", "") if found is None else (f"{found.difference:+.3f}", _interval(found.ci95, "+.3f"))
