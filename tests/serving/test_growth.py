"""What an ask costs as pools, windows and questions grow: lines and bytes are counted, never time."""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from focalroute.core.records import Member, Outcome, Reply, Round, Usage
from focalroute.money.budget import BudgetGuard
from focalroute.observe.observer import Observer
from focalroute.policy import bundle
from focalroute.policy.fallback import Guarded
from focalroute.serving.ask import Ask
from focalroute.serving.query import make_query
from focalroute.serving.recording import make_answer


def asking(n: int, *, window: int = 60, choices: int = 4) -> Callable[[], None]:
    """One ask of n endpoints whose window is full: rounds of 3 and of 1 member, a STOP, the answer and its row."""
    rng, policy, names = random.Random(0), bundle.cold(), [f"e{i}" for i in range(n)]
    observer = Observer(names, [0.001 * (i + 1) for i in range(n)], window=window)
    for number in range(window):
        asked = rng.sample(names, 2)
        members = {name: Member(1, 0, rng.randrange(20, 200), rng.random(), None) for name in asked}
        observer.learn(Outcome(str(number), members, {name: float(rng.random() < 0.6) for name in asked}))
    replies = [Reply(name, "A", i % choices, None, "parsed", Usage(60, 6)) for i, name in enumerate(names[:4])]

    def ask() -> None:
        query = make_query("Which?", choices=[f"choice {k}" for k in range(choices)])
        ask_budget = BudgetGuard(None, ()).ask_budget(None, query.id)
        asked = Ask(
            query, Guarded(policy, names), observer.begin(query), ask_budget, deadline=0.0, rng=random.Random(1)
        )
        for came in (replies[:3], replies[3:], ()):
            seen = asked.observe(0.1)
            decision = asked.decide(seen, order=observer.order(), eligible=lambda *_: True, explore=True)
            asked.add_round(Round(seen, decision, tuple(came)))
            asked.fuse()
        make_answer(asked, store_text=False)

    ask()
    return ask


@pytest.fixture(autouse=True)
def without_the_garbage_of_other_tests() -> Iterator[None]:
    """Which would be freed in the midst of what is counted, and count itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def lines(work: Callable[[], None]) -> int:
    """Lines of Python that it runs, those of every round of a comprehension included."""
    count = 0

    def tracing(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return tracing

    before = sys.gettrace()
    sys.settrace(tracing)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def allocated(work: Callable[[], None]) -> int:
    """Bytes that it has at a time at the most, arrays included; the least of some runs, as Python warms up to it."""
    return min(_allocated(work) for _ in range(30))


def _allocated(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("count", [lines, pytest.param(allocated, marks=pytest.mark.slow)])
def test_an_ask_does_not_depend_on_the_length_of_the_window(count: Callable[[Callable[[], None]], int]) -> None:
    counted = [count(asking(6, window=window)) for window in (40, 400, 4000)]
    assert max(counted) < 1.05 * min(counted), counted  # other numbers make other decisions


@pytest.mark.parametrize("name", ["n", "choices"])
def test_an_ask_grows_no_faster_than_endpoints_and_choices(name: str) -> None:
    """Twice as many endpoints, or choices, add twice as many lines as those before did."""
    sizes = (8, 16, 32, 64, 128) if name == "n" else (4, 8, 16, 32)
    counted = [lines(asking(**({"n": 6} | {name: size}))) for size in sizes]
    added = [after - before for before, after in pairwise(counted)]
    assert counted[-1] / counted[0] < sizes[-1] / sizes[0]
    assert all(later <= 2.2 * earlier for earlier, later in pairwise(added)), counted
