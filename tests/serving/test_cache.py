"""A cache of answers: what is identical, for how long, and that a hit costs and teaches nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from pydantic import BaseModel

from focalroute import Answer, AsyncEnsemble, ConfigError, DeadlineExceeded, Endpoint, Ensemble, PoolError
from focalroute.sim import SimulatedPool
from tests.loopback import Server, completion, json_reply, serving, until_checked

QUESTION, CHOICES = "What is 17 + 25?", ["32", "42", "44"]


class Sum(BaseModel):
    total: int


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool() as made:
        yield made


def calls(ensemble: Ensemble) -> int:
    return sum(endpoint.calls for endpoint in ensemble.stats().endpoints.values())


def test_an_identical_question_has_the_same_answer_for_nothing(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, cache_ttl_s=60, probe_share=0) as ensemble:
        first = ensemble.ask(QUESTION, choices=CHOICES, metadata={"n": 1})
        until_checked(ensemble)
        ensemble.feedback(first, label="42")
        paid, seen = calls(ensemble), [one.seen for one in ensemble.stats().endpoints.values()]
        again = ensemble.ask(QUESTION, choices=CHOICES, metadata={"n": 2})
        ensemble.feedback(again, label="42")
        assert (again.id, again.text, again.receipt) == (first.id, first.text, first.receipt)
        assert (first.cached, again.cached) == (False, True)
        assert again.cost == 0
        assert again.metadata == {"n": 2}
        assert repr(again).endswith("cached)")
        assert calls(ensemble) == paid
        assert [one.seen for one in ensemble.stats().endpoints.values()] == seen


def test_changing_one_answers_value_changes_no_others(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, cache_ttl_s=60) as ensemble:
        made = [ensemble.ask(QUESTION, answer=Sum) for _ in range(3)]
        assert [answer.cached for answer in made] == [False, True, True]
        total = made[0].value.total
        for changed in made[:2]:
            changed.value.total = -1
        assert ensemble.ask(QUESTION, answer=Sum).value.total == made[2].value.total == total


@pytest.mark.parametrize(
    "other",
    [
        {"query": "What is 17 + 26?"},
        {"choices": ["32", "42"]},
        {"choices": [32, 42, 44]},
        {"choices": None, "answer": "number"},
        {"choices": None, "answer": Sum},
        {"choices": None, "answer": int},
        {"choices": None, "answer": list[int]},
        {"params": {"temperature": 1}},
        {"params": {"logit_bias": {11: 1, "12": 1}}},
        {"tags": ["acme"]},
    ],
)
def test_any_other_question_is_asked(pool: SimulatedPool, other: dict[str, Any]) -> None:
    with Ensemble(pool.endpoints, cache_ttl_s=60) as ensemble:
        ensemble.ask(QUESTION, choices=CHOICES)
        asked = {"query": QUESTION, "choices": CHOICES, **other}
        assert not ensemble.ask(**asked).cached
        assert ensemble.ask(**asked).cached


def test_messages_that_change_while_they_are_asked_are_another_question(pool: SimulatedPool) -> None:
    """Their answer was kept for what they had become."""
    messages = [{"role": "user", "content": QUESTION}]

    async def main() -> None:
        async with AsyncEnsemble(pool.endpoints, cache_ttl_s=60) as ensemble:
            asked = asyncio.ensure_future(ensemble.ask(messages, choices=CHOICES))
            await asyncio.sleep(0)
            messages[0]["content"] = "What is 16 + 16?"
            first = await asked
            assert not (await ensemble.ask(messages, choices=CHOICES)).cached
            assert (await ensemble.ask(QUESTION, choices=CHOICES)).id == first.id

    asyncio.run(main())


def many_at_once(**settings: Any) -> tuple[list[Answer], int]:
    """Ten identical questions, asked at the same time; and how many calls there were."""

    async def main() -> list[Answer]:
        async with AsyncEnsemble([endpoint], **settings) as ensemble:
            return await asyncio.gather(*(ensemble.ask("Say it.") for _ in range(10)))

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        return json_reply(completion("It."))

    with serving(says) as service:
        endpoint = Endpoint("e", model="m", base_url=service.url)
        return asyncio.run(main()), len(service.received)


def test_identical_questions_at_the_same_time_are_asked_once() -> None:
    answers, made = many_at_once(cache_ttl_s=60)
    assert made == 1
    assert len({one.id for one in answers}) == 1
    assert [one.cached for one in answers] == [False, *[True] * 9]
    assert many_at_once()[1] == 10


def test_a_waiter_whose_ask_failed_asks_within_its_own_remaining_time() -> None:
    """One of them first; as it fails as well all others at once, each of which is answered when the last has come."""
    calls, all_here, hasty_left = itertools.count(1), asyncio.Event(), threading.Event()

    async def fails(_: web.Request, __: Any) -> web.StreamResponse:
        call = next(calls)
        if call == 7:
            all_here.set()
        if call == 1:
            await asyncio.to_thread(hasty_left.wait, 60)
        elif call == 2:
            await asyncio.sleep(0.2)
            assert next(calls) == 3  # no other ask has come
        else:
            await asyncio.wait_for(all_here.wait(), 60)
        return json_reply({"error": {"message": "no"}}, 400)

    async def main(service: Server) -> list[BaseException | Answer]:
        settings: Any = {"cache_ttl_s": 60, "attempts": 1, "deadline_s": 60}
        async with AsyncEnsemble([Endpoint("e", model="m", base_url=service.url)], **settings) as ensemble:
            asked = [asyncio.ensure_future(ensemble.ask("Say it.")) for _ in range(6)]
            await asyncio.to_thread(service.arrived.wait)
            with pytest.raises(DeadlineExceeded):
                await ensemble.ask("Say it.", deadline_s=0.1)
            hasty_left.set()
            return await asyncio.gather(*asked, return_exceptions=True)

    with serving(fails) as service:
        first, *others = asyncio.run(main(service))
    assert isinstance(first, PoolError)
    failures = [one.replies[0].error for one in others if isinstance(one, PoolError)]
    assert [failure and failure.status for failure in failures] == [400] * 5
    assert next(calls) == 8


@pytest.mark.parametrize("gives_up", [True, False])
def test_of_several_waiters_for_an_ask_that_failed_or_was_given_up_only_one_asks(gives_up: bool) -> None:
    """A page that is reloaded in nine tabs is not paid for nine times."""

    calls, left = itertools.count(1), threading.Event()

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        if next(calls) > 1:
            return json_reply(completion("It."))
        await (asyncio.sleep(60) if gives_up else asyncio.to_thread(left.wait, 60))
        return json_reply({"error": {"message": "no"}}, 400)

    async def main(service: Server) -> list[Answer]:
        async with AsyncEnsemble([Endpoint("e", model="m", base_url=service.url)], cache_ttl_s=60) as ensemble:
            first = asyncio.ensure_future(ensemble.ask("Say it."))
            others = asyncio.gather(*(ensemble.ask("Say it.") for _ in range(9)))
            await asyncio.to_thread(service.arrived.wait)
            left.set()
            if gives_up:
                first.cancel()
            return await others

    with serving(says) as service:
        answers = asyncio.run(main(service))
        assert len(service.received) == 2
    assert [one.cached for one in answers] == [False, *[True] * 8]


def test_an_ask_that_is_given_up_leaves_no_caller_waiting(pool: SimulatedPool) -> None:
    async def main() -> None:
        async with AsyncEnsemble(pool.endpoints, cache_ttl_s=60) as ensemble:
            first = asyncio.ensure_future(ensemble.ask(QUESTION, choices=CHOICES))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(ensemble.ask(QUESTION, choices=CHOICES))
            await asyncio.sleep(0)
            first.cancel()
            assert not (await second).cached
            assert not ensemble._cache._under_way

    asyncio.run(main())


def test_it_is_off_by_default_and_ends_in_time(pool: SimulatedPool) -> None:
    async def main() -> None:
        async with AsyncEnsemble(pool.endpoints, cache_ttl_s=0.2) as ensemble:
            await ensemble.ask(QUESTION, choices=CHOICES)
            await asyncio.sleep(0.25)
            assert not (await ensemble.ask(QUESTION, choices=CHOICES)).cached

    asyncio.run(main())
    with Ensemble(pool.endpoints) as ensemble:
        assert not [one for one in (ensemble.ask(QUESTION, choices=CHOICES) for _ in range(2)) if one.cached]
    with pytest.raises(ConfigError, match="cache_ttl_s"):
        Ensemble(pool.endpoints, cache_ttl_s=0)


def test_the_cache_is_bounded(pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used goes first."""
    monkeypatch.setattr("focalroute.serving.cache._MOST_CHARACTERS", 12_000)
    with Ensemble(pool.endpoints, cache_ttl_s=60) as ensemble:

        def cached(number: int) -> bool:
            return ensemble.ask(f"What is 17 + {number}?", choices=CHOICES).cached

        assert [cached(number) for number in (1, 2, 1, 3, 1, 2)] == [False, False, True, False, True, False]


@dataclass
class Ending:
    """A callable that cannot be hashed, as it compares equal by value."""

    characters: int

    def __call__(self, text: str) -> str:
        return text[-self.characters :]


@pytest.mark.parametrize("ttl_s", [None, 60])
def test_a_callable_that_cannot_be_hashed_is_answered_and_not_cached(pool: SimulatedPool, ttl_s: float | None) -> None:
    with Ensemble(pool.endpoints, cache_ttl_s=ttl_s) as ensemble:
        kind = Ending(2)
        first = ensemble.ask(QUESTION, answer=kind)
        kind.characters = 1
        again = ensemble.ask(QUESTION, answer=kind)
        assert (len(first.value), len(again.value), again.cached) == (2, 1, False)
