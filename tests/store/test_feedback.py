"""Feedback reaches every listener once and in order, whichever process gave it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute.core.errors import StoreError
from focalroute.core.records import Feedback
from focalroute.learn.trajectory import counting_feedback
from focalroute.store.base import MOST_REVISIONS, Store, StoredAnswer, StoredProbe
from focalroute.store.sqlite.store import SqliteStore
from tests.loopback import until
from tests.store.engines import Engine
from tests.store.made import answer, edit, judge, on_thread, trajectory

Heard = list[str]


def listener(heard: Heard) -> Callable[[Sequence[tuple[StoredAnswer, Feedback]]], None]:
    return lambda rows: heard.extend(f"{stored.id}/{feedback.source}" for stored, feedback in rows)


def fill(store: Store, *names: str) -> None:
    store.write(*(answer(name) for name in names)).result(10)
    for name in names:
        store.write(judge(name)).result(10)


def test_listeners_get_own_feedback_before_its_future_resolves(engine: Engine) -> None:
    """Whoever awaited the feedback asks with what was learned from it."""
    heard: Heard = []
    with closing(engine.open(poll_s=3600)) as store:
        store.write(answer("x", steps=trajectory())).result(10)
        store.subscribe(listener(heard), last=10)
        for i in range(50):
            call = store.write(judge("x", source=str(i)))
            at_resolving: list[int] = []
            call.add_done_callback(lambda _, seen=at_resolving: seen.append(len(heard)))
            call.result(10)
            assert len(heard) == i + 1
            assert at_resolving == [i + 1]


def test_a_listener_gets_the_latest_feedback_first_and_then_all_new(engine: Engine) -> None:
    """Two listeners that joined at different times and depths miss nothing and hear nothing twice."""
    few: Heard = []
    many: Heard = []
    none: Heard = []
    with closing(engine.open()) as store:
        fill(store, "a", "b", "c")
        store.subscribe(listener(few), last=2)
        assert few == ["b/user", "c/user"]
        fill(store, "d")
        store.subscribe(listener(many), last=100)
        store.subscribe(listener(none), last=0)
        fill(store, "e")
    assert few == ["b/user", "c/user", "d/user", "e/user"]
    assert many == ["a/user", "b/user", "c/user", "d/user", "e/user"]
    assert none == ["e/user"]


def test_a_listener_begins_with_all_feedback_on_the_latest_answers(engine: Engine) -> None:
    """Second thoughts and judges displace no other answer, and a judge is heard after the user that it cannot replace.

    Else a restart would forget what was known before it.
    """
    heard: Heard = []
    with closing(engine.open()) as store:
        fill(store, "a", "b", "c", "d")
        said = [judge("b", -1.0), judge("c", source="judge"), judge("d", source="judge"), judge("b", source="judge")]
        for one in (*said, judge("b", 0.5)):
            store.write(one).result(10)
        store.subscribe(listener(heard), last=2)
        assert heard == ["b/user", "d/user", "b/user", "d/judge", "b/judge", "b/user"]
        fill(store, "e")
    assert heard[6:] == ["e/user"]


def test_a_late_listener_gets_feedback_of_another_process_only_once(engine: Engine) -> None:
    """Feedback that came from elsewhere and was not yet looked for is among its last ones, and only there."""
    first: Heard = []
    second: Heard = []
    with (
        closing(engine.open(poll_s=3600)) as store,
        closing(engine.open()) as other,
    ):
        store.subscribe(listener(first), last=5)
        fill(other, "a", "b")
        store.subscribe(listener(second), last=1)
        assert first == ["a/user", "b/user"]
        fill(store, "c")
    assert first == ["a/user", "b/user", "c/user"]
    assert second == ["b/user", "c/user"]


def test_an_identical_repeat_succeeds_without_telling_listeners_and_a_different_one_replaces_it(engine: Engine) -> None:
    """A lost acknowledgement may be retried; of second thoughts the latest counts, and all are kept."""
    heard: Heard = []
    with closing(engine.open()) as store:
        store.subscribe(listener(heard), last=5)
        store.write(answer("x")).result(10)
        for _ in range(3):
            store.write(judge("x", 1, label="key0")).result(10)
        store.write(judge("x", -1.0, source="judge")).result(10)
        thoughts = [judge("x", -1.0, label="key1"), judge("x", 1.0, label="key0")]
        for different in thoughts:
            store.write(different).result(10)
            store.write(different).result(10)
        ((_, kept),) = store.recent(9)
        assert [(one.source, one.label) for one in kept[1:]] == [("judge", None), ("user", "key1"), ("user", "key0")]
        assert store.verify() == ()
    assert heard == ["x/user", "x/judge", "x/user", "x/user"]


def test_a_repeat_is_not_later_than_what_another_source_said_since(engine: Engine) -> None:
    """It may be a message that was delivered twice; to count again, a source must say something else."""
    with closing(engine.open()) as store:
        store.write(answer("x")).result(10)

        def after(source: str, key: str) -> str | None:
            store.write(judge("x", source=source, label=key)).result(10)
            ((_, said),) = store.recent(9)
            found = counting_feedback(said)
            return None if found is None else found.right

        assert [after("a", "key0"), after("b", "key1"), after("a", "key0")] == ["key0", "key1", "key1"]
        assert [after("a", "key1"), after("b", "key1"), after("a", "key0")] == ["key1", "key1", "key0"]


def test_a_source_may_change_its_feedback_any_number_of_times_and_a_hundred_are_kept(engine: Engine) -> None:
    """Such as the users of a cached answer, where an application names none of them; the latest word counts."""
    heard: list[float] = []
    with closing(engine.open()) as store, closing(engine.open()) as other:
        store.write(answer("x")).result(10)
        other.subscribe(lambda rows: heard.extend(said.reward for _, said in rows), last=1)
        for n in range(MOST_REVISIONS + 50):
            for _ in range(2):
                store.write(judge("x", n / 1000)).result(10)
        store.write(judge("x", -1.0, source="user2")).result(10)
        ((_, kept),) = store.recent(9)
        said = [one.reward for one in kept if one.source == "user"]
        assert said == [*(n / 1000 for n in range(MOST_REVISIONS - 1)), 0.149]
        assert kept[-1].source == "user2"
        assert store.verify() == ()
        until(lambda: heard[-1:] == [-1.0])
        assert heard[-2] == 0.149


def test_listeners_do_not_get_the_feedback_of_a_failed_call(engine: Engine) -> None:
    """Nothing is learned that is not committed."""
    heard: Heard = []
    with closing(engine.open()) as store:
        store.subscribe(listener(heard), last=5)
        assert store.write(answer("x"), judge("x"), judge("nobody")).exception(10)
        fill(store, "y")
    assert heard == ["y/user"]


def test_feedback_of_another_process_arrives_even_while_this_one_is_busy(engine: Engine) -> None:
    """The thread that never runs out of writes looks around all the same."""
    heard: Heard = []
    arrived, stop = threading.Event(), threading.Event()

    def hear(rows: Sequence[tuple[StoredAnswer, Feedback]]) -> None:
        listener(heard)(rows)
        arrived.set()

    def be_busy(store: Store, name: str) -> None:
        for i in range(100_000):
            if stop.is_set():
                return
            store.write(answer(f"{name}-{i}")).result(10)

    with (
        closing(engine.open(poll_s=0.01)) as store,
        closing(engine.open()) as other,
    ):
        store.subscribe(hear, last=5)
        with ThreadPoolExecutor(2) as pool:
            busy = [pool.submit(be_busy, store, name) for name in "ab"]
            fill(other, "x")
            came = arrived.wait(10)
            stop.set()
            for each in busy:
                each.result(10)
    assert came
    assert heard == ["x/user"]


def test_feedback_may_be_for_the_answer_of_another_process(engine: Engine) -> None:
    """By its id, in either direction, and both hear it."""
    here: Heard = []
    there: Heard = []
    with (
        closing(engine.open(poll_s=0.01)) as store,
        closing(engine.open(poll_s=0.01)) as other,
    ):
        store.subscribe(listener(here), last=5)
        other.subscribe(listener(there), last=5)
        store.write(answer("x")).result(10)
        assert other.answer("x") == answer("x")
        other.write(judge("x")).result(10)
        assert there == ["x/user"]
        store.write(judge("x", -1.0)).result(10)
        assert here == ["x/user", "x/user"]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_listener_that_fails_does_not_affect_others(
    engine: Engine, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """The others hear it, the future resolves, and the log has it."""
    heard: Heard = []

    def fail(_: object) -> None:
        raise error("no")

    with closing(engine.open()) as store:
        fill(store, "a")
        store.subscribe(fail, last=5)
        store.subscribe(listener(heard), last=5)
        fill(store, "b")
    assert heard == ["a/user", "b/user"]
    assert "an on_feedback callback failed on 1 rows" in caplog.text


def test_a_listener_may_read_write_and_close(engine: Engine) -> None:
    """Reading on the store's own thread does not wait for itself."""
    seen: list[object] = []

    def curious(rows: Sequence[tuple[StoredAnswer, Feedback]]) -> None:
        seen.append(len(store.totals()))
        seen.append(store.answer("nobody"))
        store.write(answer("from within"))
        store.close()

    store = engine.open()
    store.subscribe(curious, last=5)
    store.write(answer("x"), judge("x")).result(10)
    store.close()
    assert seen == [0, None]


