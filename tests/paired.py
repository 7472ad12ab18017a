"""Measures work relative to plain Python work in the same process, so no test fails because the machine is slow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

__all__ = ["assert_cpu_at_most", "assert_measured_at_most", "cpu_s"]

_ITEMS = ", ".join(['{"a": [1.5, "text"]}'] * 20_000)


def cpu_s(work: Callable[[], object]) -> float:
    """The CPU seconds of this process, all its threads, while this is called."""
    began = time.process_time()
    work()
    return time.process_time() - began


def assert_cpu_at_most(controls: float, work: Callable[[], object]) -> None:
    """This takes at most as much CPU time as this many controls, the first time: a second may find it cached."""
    assert_measured_at_most(controls, lambda: cpu_s(work), attempts=1)


def assert_measured_at_most(controls: float, measure: Callable[[], float], attempts: int = 10) -> None:
    """Of these attempts, one measures at most the CPU seconds of this many controls.

    Each attempt has its own control: others on the machine slow both down. The bound's room is for what they do to one
    of the two alone; they may do more to several attempts in a row, but code that is too slow fails in all of them.
    """
    ratios: list[float] = []
    for _ in range(attempts):
        ratios.append(measure() / cpu_s(_control))
        if ratios[-1] <= controls:
            return
    raise AssertionError(f"takes {min(ratios):.1f} times as long as the control; at most {controls} are allowed")


def _control() -> None:
    """Fixed work of 40 to 80 ms."""
    for _ in range(3):
        json.loads(f"[{_ITEMS}]")
