"""Code of a user, read by mypy and by pyright and never run: what is right passes, what is wrong is reported.

A line that both have to reject says so to each; a remark that is not needed is an error as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Optional, assert_type

from pydantic import BaseModel

import focalroute
from focalroute import (
    Answer,
    Answers,
    AnswerStream,
    AsyncEnsemble,
    Budget,
    BudgetExceeded,
    Call,
    ConfigError,
    Endpoint,
    EndpointStats,
    Ensemble,
    Failure,
    Judge,
    PoolError,
    Query,
    Receipt,
    Reply,
    Usage,
)


class Priority(Enum):
    """What is to be chosen."""

    LOW = 1
    HIGH = 2


class Ticket(BaseModel):
    """What is to be filled in."""

    team: Literal["billing", "shipping"]
    urgent: bool


@dataclass
class Step:
    """Is filled in, too."""

    number: int


def judged(query: Query, answer: Answer) -> bool | None:
    """A function judge."""
    return len(answer.text) < 200 if query.open else None


def right(endpoint: Endpoint) -> None:
    """All that the quickstart does."""
    budget = Budget(max_usd_per_ask="0.01", usd_total=5, usd_per_period={"day": Decimal(1)})
    Ensemble("pool.toml", policy="policy/", judge=Judge(judged)).close()
    with Ensemble([endpoint], store="focalroute.db", budget=budget, judge=Judge(endpoint, share=0.1)) as ensemble:
        assert_type(ensemble, Ensemble)
        answer = ensemble.ask("?", choices=["a", "b"], tags=["team"], max_usd="0.01", params={"temperature": 0})
        assert_type(answer, Answer[str])
        assert_type(answer.text, str)
        assert_type(answer.cost, Decimal | None)
        assert_type(answer.receipt, Receipt)
        assert_type(answer.receipt.calls, tuple[Call, ...])
        assert_type(answer.replies[0], Reply)
        assert_type(answer.replies[0].error, Failure | None)
        assert_type(answer.replies[0].usage, Usage | None)
        assert_type(ensemble.stats().endpoints, Mapping[str, EndpointStats])
        assert_type(ensemble.ask("?", answer=Ticket, combine="pick"), Answer[Ticket])
        assert_type(ensemble.ask("?", answer=int).value, int)
        assert_type(ensemble.ask("?", answer=Decimal).value, Decimal)
        assert_type(ensemble.ask("?", answer=date).value, date)
        assert_type(ensemble.ask("?", answer=Priority).value, Priority)
        assert_type(ensemble.ask("?", answer=list[Ticket]).value, list[Ticket])
        assert_type(ensemble.ask("?", answer="number").value, float)
        assert_type(ensemble.ask("?", answer="short").value, str)
        assert_type(ensemble.ask("?", answer=Literal["yes", "no"]), Answer[Any])
        assert_type(ensemble.ask("?", answer=Optional[int]), Answer[Any])  # noqa: UP045 - as many write it
        assert_type(ensemble.ask("?", choices=[1, 2, 3]).value, int)
        assert_type(ensemble.ask("?", choices=Priority).value, Priority)
        ensemble.ask([{"role": "user", "content": "?"}], answer="number", samples=3)
        ensemble.ask("?", answer=lambda text: text.strip() or None)
        ensemble.feedback(answer, label=Step(1))
        ensemble.feedback(answer, label=timedelta(hours=1))
        ensemble.feedback(answer, label={1, 2})
        ensemble.feedback(answer, label="a")
        ensemble.feedback(answer.id, reward=1.0, source="review")
        many = ensemble.ask_many(["?", {"query": "?", "choices": ["a", "b"]}])
        assert_type(many, Answers[Answer[Any]])
        assert_type(many[0].text, str)
        assert_type(many[1:], Answers)
        whole = ensemble.ask_many(
            ["?"], concurrency=4, progress=True, return_exceptions=True, answer=int, max_usd="0.01"
        )
        assert_type(whole[0], Answer[Any] | BaseException)
        assert_type(
            ensemble.update().status, Literal["published", "on trial", "dropped", "rolled back", "insufficient"]
        )
        with ensemble.stream("?", system="Be brief.", temperature=0, deadline_s=9) as stream:
            assert_type(stream, AnswerStream)
            for piece in stream:
                assert_type(piece, str)


async def right_with_await(pool: list[Endpoint]) -> None:
    """The same with await."""
    async with AsyncEnsemble(pool, policy="cascade", update_every=None) as ensemble:
        answer = await ensemble.ask("?", system="Be brief.", temperature=0, seed=1, tools=[])
        assert_type(answer, Answer[str])
        await ensemble.feedback(answer, reward=True)
        async with ensemble.stream("?") as stream:
            async for piece in stream:
                assert_type(piece, str)


def failing(ensemble: Ensemble) -> None:
    """What errors say."""
    try:
        ensemble.ask("?")
    except BudgetExceeded as error:
        assert_type(error.limit, Decimal)
    except PoolError as error:
        assert_type(error.replies, tuple[Reply, ...])
    except ConfigError:
        raise


def wrong(ensemble: Ensemble, asynchronous: AsyncEnsemble) -> None:
    """What has to be rejected."""
    focalroute.Ensembles  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018
    Endpoint("a", model="b", dialect="klingon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Budget(usd_in_total=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Ensemble(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Ensemble([], max_rounds="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ensemble.ask("?", choice=["a"])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    ensemble.ask("?", combine="vote")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    ensemble.ask(42)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    ensemble.ask("?", temperatur=0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    ensemble.ask_many(["?"], temperatur=0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    ensemble.stream("?", temperatur=0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    asynchronous.ask_many(["?"], max_usd=[])  # type: ignore[call-overload]  # pyright: ignore
    asynchronous.stream("?", choice=["a"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ensemble.feedback(ensemble.ask("?"), reward="good")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    asynchronous.ask("?").text  # type: ignore[attr-defined]  # pyright: ignore  # noqa: B018
    ensemble.ask("?").text = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
