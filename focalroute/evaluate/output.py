"""Writes the output of commands: tables and files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focalroute.core.errors import ConfigError
from focalroute.core.files import refusing, replace_whole

if TYPE_CHECKING:
    from rich.console import Console


#: The file name that means standard output.
STANDARD_OUTPUT = Path("-")
#: How many of a store's latest answers are read.
LATEST = 10_000

_WIDEST = 100_000  # characters of a table


def check_writable(file: Path | None, *used: str | Path | None) -> None:
    """Check, before the long work, that a file can be written, as far as that can be known.

    Args:
        file: the file to write; None: there is none.
        used: other files that are read or written.

    Raises:
        ConfigError: it is a folder, its folder does not exist, it may not be written, or it is one of ``used``.
    """
    if file is None:
        return
    if any(file.resolve() == Path(other).resolve() for other in used if other is not None):
        raise ConfigError(f"{file}: is read or written for something else, too; give another name")
    if file == STANDARD_OUTPUT:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(f"{file}: cannot be written: give a file in a folder that exists")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{file}: cannot be written: give a file that you may write")


def check_folder(out: Path) -> None:
    """Check, before the long work, that policies can be published to a folder, which may be new.

    Raises:
        ConfigError: it is a file, or may not be written or made.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out: {out} is a file; give a folder of policy bundles, or the name of a new one")
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError(f"out: {out} cannot be written; give a folder that you may write")


def write_file(file: Path, content: str | bytes) -> None:
    """Write a file, whole or not at all, or text to standard output.

    Raises:
        ConfigError: it cannot be written.
    """
    if isinstance(content, str) and file == STANDARD_OUTPUT:
        sys.stdout.write(content)
        return
    data = content.encode() if isinstance(content, str) else content
    with refusing(file, "written"):
        if file.exists() and not (file.is_file() and os.access(file.resolve().parent, os.W_OK)):
            file.write_bytes(data)  # a pipe or a device, or a folder that takes no new file
        else:
            replace_whole(file, data)


def write_and_show(
    report: Mapping[str, Any], show: Callable[[], None], json_file: Path | None, *, printed: bool = False
) -> None:
    """Write a report as JSON, then show its table, unless the JSON goes to standard output, or something was printed.

    Raises:
        ConfigError: the JSON cannot be written.
    """
    try:  # the table is shown even if the disk is full, and the JSON is written before a closed pipe can stop the table
        if json_file is not None:
            write_file(json_file, json.dumps(report, indent=2, allow_nan=False) + "\n")
    finally:
        if json_file != STANDARD_OUTPUT and not printed:
            show()


def log_problems(bad_rows: int, unpriced: Sequence[str], never_right: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each part of a log that is not in the figures, or probably spoils them."""
    if bad_rows:
        yield f"Left out as bad rows of the log: {bad_rows}."
    if unpriced:
        yield f"Counted as free, as no price is known: {', '.join(unpriced)}."
    if never_right:
        yield f"Never right: {', '.join(never_right)}; are answers and labels written in the same form?"


def trained_on_test(seen: int, tested: int) -> str:
    """The warning that a policy is evaluated on questions it was trained on."""
    return (
        f"CAUTION: the policy was trained on {seen} of these {tested} test questions, so what follows flatters it; "
        "evaluate it on a log that it has not seen."
    )


def console(piped_width: int | None = None) -> Console:
    """A console for standard output that prints names and paths as they are.

    Args:
        piped_width: its width in characters if that is not a terminal.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else piped_width
    return Console(width=width, markup=False, emoji=False, highlight=False)


def show_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    left: Collection[str] = ("",),
    strong: Collection[str] = (),
) -> None:
    """Print a table. No cell is cut: columns that a terminal is too narrow for are left out, the last ones first.

    Args:
        columns: the headings; the first two columns are always printed.
        title: a line above it.
        left: headings of left-aligned columns; the others are right-aligned.
        strong: first cells of the rows to print in bold.
    """
    from rich.box import SIMPLE
    from rich.measure import Measurement
    from rich.table import Table

    rows, there = list(rows), console()
    widest = there.options.update(max_width=_WIDEST)
    for shown in range(len(columns), 1, -1):
        grid = Table(box=SIMPLE)
        for column in columns[:shown]:
            grid.add_column(column, justify="left" if column in left else "right", no_wrap=True)
        for row in rows:
            grid.add_row(*row[:shown], style="bold" if row[0] in strong else None)
        needed = Measurement.get(there, widest, grid).maximum
        if needed <= there.width or not sys.stdout.isatty():
            break
    there.width = max(needed, there.width)
    if title is not None:
        print(title)
    there.print(grid)
    if shown < len(columns):
        there.print(f"No room for: {', '.join(columns[shown:])}. A wider terminal, a file or --json has them.")
