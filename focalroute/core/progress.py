"""Shows progress, on a terminal as a bar and in a log as lines; rich is imported only when it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_REPORT_EVERY_S = 0.2
_LINE_EVERY_S = 10.0  # in a log


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """Show a bar on a terminal or in a notebook, else a line every ten seconds; yield the function that advances it.

    Args:
        what: the work.
        total: its steps, if known.
        shown: whether anything is shown.
    """
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield _lines(what, total, console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


def _lines(what: str, total: int | None, console: Console) -> Callable[[int], object]:
    done, printed_at = 0, time.monotonic()

    def advance(steps: int) -> None:
        nonlocal done, printed_at
        done += steps
        if time.monotonic() - printed_at >= _LINE_EVERY_S:
            console.print(f"{what}: {done}" if total is None else f"{what}: {done} of {total}", highlight=False)
            printed_at = time.monotonic()

    return advance


@contextmanager
def gathered(advance: Callable[[int], object]) -> Iterator[Callable[[int], object]]:
    """Add up steps and report them at most five times a second and at the end, as each report may be costly."""
    steps, reported_at = 0, time.monotonic()

    def add(more: int) -> None:
        nonlocal steps, reported_at
        steps += more
        if steps and time.monotonic() - reported_at >= _REPORT_EVERY_S:
            advance(steps)
            steps, reported_at = 0, time.monotonic()

    try:
        yield add
    finally:
        if steps:
            advance(steps)
