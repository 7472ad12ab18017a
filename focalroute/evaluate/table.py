"""Joins an outcome log with its pool, as arrays of T rows (queries) and N endpoints, and splits it for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import PoolFile
from focalroute.core.records import F32, F64, I64, Bools, Query
from focalroute.evaluate.outcomes import LoggedQuery, Output
from focalroute.observe.features import Embedder, text_features

#: How a log is split: "stream" splits the whole log, "per-task" each task, so that both parts have the same tasks.
SplitKind = Literal["stream", "per-task"]

#: The cost ratio of asking every endpoint.
EVERYTHING = 1.0

#: If this many replies of an endpoint are all wrong, they are probably written in another form than the labels.
SUSPICIOUS = 20
_MOST_PROBABILITIES = 2**27  # elements of an array in which every query has room for the most choices of any
_ROUNDS = 5  # of a log split per task; the last round is the validation part

# The model of call durations, see `call_seconds`.
_FIRST_TOKEN_S, _TOKENS_PER_S = 0.3, 80.0
_LOG_SPREAD, _SLOW_SHARE, _SLOW_FACTOR = 0.3, 0.05, 3.0


@dataclass(frozen=True, slots=True)
class LogTable:
    """A recorded log; treated as read-only.

    A candidate is an index into the choices; for a free-form question, into the distinct answers in pool order. If only
    scores are known, each output is a candidate of its own.

    Attributes:
        queries: the T lines of the log.
        texts: the text of each query, or empty.
        endpoints: the N endpoints, in pool order.
        there: (T, N) whether the log has an output of this endpoint for this query.
        failed: (T, N) whether that call failed.
        candidate: (T, N) the output's candidate; -1 if it has no usable answer.
        size: (T,) number of candidates.
        label: (T,) the right candidate; -1 if no endpoint gave it, or only scores are known.
        value: (T, N) worth of the output: 1 if right, 0 if wrong, or its score; NaN without an output.
        usd: (T, N) float64, the cost of the call; 0 without a call, and for unpriced endpoints.
        seconds: (T, N) duration of the call, recorded or modelled (`call_seconds`).
        embed: embeds a text.
        unpriced: endpoints for which neither pool file nor log has the cost of every call; their calls count as free.
        bad_rows: number of the log's lines that were left out.
    """

    queries: tuple[LoggedQuery, ...]
    texts: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    there: Bools
    failed: Bools
    candidate: I64
    size: I64
    label: I64
    value: F64
    usd: F64
    seconds: F64
    embed: Embedder = text_features
    unpriced: tuple[str, ...] = ()
    bad_rows: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The endpoints' names, in pool order."""
        return tuple(endpoint.name for endpoint in self.endpoints)

    @property
    def never_right(self) -> tuple[str, ...]:
        """Endpoints with at least `SUSPICIOUS` replies to queries with a label, none of which is right."""
        labelled = np.array([query.label is not None for query in self.queries])[:, None]
        replied = self.there & ~self.failed & labelled
        right = replied & (self.value == 1)
        suspicious = (replied.sum(axis=0) >= SUSPICIOUS) & ~right.any(axis=0)
        return tuple(self.names[i] for i in np.flatnonzero(suspicious))

    def worth(self, row: int, candidate: int) -> float:
        """Return the worth of an answer: 1 or 0 by the label; without a label, its mean score; 0 for no answer (-1)."""
        if candidate < 0:
            return 0.0
        if self.queries[row].label is not None:
            return float(candidate == self.label[row])
        backed = self.candidate[row] == candidate
        return float(self.value[row, backed].mean()) if backed.any() else 0.0

    def worths(self, rows: I64) -> F64:
        """Worth of each candidate of these rows, (len(rows), K); K is the most candidates of any row, 0 is padding."""
        found = np.zeros((len(rows), int(self.size[rows].max(initial=1))))
        for n, row in enumerate(rows.tolist()):
            size = int(self.size[row])
            found[n, :size] = [self.worth(row, candidate) for candidate in range(size)]
        return found

    def probabilities(self, rows: I64, width: int) -> F32:
        """Each endpoint's recorded probability of each candidate, (len(rows), N, ``width``); NaN if not recorded."""
        found = np.full((len(rows), len(self.endpoints), width), np.nan, np.float32)
        for t, row in enumerate(rows.tolist()):
            for i, name in enumerate(self.names):
                output = self.queries[row].outputs.get(name)
                if output is not None and output.probabilities is not None:
                    found[t, i] = 0
                    found[t, i, : len(output.probabilities)] = output.probabilities
        return found

    def accuracy(self, rows: I64) -> F64:
        """Each endpoint's mean value over its calls on these rows, (N,).

        A failed call counts 0. An endpoint without calls has 0.
        """
        there = self.there[rows]
        mean: F64 = np.where(there, self.value[rows], 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        return mean

    def cheapest(self, rows: I64) -> tuple[str, float]:
        """The name of the endpoint with the cheapest calls on these rows, and its `single_cost_ratios`, at most 1."""
        ratios = self.single_cost_ratios(rows)
        i = int(np.where(self.there[rows].any(axis=0), ratios, np.inf).argmin())
        return self.names[i], min(float(ratios[i]), EVERYTHING)

    def single_cost_ratios(self, rows: I64) -> F64:
        """The cost of always asking each endpoint on these rows, (N,), as a share of asking all."""
        usd = self.usd[rows].sum(axis=0) / np.maximum(self.there[rows].mean(axis=0), 1e-9)
        ratios: F64 = usd / (float(self.usd[rows].sum()) or 1.0)
        return ratios

    def target_usd_per_query(self, rows: I64, ratio: float | None) -> float | None:
        """USD per query that correspond to this cost ratio on these rows.

        None if there is nothing to hold: no ratio, the ratio of asking every endpoint, no rows, or no known cost.
        """
        if ratio is None or ratio == EVERYTHING or not len(rows):
            return None
        return ratio * float(self.usd[rows].mean(axis=0).sum()) or None

    def rank(self, rows: I64) -> tuple[int, ...]:
        """The endpoints by accuracy on these rows, best first; ties are in pool order."""
        return tuple(np.argsort(-self.accuracy(rows), kind="stable").tolist())


@dataclass(frozen=True, slots=True)
class Split:
    """Row indices of the training part and the test part, each in order of replay."""

    train: I64
    test: I64


def join(queries: Sequence[LoggedQuery], pool: PoolFile, path: str | Path) -> LogTable:
    """Join a log with its pool.

    Raises:
        ConfigError: an output's endpoint is not in the pool (the message names file, line and field), or a question has
            too many choices for a log of this size.
    """
    endpoints = pool.endpoints
    choices = max((len(query.choices or ()) for query in queries), default=0)
    if len(queries) * len(endpoints) * choices > _MOST_PROBABILITIES:
        widest = next(query for query in queries if len(query.choices or ()) == choices)
        raise ConfigError(
            f"{path}:{widest.line}: choices: {choices} are too many for a log of {len(queries)} queries and a pool of "
            f"{len(endpoints)} endpoints, as every query takes the memory of the one with most choices; split the log"
        )
    index = {endpoint.name: i for i, endpoint in enumerate(endpoints)}
    shape = (len(queries), len(endpoints))
    there, failed = np.zeros(shape, bool), np.zeros(shape, bool)
    candidate, value, usd = np.full(shape, -1), np.full(shape, np.nan), np.zeros(shape)
    size, label = np.zeros(shape[0], np.int64), np.full(shape[0], -1)
    unpriced: set[int] = set()
    for t, query in enumerate(queries):
        for name, output in query.outputs.items():
            if name not in index:
                raise ConfigError(f"{path}:{query.line}: outputs.{name}: is not in the pool; add it to the pool file")
            i = index[name]
            there[t, i], failed[t, i] = True, output.error is not None
            cost = _usd(output, endpoints[i])
            if cost is None:
                unpriced.add(i)
            else:
                usd[t, i] = cost
        outputs = [query.outputs.get(endpoint.name) for endpoint in endpoints]
        candidate[t], size[t], label[t] = _candidates(query, outputs)
        value[t] = [np.nan if o is None else _value(query, o) for o in outputs]
    texts = tuple(Query(query.id, query.messages).text for query in queries)
    usd[:, sorted(unpriced)] = 0
    return LogTable(
        *(tuple(queries), texts, endpoints, there, failed, candidate, size, label, value, usd),
        seconds=call_seconds(queries, endpoints),
        unpriced=tuple(endpoints[i].name for i in sorted(unpriced)),
    )


def call_seconds(queries: Sequence[LoggedQuery], endpoints: Sequence[Endpoint]) -> F64:
    """Seconds of each call, (T, N): those in the log (0 for an output without); if the log has none at all, modelled.

    The model is s (0.3 + tokens / 80) seconds with s = (p / median p)^(1/3), where p is the endpoint's price of a
    generated token, as dearer models are larger and slower (s = 1 if unknown). This is multiplied by a log-normal
    factor for each call, with a standard deviation of 0.3 of its logarithm. One call in twenty takes three times as
    long.
    """
    outputs = [[query.outputs.get(endpoint.name, Output()) for endpoint in endpoints] for query in queries]
    recorded = np.array([[output.latency_s or 0.0 for output in row] for row in outputs], np.float64)
    if recorded.any():
        return recorded
    tokens = np.array([[output.completion_tokens for output in row] for row in outputs], np.float64)
    prices = np.array([float(e.price.completion) if e.price else 0.0 for e in endpoints])
    median = float(np.median(prices[prices > 0])) if prices.any() else 1.0
    slowness = (np.where(prices > 0, prices, median) / median) ** (1 / 3)
    rng = np.random.default_rng(0)
    factor = np.exp(rng.normal(0, _LOG_SPREAD, tokens.shape))
    factor *= np.where(rng.random(tokens.shape) < _SLOW_SHARE, _SLOW_FACTOR, 1.0)
    return slowness * (_FIRST_TOKEN_S + tokens / _TOKENS_PER_S) * factor


def split(table: LogTable, *, per_task: bool, fraction: float) -> Split:
    """Use this fraction of the log, from its start, for training and the rest for testing; ``per_task``: of each task.

    Raises:
        ConfigError: one of the parts would be empty.
    """
    groups: dict[str | None, list[int]] = {}
    for t, query in enumerate(table.queries):
        groups.setdefault(query.task if per_task else None, []).append(t)
    train: list[int] = []
    for rows in groups.values():
        train += rows[: int(len(rows) * fraction + 1e-9)]
    test = sorted(set(range(len(table.queries))) - set(train))
    if not train or not test:
        raise ConfigError(
            f"train_fraction: {fraction} leaves {len(train)} queries to train on and {len(test)} to test; give "
            "another, or a longer log"
        )
    return Split(np.array(sorted(train)), np.array(test))


def learning_order(table: LogTable, rows: I64, split: SplitKind) -> I64:
    """Return training rows in the order in which to learn from them.

    For a stream that is the order of arrival. For a split per task it is five rounds, each with a fifth of every task,
    so that every task is known after the first round, and the validation part at the end has all tasks.

    Raises:
        ConfigError: there is no such split.
    """
    if split == "stream":
        return rows
    if split != "per-task":
        raise ConfigError(f"split: give stream or per-task, not {split!r}")
    tasks: dict[str | None, list[int]] = {}
    for row in rows.tolist():
        tasks.setdefault(table.queries[row].task, []).append(row)
    parts = [np.array_split(np.array(task), _ROUNDS) for task in tasks.values()]
    return np.concatenate([np.sort(np.concatenate(part)) for part in zip(*parts, strict=True)]).astype(np.int64)


def _usd(output: Output, endpoint: Endpoint) -> float | None:
    """Return the cost of a call; None: unknown. A failed call without a recorded cost and price is free."""
    if output.cost_usd is not None:
        return output.cost_usd
    price = endpoint.price
    if price is None:
        return None if output.error is None else 0.0
    return float(output.prompt_tokens * price.prompt + output.completion_tokens * price.completion) / 1e6


def _candidates(query: LoggedQuery, outputs: Sequence[Output | None]) -> tuple[list[int], int, int]:
    """Return the candidate of each output, the number of candidates, and the right candidate (-1 as in `LogTable`)."""
    found = [-1] * len(outputs)
    replied = [(i, output) for i, output in enumerate(outputs) if output is not None and not output.error]
    if query.choices is not None:
        for i, output in replied:
            if isinstance(output.answer, int):
                found[i] = output.answer
        return found, len(query.choices), query.label if isinstance(query.label, int) else -1
    answers: dict[int | str, int] = {}
    for i, output in replied:
        key = output.answer
        if key is None and query.label is None:
            key = i  # only scores are known, so the output counts as an answer of its own
        if key is not None:
            found[i] = answers.setdefault(key, len(answers))
    return found, len(answers), -1 if query.label is None else answers.get(query.label, -1)


def _value(query: LoggedQuery, output: Output) -> float:
    """Return the worth of an output: 1 or 0 by the label, else its score; 0 if the call failed."""
    if output.error is not None:
        return 0.0
    if query.label is None:
        return output.score or 0.0
    return float(output.answer == query.label)
