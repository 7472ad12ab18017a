"""`AsyncEnsemble`: answers queries (observe, decide, ask, fuse, repeat, record) and learns from feedback."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import localcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, TypeVar, Unpack, cast, overload

from focalroute.answers import AnswerKind
from focalroute.answers.structured import Wanted, checked_label
from focalroute.core.config import Budget, Endpoint
from focalroute.core.dollars import MONEY, Amount
from focalroute.core.errors import EnsembleClosed, FocalrouteError, PoolError
from focalroute.core.event_loops import Background, PerLoop, check_loop
from focalroute.core.pool import validate_pool
from focalroute.core.receipts import Answer, Answers
from focalroute.core.records import Query, Round
from focalroute.core.spelling import by_keyword
from focalroute.endpoints.calls import StreamSink
from focalroute.endpoints.pool import Pool
from focalroute.endpoints.round import Rules
from focalroute.learn.fleet import Follower, fetch
from focalroute.learn.reward import USER, Label
from focalroute.money.budget import BudgetGuard, log_lost
from focalroute.money.cost import typical_cost
from focalroute.money.pacing import make_pacers
from focalroute.money.prices import warn_if_stale, with_prices
from focalroute.observe.observer import Observer
from focalroute.observe.warm_caches import WarmCaches
from focalroute.policy.baselines import Baseline
from focalroute.policy.fallback import Guarded
from focalroute.policy.references import resolve_policy
from focalroute.policy.slot import PolicySlot, draw_policy
from focalroute.serving.ask import Ask, Rounds, TimePrice
from focalroute.serving.cache import AnswerCache
from focalroute.serving.closing import Resources, close_dropped, warn_unclosed
from focalroute.serving.concurrency import Item, StartGate, WriteBatcher, ask_all
from focalroute.serving.embedders.embedding import TextEmbedding
from focalroute.serving.exploration import Explorer
from focalroute.serving.feedback import FeedbackHandler
from focalroute.serving.judge import BackgroundJudge, judging_endpoints
from focalroute.serving.query import (
    AskArguments,
    AskManyArguments,
    AskOptions,
    Prompt,
    TextKind,
    make_query,
    takes_arguments,
)
from focalroute.serving.recording import make_answer
from focalroute.serving.sequential import open_ask
from focalroute.serving.settings import Settings, make_settings, naming_pool_file, over_http_client, takes_settings
from focalroute.serving.stats import Stats, stats_of
from focalroute.serving.streaming import AsyncAnswerStream
from focalroute.serving.synthesis import Synthesiser
from focalroute.serving.telemetry import make_recorder
from focalroute.serving.updates import Updater
from focalroute.store import open_store
from focalroute.store.base import LedgerRow, StoredAnswer

if TYPE_CHECKING:
    import openai

    from focalroute.learn.update_report import UpdateReport


T = TypeVar("T")

#: Seconds of the deadline kept for fusing and storing; at most a hundredth of it.
_RESERVED_S = 0.02

_log = logging.getLogger("focalroute")

R = TypeVar("R")

NO_COPY = "an ensemble holds connections and a store, so it cannot be pickled or copied; make one where it is needed"
CLOSED = "this ensemble is closed; make a new one"
FORKED = "this ensemble was made before a fork; make one after it"


class AsyncEnsemble:
    """A pool of endpoints that answers as one.

    One ensemble serves many tasks, and several event loops. Close it with ``async with`` or `aclose`; if it is dropped
    open, it is closed in the background, with a ResourceWarning. Its arguments are the fields of
    `focalroute.serving.settings.Settings`: the endpoints or a pool file, and by keyword everything else.

    Raises:
        ConfigError: the pool or a setting is wrong.
        StoreError: the store cannot be opened.

    Examples:
        >>> async def main(pool):
        ...     async with AsyncEnsemble(pool, seed=0) as ensemble:
        ...         return await ensemble.ask("What is 17 + 25?", choices=[32, 42, 44])
        >>> from focalroute.sim import SimulatedPool
        >>> with SimulatedPool() as simulated:
        ...     asyncio.run(main(simulated.endpoints)).value
        42
    """

    @takes_settings(Settings)
    def __init__(self, endpoints: Any = None, *more: Any, **given: Any) -> None:
        with naming_pool_file(endpoints, given):
            self._make(over_http_client(make_settings(endpoints, *more, **given)))

    def _make(self, settings: Settings) -> None:
        """Set up the ensemble; the store is opened only after the settings have been checked."""
        self._settings = settings
        self.endpoints = with_prices(validate_pool(settings.endpoints, askable=True))
        self.budget = settings.budget
        judging = judging_endpoints(settings.judge, self.endpoints)
        warn_if_stale(self.endpoints + judging)
        self._names = tuple(endpoint.name for endpoint in self.endpoints)
        self._asks = itertools.count()
        self._unseeded_rng = random.Random()  # noqa: S311 - exploration, no secret
        self._gates = PerLoop(StartGate)
        self._cache = AnswerCache(settings.cache_ttl_s, settings.deadline_s)
        self._warm_caches = WarmCaches(self.endpoints)
        self._streams = Background()  # the answers being streamed
        self._closed = False
        self._process = os.getpid()
        policy = resolve_policy(settings.policy, self._names, settings.seed)
        self._recorder = make_recorder(settings.telemetry, self.endpoints)
        self._store = open_store(settings.store, durability=settings.durability, maintain=True)
        try:
            self._open(settings, policy, judging)
        except BaseException:
            self._store.close()
            raise

    def _open(self, settings: Settings, policy: str | Path | Baseline | None, judging: tuple[Endpoint, ...]) -> None:
        """Set up everything that uses the store."""
        store = self._store
        self._batchers = PerLoop(partial(WriteBatcher, store))
        self._embedding = TextEmbedding(settings.embedder)
        paid = validate_pool((*self.endpoints, *judging, *self._embedding.services), askable=True)
        self._guard = BudgetGuard(settings.budget, paid, store)
        prices = [typical_cost(e) for e in self.endpoints]
        self._pacer, self._time_pacer = make_pacers(
            settings.budget, store, settings.cost_weight, settings.usd_per_second, sum(filter(None, prices))
        )
        self._observer = Observer.of(self.endpoints, window=settings.window, embedder=self._embedding.name)
        fetch(store, policy)
        self._slot = PolicySlot.open(policy)
        follower = Follower(store, self._slot, policy)
        past = self._slot.current.experience
        self._observer.adopt(past)  # before the store's outcomes, which are later
        if past is not None and (new := [name for name in self._names if name not in past.names]):
            message = (
                "the policy was not trained on %s and knows nothing about it; keep endpoints' names, or train again"
            )
            _log.warning(message, ", ".join(new))
        self._updater = Updater(store, self._slot, policy, every=settings.update_every, seed=settings.seed)
        on_feedback = None if self._recorder is None else self._recorder.on_feedback
        self._feedback = FeedbackHandler(
            store,
            self._batchers,
            self._observer,
            self._slot,
            self._updater,
            window=settings.window,
            learn_from_agreement=settings.learn_from_agreement,
            on_feedback=on_feedback,
        )
        self._judge = BackgroundJudge(settings.judge, self._feedback, store, self._guard, self._pacer)
        rules = Rules(settings.attempts, settings.hedge_after, settings.early_stop)
        self._pool = Pool(self.endpoints, store, self._guard, rules=rules, samples=settings.samples)
        self._synthesiser = Synthesiser(self._pool, self._names, settings.synthesiser)
        share = 0.0 if isinstance(policy, Baseline) else settings.probe_share  # a named policy does not explore
        self._explorer = Explorer(
            self._observer,
            self._pool,
            store,
            self._pacer,
            share,
            agreement=settings.learn_from_agreement,
            deadline_s=settings.deadline_s,
            on_probe=partial(self._feedback.learn_agreement, new="probes"),
        )
        closers = (
            self._judge.aclose,  # while its feedback can still be learned from
            self._updater.aclose,
            follower.close,
            self._slot.close,
            self._streams.cancel,  # their costs are in the ledger
            self._explorer.aclose,
            self._embedding.aclose,
            self._pool.aclose,
        )
        self._resources = Resources(closers, self._gates, self._pool.give_up, store)
        self._unclosed = weakref.finalize(self, _on_dropped, self._resources)
        self._unclosed.atexit = False  # the store closes itself then

    @classmethod
    def from_toml(cls, path: str | Path, **settings: Any) -> Self:
        """Make an ensemble from a pool file; ``settings`` override its ``[ensemble]`` table.

        Raises:
            ConfigError: the file, or a setting, is wrong.
        """
        return cls(path, **settings)

    async def __aenter__(self) -> Self:
        check_loop()
        self.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __reduce_ex__(self, _: object) -> NoReturn:
        raise TypeError(NO_COPY)

    # -- asking ------------------------------------------------------------------------------------------------------

    @overload
    async def ask(
        self, query: Prompt | None = None, *, choices: Iterable[T], **options: Unpack[AskOptions]
    ) -> Answer[T]: ...

    @overload
    async def ask(  # type: ignore[overload-overlap]  # a class is callable, too
        self, query: Prompt | None = None, *, answer: type[T], **options: Unpack[AskOptions]
    ) -> Answer[T]: ...

    @overload
    async def ask(
        self, query: Prompt | None = None, *, answer: Literal["number"], **options: Unpack[AskOptions]
    ) -> Answer[float]: ...

    @overload
    async def ask(
        self, query: Prompt | None = None, *, answer: TextKind | None = None, **options: Unpack[AskOptions]
    ) -> Answer[str]: ...

    @overload
    async def ask(
        self,
        query: Prompt | None = None,
        *,
        choices: Iterable[Any] | None = None,
        answer: AnswerKind | Wanted | None = None,
        **options: Unpack[AskOptions],
    ) -> Answer[Any]: ...

    @takes_arguments
    async def ask(self, query: Prompt | None = None, **options: Any) -> Answer[Any]:
        """Ask the pool and fuse its replies.

        Args:
            query: the question as text, or OpenAI chat messages.
            messages: the same under OpenAI's name.
            system: an instruction to the members, before the question.
            choices: the closed set of answers: strings, numbers, bools, dates or an Enum; None: a free-form question.
            answer: the type or kind of a free-form answer. A type: ``int``, ``float``, ``Decimal``, ``bool``, ``date``,
                an Enum or Literal (its members are the choices), a pydantic model or anything else that pydantic knows,
                such as ``list[Model]``; or a JSON schema. A kind: "number", "short", "yes-no", "date", "math", "text"
                (default), see `focalroute.answers`. Or a callable that maps a reply to its normal form. Replies with
                the same form are one candidate.
            samples: replies to draw from each member in one call; the member backs the most frequent answer, and each
                answer counts by its share. None: one; for a closed question the ensemble's setting, where samples are
                drawn. A member that cannot return several at once gives one.
            combine: "choose": the answer is the candidate that the Fusion prefers; "pick": the reply of the one member
                that the Decider picks (another is asked only if it fails or hangs); "synthesise": open text that the
                ensemble's ``synthesiser`` writes from the replies.
            usd_per_second: overrides the ensemble's.
            task: a topic name; the shipped policies ignore it.
            tags: labels for the ledger (user, tenant, ...).
            max_usd: limit on the cost of this ask.
            deadline_s: overrides the ensemble's.
            metadata: the caller's own data, returned on the answer.
            params: provider parameters that OpenAI does not have, passed through to every member.
            options: OpenAI's own, passed through likewise: ``temperature``, ``max_tokens``, ``seed``, ``tools`` and so
                on, see `focalroute.serving.query.ModelParams`.

        Raises:
            ConfigError: an argument is wrong.
            PoolError: every asked endpoint failed (DeadlineExceeded: by the deadline).
            BudgetExceeded: no endpoint is affordable.
            StoreError: a limit cannot be enforced, as the store fails.
        """
        check_loop()
        self.check_open()
        asked = make_query(query, **options)
        self._synthesiser.check(asked)
        return await self._cache.ask(asked, self._answer_anew)

    @takes_arguments
    def stream(self, query: Prompt | None = None, **options: Unpack[AskArguments]) -> AsyncAnswerStream:
        """Ask the pool and stream the answer as it comes; arguments as `ask`.

        Open text of a single member is streamed as it comes and is the answer: no further round follows. If several
        members were chosen, if answers can be compared, or if the answer is synthesised, it comes in one piece:

            async with ensemble.stream("...") as stream:
                async for piece in stream:
                    print(piece, end="", flush=True)
            answer = stream.answer

        Raises:
            ConfigError: an argument is wrong. The other errors of `ask` are raised while the stream is read.
            StreamBroken: raised while the stream is read: the answer broke off after it had begun.
        """
        self.check_open()
        asked = make_query(query, **options)
        self._synthesiser.check(asked)
        return AsyncAnswerStream(asked.id, partial(self._answer_anew, asked), self._streams)

    async def _answer_anew(self, query: Query, stream_sink: StreamSink | None = None) -> Answer:
        with self._gates.here(), localcontext(MONEY):
            return await self._answer(query, stream_sink)

    async def _answer(self, query: Query, stream_sink: StreamSink | None) -> Answer:
        """Answer a query: observe, decide, ask and fuse until the policy stops, then record the answer."""
        self.check_open()  # it may have been closed since a stream was made, or while the cache had this ask wait
        ask = await self._begin(query, stream_sink)
        cost_weight, usd_per_second = self._pacer.begin(), self._time_pacer.begin()
        if query.usd_per_second is not None:
            usd_per_second = query.usd_per_second
        if usd_per_second:
            ask.price_time(TimePrice(usd_per_second, self._pool.latencies))
        try:
            rounds = Rounds(ask, self._pool, max_rounds=self._settings.max_rounds)
            while await rounds.prepare():
                observation = ask.observe(cost_weight)
                decision = rounds.decision = ask.decide(
                    observation, order=rounds.order, eligible=rounds.eligible, explore=self._explores()
                )
                replies = await self._pool.ask(decision.picked, rounds.calls, rounds)
                ask.add_round(Round(observation, decision, replies))
                if ask.view.agreement is not None:  # open texts are compared by their embeddings
                    await ask.view.agreement.embed(ask.view.candidates)
                ask.fuse()
                if not rounds.go_on():
                    break
                self.check_open()
            if ask.fused is None and self._closed:
                raise PoolError("the ensemble was closed before any endpoint had answered", ask.replies)
            await self._synthesiser.write(ask)
            answer, row = make_answer(ask, store_text=self._settings.store_text)
            self._warm_caches.learn(query, ask.replies)
        except BaseException as error:
            self._on_failure(ask, error)
            raise
        finally:
            called = bool(ask.ask_budget.bills)
            paced = called and query.usd_per_second is None
            self._pacer.end(ask.ask_budget.spent if called else None)
            self._time_pacer.end(time.perf_counter() - ask.started if paced else None)
        if stream_sink is not None and not ask.streaming and answer.text:
            stream_sink.add(ask, answer.text)
        return await self._record(ask, answer, row)

    async def _begin(self, query: Query, stream_sink: StreamSink | None) -> Ask:
        """Open an ask: draw its policy, set its budget and deadline, wait for its turn, and embed its text."""
        settings = self._settings
        deadline_s = settings.deadline_s if query.deadline_s is None else query.deadline_s
        self._slot.refresh_soon()
        self._observer.adopt(self._slot.current.experience)
        ask_budget = self._guard.ask_budget(query.max_usd, query.id, query.tags, deadline_s)
        due = asyncio.get_running_loop().time() + deadline_s
        deadline = due - min(_RESERVED_S, deadline_s / 100)
        started, rng = time.perf_counter(), self._rng()
        policy, rival = draw_policy(self._slot.current, self._slot.challenger, rng)
        if (turn := self._gates.here().enter()) is not None:
            await turn
            self.check_open()
        text = await self._embedding.read(query.text, ask_budget, deadline)
        return open_ask(
            query,
            policy=Guarded(policy, self._names, rival),
            max_rounds=settings.max_rounds,
            view=self._observer.begin(
                query,
                text.features,
                self._embedding.batch_embedder(ask_budget, deadline),
                self._warm_caches.factors(query),
            ),
            ask_budget=ask_budget,
            deadline=deadline,
            due=due,
            rng=rng,
            started=started,
            embedding_error=text.missing,
            stream_sink=stream_sink if query.open and query.combine != "synthesise" else None,
        )

    def _on_failure(self, ask: Ask, error: BaseException) -> None:
        """Write the costs of an ask that ended without an answer, and record it."""
        if isinstance(error, FocalrouteError):
            error.answer_id = ask.query.id
        ask.ask_budget.write()
        if self._recorder is not None:
            self._recorder.failed(ask, error)

    def _explores(self) -> bool:
        """Whether decisions are sampled; see ``explore`` of `Settings`."""
        if self._settings.explore is not None:
            return self._settings.explore
        return self._settings.update_every is not None or not self._slot.current.knows_pool

    def _rng(self) -> random.Random:
        """Return the random generator of one ask; with a seed it depends only on the number of the ask."""
        if self._settings.seed is None:
            return self._unseeded_rng
        return random.Random(f"{self._settings.seed} {next(self._asks)}")  # noqa: S311 - no secret

    async def _record(self, ask: Ask, answer: Answer, row: StoredAnswer) -> Answer:
        """Commit an answer. If that fails or is not done when the answer is due, return it marked as not durable."""
        bills = ask.ask_budget.unwritten
        self._feedback.remember(row)
        written = self._batchers.here().write((row, *bills))
        on_written = partial(self._on_written, ask, answer, row, bills)
        try:
            if not written.done():
                await asyncio.wait([written], timeout=max(0.0, ask.due - asyncio.get_running_loop().time()))
        finally:
            if late := not written.done():  # the answer is due, or its caller was cancelled
                written.add_done_callback(on_written)
        if late:
            _log.warning("an answer was due before it was stored; is the store locked, or its disk too slow?")
        if late or not on_written(written):
            answer = replace(answer, durable=False)
        if self._recorder is not None:
            self._recorder.answered(ask, answer)
        return answer

    def _on_written(
        self, ask: Ask, answer: Answer, row: StoredAnswer, bills: Sequence[LedgerRow], written: asyncio.Future[None]
    ) -> bool:
        """Start an answer's background work, if it was committed; return whether it was."""
        error = written.exception()
        if error is not None:
            _log.warning("an answer could not be stored: %s", error)
            log_lost(bills, error)
            return False
        self._feedback.learn_agreement(row)
        self._explorer.on_answer(ask, row)
        self._judge.on_answer(ask, answer)
        return True

    @overload
    async def ask_many(
        self,
        queries: Iterable[Item],
        *,
        return_exceptions: Literal[False] = False,
        **options: Unpack[AskManyArguments],
    ) -> Answers: ...

    @overload
    async def ask_many(
        self, queries: Iterable[Item], *, return_exceptions: bool, **options: Unpack[AskManyArguments]
    ) -> Answers[Answer | BaseException]: ...

    @takes_arguments
    async def ask_many(
        self,
        queries: Iterable[Item],
        *,
        concurrency: int = 16,
        progress: bool = False,
        return_exceptions: bool = False,
        **common: Unpack[AskArguments],
    ) -> Answers | Answers[Answer | BaseException]:
        """Ask many queries, at most ``concurrency`` at a time; answers in the order of the queries.

        An exception's ``index`` (and note) is its query's. `Answers` is a list that can also be made into a table.

        Args:
            queries: each a query as in `ask`, or a mapping of `ask`'s arguments with the key "query". Read as needed.
            progress: whether to show a progress bar.
            return_exceptions: put an exception in its answer's place. Otherwise the first one is raised and all other
                asks are cancelled (answers given before are in the store).
            common: arguments of `ask` for all queries.
        """
        lasting = {name: tuple(one) for name, one in common.items() if isinstance(one, Iterator)}
        common.update(cast("AskArguments", lasting))  # every query reads it
        make_query("?", **common)  # a mistake in the common arguments is reported once, before any query is asked
        return await ask_all(
            self.ask, queries, common, concurrency=concurrency, progress=progress, return_exceptions=return_exceptions
        )

    # -- learning ----------------------------------------------------------------------------------------------------

    @by_keyword(
        'give it by keyword, such as label="42" (the right answer) or reward=True',
        {
            **dict.fromkeys(("correct", "right", "thumbs_up", "good", "value"), "reward"),
            **dict.fromkeys(("rating", "grade"), "score"),
            **dict.fromkeys(("truth", "expected", "gold", "choice"), "label"),
            **dict.fromkeys(("index", "choice_index"), "label_index"),
            "user": "source",
            **dict.fromkeys(("id", "answer_id"), "give the answer, or its id, as the first argument"),
        },
    )
    async def feedback(
        self,
        answer: Answer | str,
        *,
        reward: float | bool | None = None,
        label: Label | None = None,
        label_index: int | None = None,
        preferred: Label | None = None,
        score: float | None = None,
        source: str = USER,
    ) -> None:
        """Store how good an answer was, and learn from it; returns once that is committed.

        Later feedback of a source on the same answer replaces its earlier one; the store keeps 100 of each source. An
        identical repeat is a no-op, so a lost acknowledgement may be retried.

        Args:
            answer: the answer, its id, or the id of its chat completion; it may come from another process on the same
                store.
            reward: in [-1, 1], or whether it was right.
            label: the right answer: one of the choices, a free-form answer (in normal form, if ``answer`` was a
                callable), a structured answer with all of its fields, or tool calls (each with its name and arguments).
                Teaches more than a reward.
            label_index: the right choice by its index.
            preferred: the better of two candidates, given like a label. If it is not the answer, it was better than the
                answer; if it is, the answer was better than the likeliest other candidate. Neither need be right.
            score: a grade in [0, 1]; the reward is 2 score - 1.
            source: who gives the feedback. Of several sources the latest counts, but "judge" never replaces another.

        Raises:
            FeedbackError: none or several of reward, label and so on are given, or one is out of range.
            BadLabel: the label is not among the choices, or ``preferred`` not among the candidates.
            UnknownAnswer: the store has no such answer.
            StoreError: it could not be stored.
        """
        self.check_open()
        if isinstance(answer, Answer):
            label, answer = checked_label(label, answer.value), answer.id
        await self._feedback.submit(
            answer,
            reward=reward,
            label=label,
            label_index=label_index,
            preferred=preferred,
            score=score,
            source=source,
        )

    async def update(self) -> UpdateReport:
        """Judge the challenger on the feedback in the store; without one, train one and put it on trial.

        It runs in a process of its own. If the store is a fleet's, or no Python can be started, it runs on a thread,
        which slows asks down meanwhile.

        A challenger decides half of the asks. It serves once it is shown to be better, and is dropped once that is
        unlikely.

        Raises:
            ConfigError: there is no policy folder to publish to (``policy`` is None or a name).
            PolicyError: the current bundle is damaged, or the new one cannot be written.
        """
        self.check_open()
        return await asyncio.to_thread(self._updater.run)

    def as_async_openai(self) -> openai.AsyncOpenAI:
        """Return an ``AsyncOpenAI`` client whose requests this ensemble answers, in this process.

        Chat completions (``create``, ``parse``, streams, tools) and ``client.post("/feedback", ...)`` work as with the
        server (`docs/server.md`); the model's name is "focalroute". Closing the client leaves the ensemble open.
        """
        from focalroute.serving.in_process import async_openai_client

        return async_openai_client(self, _in_this_loop)

    # -- operating ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._closed

    def check_open(self) -> None:
        """Raise EnsembleClosed if it was closed, or made before a fork."""
        if self._closed:
            raise EnsembleClosed(CLOSED)
        if self._process != os.getpid():  # the store's thread runs in the parent only: no ledger would have these asks
            raise EnsembleClosed(FORKED, forked=True)

    def limit_tags(self, usd_per_tag: Mapping[str, Amount | Mapping[str, Amount]]) -> None:
        """Replace the budget's limits on tags, for asks that begin from now on. Waits for the store."""
        self.check_open()
        budget = replace(self.budget or Budget(), usd_per_tag=usd_per_tag)
        self._guard.keep(budget)
        self.budget = budget

    def join_trace(self, headers: Mapping[str, str]) -> None:
        """Attach the telemetry of this task's asks to the trace in a request's headers (W3C's traceparent).

        The current span, if there is one, takes precedence.
        """
        if self._recorder is not None:
            self._recorder.join(headers)

    def stats(self) -> Stats:
        """Return the statistics of asks, costs and endpoints so far. Waits for the store."""
        self.check_open()
        version, name = self._slot.current.version, self._slot.name
        health, judge = self._pool.health(), self._judge.stats
        with localcontext(MONEY):
            return stats_of(self.endpoints, self._store, self._observer, health, version, name, judge)

    async def reload(self) -> None:
        """Serve the policy folder's current bundle from now on; asks notice a new one by themselves within a second."""
        self.check_open()
        await asyncio.to_thread(self._slot.refresh)

    async def aclose(self) -> None:
        """Close the connections and, once it has all costs, the store. Idempotent.

        Asks under way in this loop fail with their calls; those in other loops, or with calls by the caller's own
        clients, go on for up to 5 seconds.
        """
        check_loop()
        self._closed = True
        self._unclosed.detach()
        await self._resources.aclose()


async def _in_this_loop(work: Callable[[], Awaitable[R]], /) -> R:
    return await work()


def _on_dropped(resources: Resources) -> None:
    close_dropped(resources)
    warn_unclosed("AsyncEnsemble", "`async with AsyncEnsemble(...)`, or `await ensemble.aclose()`")
