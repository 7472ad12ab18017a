"""Keeps the figures of the pages to what was measured: ``python -m tests.figures``.

docs/results/data holds the tables that benchmarks printed, a file for each page, with the day and the command. In a
page a comment names the table below it, ``<!-- table: quality/baselines -->``, and the table is written from the data,
with its day and command unless the table before it has the same. ``<!-- table: quality/rivals rows mmlu9,* -->`` shows
some of its rows, each named by its first cells or a pattern of them. In prose, and on other pages, a comment behind a
figure names its cell by table, row and column: ``2.8 points (0.9 to
4.8)<!--quality/held-at-0.2:minus-plurality,mmlupro12-stream-->``; ``#2`` or ``#3-5`` behind it picks some
of the cell's numbers, and a second cell behind `` - `` is taken from the first.

    python -m tests.figures                         say which figures differ from their cells
    python -m tests.figures write                   write the tables into the pages
    python -m tests.figures take KEY ... < PRINTED  take the printed tables, in order; the key "-" skips one
        --by COMMAND                                what printed them, if it is not what printed them before
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypedDict

from tests.benchmarks.harness import Table, markdown_table

__all__ = ["cell", "findings", "named", "pages", "take", "unmarked", "write", "written"]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "results" / "data"
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*\d|\d)?(?:\.\d+|(?<=\d))")
_TABLE = re.compile(
    r"^(<!-- table: ([\w/.-]+)(?: rows ([^>]+))? -->)\n+(?:Printed on .*:\n\n)?(?:\|.*\n)*\n*", re.MULTILINE
)
_MARK = re.compile(r"<!--([\w.-]+/[\w.-]+):([^#>]+?)(?:#(\d)(?:-(\d))?)?-->")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_POINTS = re.compile(r"\d points?\b")
_BLOCK = re.compile(r"\n\n|\n(?=[-*|])|\|")


class Measured(TypedDict):
    """A table as a command printed it, and where it was taken from."""

    taken: str
    command: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def written(text: str) -> str:
    """A page with its tables as the data have them."""
    before = ""

    def table(found: re.Match[str]) -> str:
        nonlocal before
        measured, last = _measured(found[2]), before
        before = f"{measured['taken']} by `{measured['command']}`"
        origin = "" if before == last else f"Printed on {before}:\n\n"
        return f"{found[1]}\n\n{origin}{_markdown(found[2], (found[3] or '*').split())}\n\n"

    return _TABLE.sub(table, text).rstrip() + "\n"


def findings(page: Path) -> Iterator[str]:
    """Say of each table and figure of a page that differs from the data where it is, and what it should be."""
    text, name = page.read_text("utf-8"), page.relative_to(ROOT).as_posix()
    for found, right in zip(_TABLE.finditer(text), _TABLE.finditer(written(text)), strict=True):
        if found[0].rstrip() != right[0].rstrip():
            yield f"{name}: {found[2]} is not what was taken: python -m tests.figures take {found[2]} < PRINTED"
    for found in _MARK.finditer(text):
        before = text[: found.start()].rpartition("\n\n")[2].rpartition("-->")[2]
        measured = [cell(found[1], place) for place in found[2].split(" - ")]
        first, *less = [_picked(text, found[3], found[4]) for text in measured]
        wanted = [str(Decimal(one) - Decimal(two)) for one, two in zip(first, *less, strict=True)] if less else first
        if not _agree(before, wanted, percent="%" in measured[0]):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{line}: {before.strip()[-40:]!r} is not {' - '.join(measured)!r} ({found[1]}:{found[2]})"


def named(text: str) -> set[str]:
    """The tables that a page shows or cites."""
    return {found[2] for found in _TABLE.finditer(text)} | {found[1] for found in _MARK.finditer(text)}


def unmarked(text: str) -> list[str]:
    """The parts of a page's prose that have a figure in points without a comment that names its cell."""
    found = []
    for block in _BLOCK.split(_CODE.sub("", _TABLE.sub("", text))):
        *before, last = _MARK.sub("<!--", block).split("<!--")
        found += [part for part in before if len(_POINTS.findall(part)) > 1] + [last] * bool(_POINTS.search(last))
    return [part.strip() for part in found]


def cell(table: str, place: str) -> str:
    """The text of a table's cell.

    Args:
        table: the file and the table's name in it, with a slash between.
        place: the first cells of its row and the head of its column, in small letters, "-" for all but letters, digits
            and dots, with commas between.

    Raises:
        KeyError: there is none.
    """
    *row, column = place.split(",")
    measured = _measured(table)
    columns = [_slug(text) for text in measured["head"]]
    for cells in measured["rows"]:
        if [_slug(text) for text in cells[: len(row)]] == row and column in columns[len(row) :]:
            return cells[columns.index(column, len(row))]
    raise KeyError(f"{table} has no cell {place}")


