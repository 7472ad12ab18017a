"""Measures the work of an ask besides waiting (deciding, fusing, accounting), and how it grows.

``python -m tests.benchmarks.inside``. Without network and store: a round of 3 members, a round of 1, and STOP. These
are three observations and decisions, two fusions, the answer, its receipt and the rows for the store.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import focalroute.serving.embedders.embedding
import focalroute.serving.ensemble
from focalroute import AsyncEnsemble
from focalroute.core.records import Member, Outcome, Reply, Round, Usage
from focalroute.money.budget import BudgetGuard
from focalroute.observe.features import text_features
from focalroute.observe.observer import Observer
from focalroute.policy import bundle
from focalroute.policy.bundle import Policy
from focalroute.policy.fallback import Guarded
from focalroute.policy.onnx_model import Signature, open_model
from focalroute.serving.ask import Ask
from focalroute.serving.query import make_query
from focalroute.serving.recording import make_answer
from tests.benchmarks import harness
from tests.benchmarks.harness import CHOICES, PROMPT, Section, Table, Target, best, p99, quartiles
from tests.benchmarks.server import floor_server

USAGE = Usage(60, 6)
POOLS, WINDOWS, QUESTIONS = (2, 12, 32, 128), (100, 500, 2_000, 10_000), (2, 4, 8, 32)


class Inside:
    """Makes asks of a pool whose window and memory are full.

    Args:
        n: number of endpoints.
        window: T, the length of the window.
        choices: K, the number of choices.
        remembered: number of texts in the observer's memory.
        prompt: the question.
    """

    def __init__(
        self, *, n: int = 12, window: int = 500, choices: int = 4, remembered: int = 0, prompt: str = PROMPT
    ) -> None:
        self.rng = random.Random(0)
        self.policy: Policy = bundle.cold()
        self.choices = [*CHOICES, *(f"{i} miles" for i in range(choices))][:choices]
        self.prompt = prompt
        names = [f"endpoint-{i}" for i in range(n)]
        self.observer = Observer(names, [0.0001 * (i + 1) for i in range(n)], window=window)
        noise = np.random.default_rng(0)
        for number in range(max(window, remembered)):
            asked = self.rng.sample(names, min(n, 4))
            members = {name: Member(1, self.rng.randrange(4), self.rng.randrange(20, 200), self.rng.random(), None)
                       for name in asked}  # fmt: skip
            right = {name: float(self.rng.random() < 0.6) for name in asked}
            text = text_features(" ".join(map(str, noise.integers(0, 999, 40)))) if number < remembered else None
            self.observer.learn(Outcome(str(number), members, right, features=text))
        first = [Reply(name, "A", self.rng.randrange(choices), None, "parsed", USAGE) for name in names[:4]]
        self.replies: Sequence[Sequence[Reply]] = (first[:3], first[3:], ())

    def ask(self) -> None:
        """Make one ask."""
        query = make_query(self.prompt, choices=self.choices)
        ask_budget = BudgetGuard(None, ()).ask_budget(None, query.id)
        guarded = Guarded(self.policy, self.observer.endpoints)
        ask = Ask(query, guarded, self.observer.begin(query), ask_budget, deadline=0.0, rng=self.rng)
        for replies in self.replies:
            observation = ask.observe(0.1)
            order = self.observer.order()
            decision = ask.decide(observation, order=order, eligible=lambda *_: True, explore=True)
            ask.add_round(Round(observation, decision, tuple(replies)))
            ask.fuse()
        make_answer(ask, store_text=False)

    def learn(self, number: int) -> None:
        """Learn an outcome, which changes the window."""
        asked = [reply.endpoint for reply in self.replies[0]]
        members = {name: Member(1, 0, 6, 0.1, None) for name in asked}
        self.observer.learn(Outcome(f"new-{number}", members, {name: float(self.rng.random() < 0.6) for name in asked}))

    def seconds(self, asks: int, *, learning: bool = False) -> list[float]:
        """Return the seconds of each of this number of asks; an outcome may be learned between two."""
        taken = []
        for number in range(asks + asks // 10):
            if learning:
                self.learn(number)
            started = time.perf_counter()
            self.ask()
            taken.append(time.perf_counter() - started)
        return taken[asks // 10 :]


def in_turn(sides: Sequence[Inside], bursts: int, asks: int) -> list[float]:
    """Return each side's seconds per ask, the median over bursts; sides take turns, so all see the same machine."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(bursts):
        for side, seconds in zip(sides, taken, strict=True):
            started = time.perf_counter()
            for _ in range(asks):
                side.ask()
            seconds.append((time.perf_counter() - started) / asks)
    return [sorted(seconds)[bursts // 2] for seconds in taken]


# -- floor and profile -----------------------------------------------------------------------------------------------


def after_idling(sides: Sequence[Callable[[], None]], times: int) -> list[list[float]]:
    """Time each side this number of times, in turn, each after 20 ms of idling."""
    taken: list[list[float]] = [[] for _ in sides]
    for _ in range(times):
        for side, seconds in zip(sides, taken, strict=True):
            time.sleep(0.02)
            started = time.perf_counter()
            side()
            seconds.append(time.perf_counter() - started)
    return taken


def floor_work() -> Callable[[], None]:
    """Return the floor: the text's features, and five runs of a network by onnxruntime alone."""
    policy, noise = bundle.cold(), np.random.default_rng(0)
    decider, fusion = open_model(policy.decider_onnx), open_model(policy.fusion_onnx)

    def inputs(signature: Signature, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        made: dict[str, Any] = {"ids": np.zeros(sizes["ids"], np.int64)}
        for name, size in sizes.items():
            if name != "ids":
                made[name] = noise.random((*size, signature[name][1][-1] or 1), np.float32)
        return made

    decided = inputs(bundle.DECIDER, {"context": (1,), "endpoints": (1, 12), "ids": (12,)})
    runs = [partial(decider.run, ["logits"], decided)] * 3
    for members in (3, 4):
        seen = inputs(bundle.FUSION, {"members": (1, 4, members), "candidates": (1, 4), "ids": (1, members)})
        runs.append(partial(fusion.run, ["logits"], seen))

    def work() -> None:
        text_features(PROMPT)
        for run in runs:
            run()

    return work


_HERE = sys.modules[__name__]
#: What the profile times: a name, and the function. Names with a dash are parts of the one before.
PARTS: Sequence[tuple[str, Any, str]] = (
    ("the query is checked", _HERE, "make_query"),
    ("the budget of an ask", BudgetGuard, "ask_budget"),
    ("the policy is bound to the pool", _HERE, "Guarded"),
    ("text features, memory, a sight of the pool", Observer, "begin"),
    ("observations (3)", Ask, "observe"),
    ("decisions (3), of which", Ask, "decide"),
    ("- the Decider's network", Guarded, "decider_logits"),
    ("replies are taken in (4)", Ask, "add_round"),
    ("fusions (2), of which", Ask, "fuse"),
    ("- the Fusion's network", Guarded, "fusion_logits"),
    ("answer, receipt and row for the store", _HERE, "make_answer"),
)
#: The same in the asks of an ensemble.
REAL_PARTS: Sequence[tuple[str, Any, str]] = (
    ("query", focalroute.serving.ensemble, "make_query"),
    ("ask_budget", BudgetGuard, "ask_budget"),
    ("policy", focalroute.serving.ensemble, "Guarded"),
    ("features", focalroute.serving.embedders.embedding, "text_features"),
    ("sight", Observer, "begin"),
    ("begin", focalroute.serving.ensemble, "open_ask"),
    *[(name, Ask, name) for name in ("observe", "decide", "add_round", "fuse", "goes_on")],
    ("answer", focalroute.serving.ensemble, "make_answer"),
)


@contextmanager
def timed(parts: Sequence[tuple[str, Any, str]]) -> Iterator[dict[str, float]]:
    """Adds up the seconds that these functions take within the context, by name."""
    totals = {name: 0.0 for name, _, _ in parts}

    def timing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                totals[name] += time.perf_counter() - started

        return wrapped

    plain = [(owner, attribute, getattr(owner, attribute)) for _, owner, attribute in parts]
    for (name, owner, attribute), (_, _, function) in zip(parts, plain, strict=True):
        setattr(owner, attribute, timing(name, function))
    try:
        yield totals
    finally:
        for owner, attribute, function in plain:
            setattr(owner, attribute, function)


def profile(asks: int) -> tuple[Table, float]:
    """Return the share of an ask that each part takes, and the share that all parts account for."""
    inside = Inside()
    inside.seconds(200)
    with timed(PARTS) as totals:
        seconds = sum(inside.seconds(asks)) * 1.1  # the parts count those run to warm up as well
    whole = seconds / (1.1 * asks)
    rows = [(name, f"{total / (1.1 * asks) * 1e6:.0f}", f"{total / seconds:.0%}") for name, total in totals.items()]
    accounted = sum(total for name, total in totals.items() if not name.startswith("-")) / seconds
    rows.append(("all of it, timing included", f"{whole * 1e6:.0f}", f"{accounted:.0%} in the parts"))
    return Table(("one ask, by parts", "us", "share"), rows), accounted


async def real_asks(asks: int) -> list[float]:
    """Return the seconds of each part in this number of real asks: 12 endpoints, up to 3 rounds, a store on disk."""
    taken = []
    with tempfile.TemporaryDirectory() as folder, floor_server() as url:
        pool = harness.endpoints(url, 12)
        async with AsyncEnsemble(pool, store=Path(folder) / "store.db", seed=0, probe_share=0) as ensemble:
            for number in range(asks + harness.WARM):
                with timed(REAL_PARTS) as totals:
                    await ensemble.ask(PROMPT, answer="number")
                if number >= harness.WARM:
                    taken.append(sum(totals.values()))
    return taken


# -- the section -----------------------------------------------------------------------------------------------------


def scaling() -> tuple[Table, Sequence[Target]]:
    """Measure how the time of an ask grows with N, T and K, by the fastest of bursts in turn."""
    rows, targets = [], []
    for letter, sizes, sides in (
        ("N", POOLS, [Inside(n=size) for size in POOLS]),
        ("T", WINDOWS, [Inside(window=size) for size in WINDOWS]),
        ("K", QUESTIONS, [Inside(choices=size) for size in QUESTIONS]),
    ):
        medians = in_turn(sides, bursts=30, asks=10)
        said = ", ".join(f"{size:,}: {median * 1e6:.0f}" for size, median in zip(sizes, medians, strict=True))
        rows.append((letter, said))
        grown, by = medians[-1] / medians[0], sizes[-1] / sizes[0]
        aim, met = ("at most linear", grown <= by) if letter != "T" else ("independent", grown <= 1.25)
        targets.append(Target(f"growth over {letter}, {sizes[0]} to {sizes[-1]:,}", aim, f"{grown:.2f} times", met))
    return Table(("of", "us an ask, by size"), rows), targets


def section() -> Section:
    """Measure the work of an ask (section 1 of the page)."""
    inside, least = Inside(), floor_work()
    floor = best(least)
    together, learning = inside.seconds(3000), inside.seconds(3000, learning=True)
    idling, idle_floor = after_idling((inside.ask, least), 250)
    real = asyncio.run(real_asks(400))
    parts, accounted = profile(1000)
    growth, grown = scaling()
    full, longer = Inside(remembered=4096), Inside(prompt=PROMPT + PROMPT * 21)
    base, remembering, long = in_turn([inside, full, longer], bursts=30, asks=10)
    per_kb = (long - base) / (21 * len(PROMPT) / 1024)

    def target(what: str, most: float, seconds: Sequence[float], floor_s: float) -> Target:
        middle = statistics.median(seconds)
        beneath = f"{floor_s * 1e6:.0f} us: onnxruntime 5 times, text features"
        said = f"{middle / floor_s:.1f} times, {middle * 1e6:.0f} us"
        return Target(what, f"<= {most} times the floor", said, middle <= most * floor_s, beneath)

    tail = max(p99(seconds) / statistics.median(seconds) for seconds in (together, learning, real))
    rows = [
        (what, quartiles(seconds, 1e6), f"{p99(seconds) * 1e6:.0f}")
        for what, seconds in (
            ("back to back", together),
            ("back to back, an outcome learned between two", learning),
            ("after 20 ms of idling", idling),
            ("inside real asks (12 endpoints over HTTP, store on disk)", real),
        )
    ]
    more = [
        ("each further KB of the prompt", f"{per_kb * 1e6:.1f}"),
        ("with the most texts remembered, 4,096 (the other rows: none)", f"{(remembering - base) * 1e6:.0f}"),
    ]
    return Section(
        "1. Decide, fuse, keep the books",
        (
            target("one ask back to back, p50", 4.5, together, floor),
            target("inside real asks, p50", 7, real, floor),
            target("after 20 ms of idling, p50", 3.5, idling, statistics.median(idle_floor)),
            Target("p99 (not idling)", "<= 3 times p50", f"{tail:.1f} times", tail <= 3),
            *grown,
            Target("parts of the profile", ">= 90 %", f"{accounted:.0%}", accounted >= 0.9),
        ),
        (
            Table(("N = 12, T = 500, K = 4, us", "p50 (quartiles)", "p99"), rows),
            parts,
            growth,
            Table(("on top of an ask, us", ""), more),
        ),
    )


if __name__ == "__main__":
    harness.main(section)
