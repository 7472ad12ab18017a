"""Many asks: order, bound, laziness, and what an exception does to the others."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import pytest

from focalroute.core.errors import ConfigError
from focalroute.serving.concurrency import ask_all

Ask = Callable[..., Awaitable[Any]]


def run(ask: Ask, queries: Iterable[Any], **options: Any) -> list[Any]:
    settings = {"concurrency": 4, "progress": False, "return_exceptions": False, "common": {}, **options}
    common = settings.pop("common")
    return asyncio.run(ask_all(ask, queries, common, **settings))


async def echo(query: str, *, task: str | None = None) -> Any:
    return (query, {"task": task}) if task else query


def test_answers_come_in_the_order_of_the_queries_whatever_finishes_first() -> None:
    async def main() -> None:
        gates = [asyncio.Event() for _ in range(5)]
        finished: list[int] = []

        async def ask(query: str) -> Any:
            number = int(query)
            await gates[number].wait()
            finished.append(number)
            if number:
                gates[number - 1].set()
            return query

        gates[4].set()
        asked = ask_all(ask, list("01234"), {}, concurrency=5, progress=False, return_exceptions=False)
        answers: list[Any] = await asked
        assert answers == list("01234")
        assert finished == [4, 3, 2, 1, 0]

    asyncio.run(main())


@pytest.mark.parametrize("concurrency", [1, 3, 10])
def test_the_bound_is_kept_and_reached(concurrency: int) -> None:
    under_way, most = 0, 0

    async def ask(query: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        under_way -= 1
        return query

    assert run(ask, [str(i) for i in range(40)], concurrency=concurrency) == [str(i) for i in range(40)]
    assert most == concurrency


def test_queries_are_read_as_they_are_needed() -> None:
    read: list[int] = []
    ahead: list[int] = []
    done = 0

    def queries() -> Iterator[str]:
        for number in range(20):
            read.append(number)
            yield str(number)

    async def ask(query: str) -> Any:
        nonlocal done
        ahead.append(len(read) - done)
        await asyncio.sleep(0)
        done += 1
        return query

    assert len(run(ask, queries(), concurrency=3)) == 20
    assert max(ahead) == 3


def test_common_arguments_go_to_every_ask_and_a_querys_own_win() -> None:
    queries = ["a", {"query": "b", "task": "own"}, [{"role": "user", "content": "c"}]]
    assert run(echo, queries, common={"task": "all"}) == [
        ("a", {"task": "all"}),
        ("b", {"task": "own"}),
        ([{"role": "user", "content": "c"}], {"task": "all"}),
    ]


def test_no_queries_give_no_answers() -> None:
    assert run(echo, []) == []


def test_the_first_exception_cancels_the_others_and_is_raised() -> None:
    cancelled: list[str] = []
    begun: list[str] = []

    async def ask(query: str) -> Any:
        begun.append(query)
        if query == "bad":
            await asyncio.sleep(0)
            raise RuntimeError("bad one")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(query)
            raise

    with pytest.raises(RuntimeError, match="bad one"):
        run(ask, ["a", "b", "bad", "c", "never", "never"], concurrency=4)
    assert begun == ["a", "b", "bad", "c"]
    assert sorted(cancelled) == ["a", "b", "c"]


def test_exceptions_take_their_answers_place_if_wanted() -> None:
    async def ask(query: str) -> Any:
        if query == "bad":
            raise RuntimeError(query)
        return query

    answers = run(ask, ["a", "bad", "b", {"task": "no query"}], return_exceptions=True, concurrency=2)
    assert (answers[0], answers[2]) == ("a", "b")
    assert isinstance(answers[1], RuntimeError)
    assert isinstance(answers[3], ConfigError)


def test_an_iterator_that_fails_is_raised_all_the_same() -> None:
    def queries() -> Iterator[str]:
        yield "a"
        raise OSError("the file ended")

    with pytest.raises(OSError, match="the file ended"):
        run(echo, queries(), return_exceptions=True)


def test_cancelling_it_cancels_every_ask() -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), 0

        async def ask(query: str) -> Any:
            nonlocal ended
            if query == "2":
                begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended += 1

        asked = ask_all(ask, list("012345"), {}, concurrency=3, progress=False, return_exceptions=True)
        task = asyncio.ensure_future(asked)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == 3
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@pytest.mark.parametrize("concurrency", [0, -1, 10_001])
def test_a_concurrency_out_of_bounds_is_a_config_error(concurrency: int) -> None:
    with pytest.raises(ConfigError, match="concurrency: give a whole number from 1 to 10000"):
        run(echo, ["a"], concurrency=concurrency)


def test_a_query_may_be_messages_under_that_name() -> None:
    async def ask(query: object = None, *, messages: object = None) -> Any:
        return messages

    conversation = [{"role": "user", "content": "Which planet?"}]
    assert run(ask, [{"messages": conversation}]) == [conversation]
    with pytest.raises(ConfigError, match="no key 'query'; give arguments of ask"):
        run(ask, [{}])
    with pytest.raises(ConfigError, match=r"unknown key 'question'; did you mean 'query'\? Give arguments of ask"):
        run(ask, [{"question": "Which planet?"}])


@pytest.mark.parametrize("library", ["pandas", "polars", "numpy"])
def test_a_table_is_not_asked_the_names_of_its_columns(library: str) -> None:
    made = pytest.importorskip(library)
    table = made.array([["a"], ["b"]]) if library == "numpy" else made.DataFrame({"query": ["a", "b"]})
    with pytest.raises(ConfigError, match="queries: is a table; give one of its columns"):
        run(echo, table)
    assert run(echo, table[:, 0] if library == "numpy" else table["query"]) == ["a", "b"]


@pytest.mark.parametrize("queries", ["Which planet?", {"query": "Which planet?"}])
def test_a_single_query_is_not_taken_apart(queries: Any) -> None:
    with pytest.raises(ConfigError, match="queries: give a list"):
        run(echo, queries)


@pytest.mark.parametrize("sized", [True, False])
def test_a_progress_bar_counts_the_answers_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sized: bool
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich then takes the captured output for a terminal
    monkeypatch.setenv("TERM", "xterm")
    queries = ["a", "b", "c"]
    assert run(echo, queries if sized else iter(queries), progress=True) == queries
    assert ("3/3" if sized else "3/?") in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err)


def test_a_notebook_shows_the_progress_bar_or_says_what_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.warns(UserWarning, match='install "ipywidgets"'):
        assert run(echo, ["a"], progress=True) == ["a"]