def take(keys: Sequence[str], printed: str, command: str | None = None) -> None:
    """Put printed tables into the data, and all of the data into the pages.

    Args:
        keys: of each printed table its name, in order; "-" skips one.
        printed: what a command printed, with tables in Markdown.
        command: the command; of a table that is there already, by default the one that printed it before.
    """
    tables = re.findall(r"(?:^ *\|.*\n?)+", printed, re.MULTILINE)
    if len(keys) != len(tables):
        raise SystemExit(f"{len(tables)} tables were printed, and {len(keys)} named; '-' skips one")
    for key, table in zip(keys, tables, strict=True):
        if key == "-":
            continue
        head, _, *rows = [[text.strip() for text in line.strip().strip("|").split("|")] for line in table.splitlines()]
        file, _, name = key.partition("/")
        path = DATA / f"{file}.json"
        held = json.loads(path.read_text("utf-8")) if path.exists() else {}
        by = command or held[name]["command"]
        held[name] = Measured(taken=str(datetime.date.today()), command=by, head=head, rows=rows)
        path.write_text(_dumped(held), "utf-8")
    write()


def write() -> None:
    """Write the tables of all pages."""
    for page in pages():
        page.write_text(written(page.read_text("utf-8")), "utf-8")


def _measured(table: str) -> Measured:
    file, _, name = table.partition("/")
    found: Measured = json.loads((DATA / f"{file}.json").read_text("utf-8"))[name]
    return found


def _dumped(tables: Mapping[str, Measured]) -> str:
    """As JSON, a row a line."""
    dumps = partial(json.dumps, ensure_ascii=False)
    parts = []
    for name, table in sorted(tables.items()):
        rows = ",\n  ".join(map(dumps, table["rows"]))
        parts.append(f'{dumps(name)}: {{"taken": {dumps(table["taken"])}, "command": {dumps(table["command"])},')
        parts[-1] += f' "head": {dumps(table["head"])}, "rows": [\n  {rows}]}}'
    return "{" + ",\n ".join(parts) + "}\n"


def _markdown(table: str, names: Sequence[str]) -> str:
    measured = _measured(table)
    found = {name: [row for row in measured["rows"] if _is_named(row, name)] for name in names}
    if missing := [name for name, rows in found.items() if not rows]:
        raise KeyError(f"{table} has no row {', '.join(missing)}")
    shown = [row for row in measured["rows"] if any(row in rows for rows in found.values())]
    return markdown_table(Table(measured["head"], shown))


def _is_named(row: Sequence[str], name: str) -> bool:
    return fnmatchcase(",".join(map(_slug, row[: name.count(",") + 1])), name)


def _picked(measured: str, first: str | None, last: str | None) -> list[str]:
    """The numbers of a cell that a comment names."""
    numbers = [number.replace(",", "") for number in _NUMBER.findall(measured)]
    return numbers[int(first) - 1 : int(last or first)] if first else numbers


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _agree(prose: str, wanted: Sequence[str], *, percent: bool) -> bool:
    """Whether a text ends with these numbers, rounded as it rounds them, or all of them the other way round."""
    found = list(_NUMBER.finditer(prose))[-len(wanted) :]
    if len(found) < len(wanted):
        return False
    scale = 100 if not percent and prose[found[-1].end() :].startswith(" %") else 1
    values = [Decimal(text.replace(",", "")) * scale for text in wanted]
    turned = [-values[0], *(-value for value in reversed(values[1:]))]
    return any(
        all(_rounded(number[0], value) for number, value in zip(found, side, strict=True)) for side in (values, turned)
    )


def _rounded(shown: str, value: Decimal) -> bool:
    number = Decimal(shown.replace(",", ""))
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return abs(number - value) <= Decimal(5).scaleb(exponent - 1)


def main() -> None:
    """Check, write or take, by the first argument."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["check", "write", "take"], default="check")
    parser.add_argument("keys", nargs="*", metavar="KEY")
    parser.add_argument("--by", metavar="COMMAND")
    given = parser.parse_args()
    if given.command == "take":
        take(given.keys, sys.stdin.read(), given.by)
    elif given.command == "write":
        write()
    else:
        found = [finding for page in pages() for finding in findings(page)]
        print("\n".join(found))
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
