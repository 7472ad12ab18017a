"""Objects for each event loop, and many asks that begin in one turn of a loop."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from focalroute.core.event_loops import PerLoop, wait_until
from focalroute.serving.concurrency import MOST_ADMITTED, StartGate


def test_every_loop_has_its_own_object_and_closed_loops_are_forgotten() -> None:
    made = PerLoop(list[int])

    async def use(number: int) -> list[int]:
        assert made.known() is None
        made.here().append(number)
        assert made.known() is made.here()
        return made.here()

    assert [asyncio.run(use(number)) for number in range(3)] == [[0], [1], [2]]
    assert made.all() == [[2]]


async def begin(turns: StartGate, count: int) -> list[tuple[int, int]]:
    """Have so many begin at once; who did, and in which turn of the loop."""
    loop, begun, turn = asyncio.get_running_loop(), [], 0

    def tick() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(tick)

    async def one(number: int) -> None:
        if (wait := turns.enter()) is not None:
            await wait
        begun.append((number, turn))

    tick()
    await asyncio.gather(*map(one, range(count)))
    return begun


def test_a_bounded_number_begin_in_a_turn_and_all_in_their_order() -> None:
    async def main() -> list[tuple[int, int]]:
        return await begin(StartGate(), 5 * MOST_ADMITTED + 3)

    begun = asyncio.run(main())
    assert [number for number, _ in begun] == list(range(5 * MOST_ADMITTED + 3))
    assert sorted(Counter(turn for _, turn in begun).values()) == [3, *[MOST_ADMITTED] * 5]


def test_a_later_ask_does_not_overtake_and_does_not_wait_on_an_idle_loop() -> None:
    async def main() -> None:
        turns = StartGate()
        first = [turns.enter() for _ in range(2 * MOST_ADMITTED)]
        assert [wait is None for wait in first] == [True] * MOST_ADMITTED + [False] * MOST_ADMITTED
        await asyncio.sleep(0)  # the others begin in this turn, and take all of its places
        late = turns.enter()
        assert late is not None
        assert all(wait is None or wait.done() for wait in first)
        assert not late.done()
        for _ in range(3):
            await asyncio.sleep(0)
        assert late.done()
        assert turns.enter() is None

    asyncio.run(main())


@pytest.mark.parametrize("first", range(1, 3 * MOST_ADMITTED))
def test_the_order_is_kept_though_some_come_while_others_are_let_in(first: int) -> None:
    async def main() -> list[int]:
        turns, begun = StartGate(), []

        async def one(number: int) -> None:
            if (wait := turns.enter()) is not None:
                await wait
            begun.append(number)

        tasks = []
        for number in range(60):
            tasks.append(asyncio.ensure_future(one(number)))
            if number >= first and number % 3 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(main()) == list(range(60))


def test_a_waiter_that_gives_up_takes_no_place() -> None:
    async def main() -> None:
        turns = StartGate()
        waits = [turns.enter() for _ in range(3 * MOST_ADMITTED)]
        for wait in waits[MOST_ADMITTED : 2 * MOST_ADMITTED]:
            assert wait is not None
            wait.cancel()
        await asyncio.sleep(0)
        assert all(wait is None or wait.done() for wait in waits)

    asyncio.run(main())


def test_quiet_is_when_all_is_done_or_the_time_is_over() -> None:
    async def main() -> None:
        turns = StartGate()
        await wait_until(lambda: not turns.running, 60)
        with turns:
            with turns:
                await wait_until(lambda: not turns.running, 0.01)
                assert turns.running == 2
                waiting = asyncio.ensure_future(wait_until(lambda: not turns.running, 60))
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await waiting

    asyncio.run(main())
