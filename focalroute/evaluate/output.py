"""Writes the output of commands as tables and files."""

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

_UNLIMITED_WIDTH = 100_000  # characters, more than any table has


def check_writable(file: Path | None, *used: str | Path | None) -> None:
    """Check before the work starts that a file can probably be written at its end.

    Args:
        file: the file to write; None: there is none.
        used: other files that are read or written.

    Raises:
        ConfigError: it is a folder, its folder does not exist, it may not be written, or it is one of ``used``.
    """
    if file is None:
        return
    if any(file.resolve() == Path(other).resolve() for other in used if other is not None):
        raise ConfigError(f"{file}: is also read or written for another purpose; give another name")
    if file == STANDARD_OUTPUT:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise ConfigError(f"{file}: cannot be written: give a file in a folder that exists")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{file}: cannot be written: give a file that you may write")


def check_folder(out: Path) -> None:
    """Check before the work starts that policies can be published to a folder, which may be new.

    Raises:
        ConfigError: it is a file, or may not be written or made.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out: {out} is a file; give a folder of policy bundles, or the name of a new one")
    existing = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise ConfigError(f"out: {out} cannot be written; give a folder that you may write")


def write_file(file: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text may also go to `STANDARD_OUTPUT`.

    Raises:
        ConfigError: it cannot be written.
    """
    if isinstance(content, str) and file == STANDARD_OUTPUT:
        sys.stdout.write(content)
        return
    data = content.encode() if isinstance(content, str) else content
    with refusing(file, "written"):
        if file.exists() and not (file.is_file() and os.access(file.resolve().parent, os.W_OK)):
            file.write_bytes(data)  # it is a pipe or a device, or its folder takes no new files
        else:
            replace_whole(file, data)


def write_and_show(
    report: Mapping[str, Any], show: Callable[[], None], json_file: Path | None, *, printed: bool = False
) -> None:
    """Write a report as JSON if a file is given, then show its table if standard output is free.

    Args:
        report: the report's JSON object.
        show: prints the table.
        json_file: the file; None: no JSON is written. The table is not shown if this is `STANDARD_OUTPUT`.
        printed: whether something else went to standard output, so that the table is not shown.

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
    """Yield a sentence for each problem of a log: what is left out of the figures, and what probably distorts them."""
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
        piped_width: its width in characters if standard output is not a terminal.
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
    """Print a table without cutting cells: if the terminal is too narrow, the last columns are left out.

    Args:
        columns: the headings; the first two columns are always printed.
        title: a line above the table.
        left: headings of left-aligned columns; the others are right-aligned.
        strong: first cells of the rows to print in bold.
    """
    from rich.box import SIMPLE
    from rich.measure import Measurement
    from rich.table import Table

    rows, terminal = list(rows), console()
    unlimited = terminal.options.update(max_width=_UNLIMITED_WIDTH)
    for shown in range(len(columns), 1, -1):
        grid = Table(box=SIMPLE)
        for column in columns[:shown]:
            grid.add_column(column, justify="left" if column in left else "right", no_wrap=True)
        for row in rows:
            grid.add_row(*row[:shown], style="bold" if row[0] in strong else None)
        needed = Measurement.get(terminal, unlimited, grid).maximum
        if needed <= terminal.width or not sys.stdout.isatty():
            break
    terminal.width = max(needed, terminal.width)
    if title is not None:
        print(title)
    terminal.print(grid)
    if shown < len(columns):
        terminal.print(f"No room for: {', '.join(columns[shown:])}. A wider terminal, a file or --json has them.")