def test_a_damaged_answer_does_not_hold_up_other_feedback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out, and the log names it."""
    heard: Heard = []
    path = tmp_path / "s.db"
    with closing(SqliteStore(path)) as store:
        fill(store, "a", "b", "c")
        edit(path, "UPDATE answers SET record = 'no' WHERE id = 'b'")
        store.subscribe(listener(heard), last=5)
        store.write(judge("b", source="judge"), judge("c", source="judge")).result(10)
        assert [row.id for row, _ in store.recent(9)] == ["a", "c"]
    assert heard == ["a/user", "c/user", "c/judge"]
    assert "answer b: its row is damaged" in caplog.text


def test_feedback_that_could_not_be_read_arrives_later(caplog: pytest.LogCaptureFixture) -> None:
    """The feedback stands; what failed was only telling of it."""
    heard: Heard = []
    with closing(SqliteStore(poll_s=3600)) as store:
        store.write(answer("x")).result(10)
        store.subscribe(listener(heard), last=5)
        hide = "CREATE TEMP VIEW answers AS SELECT id FROM main.answers"
        on_thread(store, lambda db: db.execute(hide))
        store.write(judge("x")).result(10)
        assert heard == []
        on_thread(store, lambda db: db.execute("DROP VIEW temp.answers"))
        store.write(judge("x", source="judge")).result(10)
    assert heard == ["x/user", "x/judge"]
    assert "trying again" in caplog.text


# -- probes ------------------------------------------------------------------------------------------------------------


def probe(answer_id: str, endpoint: str = "late", key: str | None = "key1") -> StoredProbe:
    return StoredProbe(answer_id, endpoint, key, 7, 0.1 + 0.2, Decimal("0.000123"))


def probes_heard(rows: Sequence[tuple[StoredAnswer, Feedback]]) -> list[tuple[str, str, tuple[StoredProbe, ...]]]:
    return [(stored.id, feedback.source, stored.probes) for stored, feedback in rows]


def test_a_probe_before_the_feedback_comes_with_it_and_a_later_probe_repeats_it(engine: Engine) -> None:
    heard: list[tuple[str, str, tuple[StoredProbe, ...]]] = []
    with closing(engine.open(poll_s=3600)) as store:
        store.subscribe(lambda rows: heard.extend(probes_heard(rows)), last=9)
        store.write(answer("x"), answer("y")).result(10)
        store.write(probe("x")).result(10)
        assert heard == []
        store.write(judge("x")).result(10)
        store.write(judge("x", source="judge")).result(10)
        assert heard == [("x", "user", (probe("x"),)), ("x", "judge", (probe("x"),))]
        store.write(probe("x", "later", None)).result(10)
        both = (probe("x"), probe("x", "later", None))
        assert [(name, said, set(probes)) for name, said, probes in heard[2:]] == [
            ("x", "user", set(both)),
            ("x", "judge", set(both)),
        ]
        again = store.answer("x")
        assert again is not None
        assert set(again.probes) == set(both)
        assert [len(stored.probes) for stored, _ in store.recent(9)] == [2, 0]
        assert store.verify() == ()


def test_a_probe_written_by_another_process_arrives_with_the_next_poll(engine: Engine) -> None:
    """Whichever of two stores on a file probes, and whichever is told."""
    heard: list[tuple[str, str, tuple[StoredProbe, ...]]] = []
    done = threading.Event()

    def hear(rows: Sequence[tuple[StoredAnswer, Feedback]]) -> None:
        heard.extend(probes_heard(rows))
        if heard[-1][2]:
            done.set()

    with closing(engine.open()) as one, closing(engine.open(poll_s=0.01)) as other:
        one.write(answer("x")).result(10)
        other.subscribe(hear, last=9)
        other.write(judge("x")).result(10)
        one.write(probe("x")).result(10)
        assert done.wait(10)
    assert heard == [("x", "user", ()), ("x", "user", (probe("x"),))]


def test_a_probe_of_an_unknown_answer_or_a_second_one_is_refused(engine: Engine) -> None:
    with closing(engine.open()) as store:
        store.write(answer("x"), probe("x")).result(10)
        for row in (probe("nobody"), probe("x")):
            with pytest.raises(StoreError, match="cannot be stored"):
                store.write(row).result(10)
        found = store.answer("x")
        assert found is not None
        assert found.probes == (probe("x"),)


def test_a_pruned_answer_takes_its_probes_along() -> None:
    with closing(SqliteStore(keep=5)) as store:
        for n in range(30):
            store.write(answer(str(n)), probe(str(n))).result(10)
        kept = on_thread(store, lambda db: db.execute("SELECT count(*) FROM probes").fetchone()[0])
    assert kept <= 10
