"""One look for every progress bar; rich is imported only when one is shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TELL_EVERY_S = 0.2


@contextmanager
def progress_bar(what: str, total: int | None, *, shown: bool) -> Iterator[Callable[[int], object]]:
    """A bar on standard error, if that is a terminal and it is to be ``shown``; gives the function that moves it on."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def gathered(advance: Callable[[int], object]) -> Iterator[Callable[[int], object]]:
    """Steps added up, and told five times a second at the most, as each telling may have far to go; all in the end."""
    steps, told = 0, time.monotonic()

    def add(more: int) -> None:
        nonlocal steps, told
        steps += more
        if steps and time.monotonic() - told >= _TELL_EVERY_S:
            advance(steps)
            steps, told = 0, time.monotonic()

    try:
        yield add
    finally:
        if steps:
            advance(steps)
