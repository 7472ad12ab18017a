"""``focalroute demo``: asks a simulated pool a drifting stream of questions over real HTTP, and compares baselines.

It uses only the public API. Each question is answered before its label is given as feedback.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from focalroute.cli import JsonOption

if TYPE_CHECKING:
    from focalroute.core.receipts import Answer
    from focalroute.sim import Question, SimulatedPool

_BATCH = 8  # questions asked at the same time
_UPDATE_EVERY = 13 * _BATCH


@dataclass(frozen=True, slots=True)
class DemoRow:
    """The result of one method. Accuracies are in [0, 1]; ``margin`` is half the 95 % interval of ``accuracy``."""

    method: str
    accuracy: float
    margin: float
    accuracy_before_drift: float
    accuracy_after_drift: float
    usd_per_1000_queries: float
    calls_per_query: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a demo. ``policy_version`` is the last that served: 0 is the cold start, each update adds 1."""

    queries: int
    seed: int
    policy_version: int
    rows: tuple[DemoRow, ...]


def demo(
    queries: Annotated[int, typer.Option(min=20, max=100_000, help="How many questions to ask.")] = 1200,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same questions and same simulated models.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Ask a simulated pool, served over HTTP on this machine, a stream of questions whose topics drift half-way.

    Needs no key and no network.
    """
    result = run(queries, seed=seed, progress=not as_json)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result), indent=2))
    else:
        show(result)


def run(queries: int, *, seed: int, progress: bool) -> DemoResult:
    """Play the demo; about 20 seconds for 1,200 queries on 2 cores."""
    import asyncio

    from focalroute.core.progress import progress_bar
    from focalroute.sim import SimulatedPool, stream

    questions = list(stream(queries, seed=seed, drift=0.5))
    with SimulatedPool() as pool, progress_bar("asking", queries, shown=progress) as advance:
        return asyncio.run(_play(questions, pool, seed, advance))


async def _play(
    questions: Sequence[Question], pool: SimulatedPool, seed: int, advance: Callable[[int], object]
) -> DemoResult:
    """Ask every question of focalroute with feedback, of focalroute without, and of each endpoint alone."""
    import asyncio
    from contextlib import AsyncExitStack
    from tempfile import TemporaryDirectory

    from focalroute.serving.ensemble import AsyncEnsemble

    async def ask(ensemble: AsyncEnsemble, batch: Sequence[Question]) -> list[Answer]:
        return list(await asyncio.gather(*(ensemble.ask(q.text, choices=q.choices) for q in batch)))

    ours: list[Answer] = []
    no_feedback: list[Answer] = []
    singles: list[list[Answer]] = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        ensemble = await stack.enter_async_context(AsyncEnsemble(pool.endpoints, policy=folder, seed=seed))
        without = await stack.enter_async_context(AsyncEnsemble(pool.endpoints, seed=seed))
        alone = [await stack.enter_async_context(AsyncEnsemble([endpoint])) for endpoint in pool.endpoints]
        for start in range(0, len(questions), _BATCH):
            if start <= len(questions) // 2 < start + _BATCH:
                pool.drift()
            batch = questions[start : start + _BATCH]
            answers = await ask(ensemble, batch)
            for answer, question in zip(answers, batch, strict=True):
                await ensemble.feedback(answer, label=question.answer)
            ours += answers
            no_feedback += await ask(without, batch)
            members = await asyncio.gather(*(ask(member, batch) for member in alone))
            singles += [list(replies) for replies in zip(*members, strict=True)]
            if len(ours) % _UPDATE_EVERY == 0:
                await ensemble.update()
            advance(len(batch))
        version = ensemble.stats().policy_version
    return DemoResult(len(questions), seed, version, tuple(_rows(questions, ours, no_feedback, singles, pool)))


def _rows(
    questions: Sequence[Question],
    ours: Sequence[Answer],
    no_feedback: Sequence[Answer],
    singles: Sequence[Sequence[Answer]],
    pool: SimulatedPool,
) -> Iterator[DemoRow]:
    """Yield a row for each method, from the answers to all questions."""

    def scored(method: str, choices: Iterable[int | None], answers: Iterable[Answer]) -> DemoRow:
        answers = list(answers)
        right = [float(choice == q.label) for choice, q in zip(choices, questions, strict=True)]
        return _row(method, right, _usd(answers), sum(len(answer.replies) for answer in answers))

    for method, answers in (("focalroute", ours), ("focalroute, no feedback", no_feedback)):
        yield scored(method, [answer.choice for answer in answers], answers)
    columns = list(zip(*singles, strict=True))
    alone = [scored("", [answer.choice for answer in column], column) for column in columns]
    best = max(range(len(columns)), key=lambda i: alone[i].accuracy)
    yield replace(alone[best], method=f"best single ({pool.endpoints[best].name})")
    yield scored("plurality of all", map(_plurality, singles), chain.from_iterable(singles))
    mean = [
        sum(answer.choice == q.label for answer in row) / len(row) for row, q in zip(singles, questions, strict=True)
    ]
    yield _row("random single", mean, _usd(chain.from_iterable(singles)) / len(columns), len(questions))


def _plurality(answers: Sequence[Answer]) -> int | None:
    """Return the choice of most endpoints; in a tie, the one of the first endpoint in pool order."""
    return Counter(answer.choice for answer in answers).most_common(1)[0][0]


def _usd(answers: Iterable[Answer]) -> Decimal:
    return sum((answer.cost or Decimal(0) for answer in answers), Decimal(0))


def _row(method: str, right: Sequence[float], usd: Decimal, calls: int) -> DemoRow:
    n, half = len(right), len(right) // 2
    accuracy = sum(right) / n
    margin = 1.96 * math.sqrt(sum((r - accuracy) ** 2 for r in right)) / n
    before, after = sum(right[:half]) / half, sum(right[half:]) / (n - half)
    return DemoRow(method, accuracy, margin, before, after, float(usd / n * 1000), calls / n)


def show(result: DemoResult) -> None:
    """Print the result as a table."""
    from focalroute.core.spelling import counted
    from focalroute.evaluate import output

    rows = [
        (
            row.method,
            f"{row.accuracy:.1%} ± {row.margin:.1%}",
            f"{row.accuracy_before_drift:.1%}",
            f"{row.accuracy_after_drift:.1%}",
            f"{row.usd_per_1000_queries:.4f}",
            f"{row.calls_per_query:.2f}",
        )
        for row in result.rows
    ]
    title = f"{result.queries} questions, seed {result.seed}; topics and skills drift half-way"
    output.show_table(("", "accuracy", "before", "after", "$ / 1000", "calls"), rows, title=title)
    console = output.console()
    console.print("The best single is chosen in hindsight; $ are for 1000 queries, calls for each query.")
    updates = counted(result.policy_version, "update")
    learned = f"learned {updates}" if result.policy_version else "had too little feedback to learn"
    console.print(
        f"focalroute started from the policy it ships with and {learned} from the labels, each given after its answer; "
        "with no feedback it learns from its members' agreement alone."
    )
