"""Runs one seed of the whole loop: collect, train, and serve warm, cold, and with changes of the pool."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from examples.tiny_pool.elicited import Compared, compared
from examples.tiny_pool.recipe import ROSTER, TOPICS, Roster
from examples.tiny_pool.serving import Servers
from examples.tiny_pool.streams import Feedback, Live, fresh
from focalroute import Endpoint
from focalroute.cli.collect import collect
from focalroute.cli.train import train
from focalroute.core.pool import load_pool
from focalroute.evaluate.baselines import baselines, best_in_hindsight, oracle
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.replay import ReplayResult, Training, play
from focalroute.evaluate.table import LogTable, join
from focalroute.sim import Question
from focalroute.sim.process import pool_toml

__all__ = ["CHANGING", "STEADY", "Seed", "Sizes", "elicited"]

#: The streams with five servers: the kind of feedback, and whether the policy was trained on the collected answers.
STEADY: Mapping[str, tuple[Feedback, bool]] = MappingProxyType({
    "warm": ("label", True),
    "cold": ("label", False),
    "warm, bare rewards": ("reward", True),
    "cold, bare rewards": ("reward", False),
})  # fmt: skip
#: The stream in which servers come and go.
CHANGING = "changing"

#: Beside focalroute: what each of them does is in `focalroute.evaluate.baselines`.
_BASELINES = ("best-single-train", "plurality", "weighted-vote", "log-linear-online", "cascade", "carrot-knn")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an experiment: questions for training, in the stream, and of the former also asked by samples.

    ``iterations`` are those of `focalroute train`. The target is ``cost`` of the mean cost of asking all
    endpoints a training question. One server is lost after ``lost`` of the stream, and a better one joins after
    ``joined`` of it.
    """

    training: int = 400
    stream: int = 1000
    sampled: int = 100
    iterations: int = 100
    cost: float = 0.4
    lost: float = 0.4
    joined: float = 0.6


class Seed:
    """One seed, step by step; its files are in ``folder``, which is there and empty."""

    def __init__(self, folder: Path, seed: int, sizes: Sizes, servers: Servers, roster: Roster = ROSTER) -> None:
        self.folder, self.seed, self.sizes, self.servers, self.roster = folder, seed, sizes, servers, roster

        seen: set[str] = set()
        self.training = fresh(sizes.training, 2 * seed, TOPICS, seen)
        self.stream = fresh(sizes.stream, 2 * seed + 1, TOPICS, seen)
        self.pool = servers.start(roster.models)
        self.lives: dict[str, Live] = {}

    def collect(self) -> None:
        """Ask every endpoint every question once, for training and for comparison."""
        self._write("questions.jsonl", [*self.training, *self.stream])
        self._write("sampled.jsonl", self.training[: self.sizes.sampled])
        _write_pool(self.folder / "pool.toml", self.pool)
        _write_pool(self.folder / "sampling.toml", self.pool, "logprobs = false")
        for questions, pool, log in (("questions", "pool", "log"), ("sampled", "sampling", "samples")):
            collect(
                str(self.folder / f"{questions}.jsonl"),
                self.folder / f"{log}.jsonl",
                self.folder / f"{pool}.toml",
                concurrency=4,
            )
        lines = (self.folder / "log.jsonl").read_text().splitlines(keepends=True)
        (self.folder / "training.jsonl").write_text("".join(lines[: self.sizes.training]))

    def train(self) -> None:
        """Train the policy of the warm start, from the training questions alone."""
        train(
            [self.folder / "training.jsonl"],
            [self.folder / "pool.toml"],
            self.folder / "trained",
            seed=self.seed,
            iterations=self.sizes.iterations,
        )

    def serve(self) -> None:
        """Serve all streams at the same time, each with updates in the background."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        steady = [self._live(name, feedback, warm=warm) for name, (feedback, warm) in STEADY.items()]
        await asyncio.gather(*(live.serve(self.pool, self.stream) for live in steady), self._changing())

    async def _changing(self) -> None:
        """Serve from the trained policy; one server is killed on the way, and a better one joins later."""
        live = self._live(CHANGING, "label", warm=True)
        lost, joined = (int(share * len(self.stream)) for share in (self.sizes.lost, self.sizes.joined))
        names = [endpoint.name for endpoint in self.pool]
        (mortal,) = self.servers.start([self.roster.models[names.index(self.roster.killed)]])  # the others need theirs
        pool = [mortal if endpoint.name == mortal.name else endpoint for endpoint in self.pool]
        await live.serve(pool, self.stream[:lost])
        self.servers.kill(mortal.name)
        await live.serve(pool, self.stream[lost:joined])
        await live.serve([*pool, *self.servers.start([self.roster.newcomer])], self.stream[joined:])

    @cached_property
    def table(self) -> LogTable:
        """All collected answers, as a table."""
        log = self.folder / "log.jsonl"
        return join(read_log(log), load_pool(self.folder / "pool.toml"), log)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the stream in the table."""
        return np.arange(self.sizes.training, self.sizes.training + self.sizes.stream)

    def beside(self) -> dict[str, ReplayResult]:
        """Play the baselines on the stream, after they learned from the training questions."""
        training = Training(self.table, np.arange(self.sizes.training), self.seed)
        made = baselines(training)
        played = {name: play(made[name](training), self.table, self.rows) for name in _BASELINES}
        played["best-single-hindsight"] = play(best_in_hindsight(self.table, self.rows), self.table, self.rows)
        return played | {"oracle": oracle(self.table, self.rows)}

    @property
    def _usd_per_query(self) -> float:
        return self.sizes.cost * float(self.table.usd[: self.sizes.training].sum(axis=1).mean())

    def _live(self, name: str, feedback: Feedback, *, warm: bool) -> Live:
        folder = self.folder / name
        if warm:
            shutil.copytree(self.folder / "trained", folder)
        names = [endpoint.name for endpoint in self.pool]
        live = self.lives[name] = Live(
            [*names, self.roster.newcomer.name], folder, feedback, self.seed, self._usd_per_query
        )
        return live

    def _write(self, name: str, questions: Sequence[Question]) -> None:
        rows = [
            {"id": q.id, "prompt": q.text, "choices": q.choices, "label": q.label, "task": q.topic} for q in questions
        ]
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def elicited(seeds: Sequence[Seed]) -> Compared:
    """Compare log-probabilities and ten samples on the same questions, of all seeds together."""
    samples = [read_log(seed.folder / "samples.jsonl") for seed in seeds]
    scored = [read_log(seed.folder / "log.jsonl")[: len(some)] for seed, some in zip(seeds, samples, strict=True)]
    names = [endpoint.name for endpoint in seeds[0].pool]
    return compared(list(chain(*scored)), list(chain(*samples)), names)


def _write_pool(path: Path, endpoints: Sequence[Endpoint], more: str = "") -> None:
    """Write a pool file; the models have learned letters but no JSON, so no schema is used."""
    settings = "\n".join(filter(None, ("[[endpoint]]", "structured_choice = false", more)))
    path.write_text(pool_toml(endpoints).replace("[[endpoint]]", settings))
