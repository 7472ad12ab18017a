"""Shows progress bars; rich is imported only when one is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_REPORT_EVERY_S = 0.2


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """Show a bar on a terminal or in a notebook, if ``shown``; yield the function that advances it."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    seen = console.is_terminal or console.is_jupyter
    with Progress(*columns, console=console, transient=True, disable=not seen) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


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
