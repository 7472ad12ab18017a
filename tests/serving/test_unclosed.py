"""Ensembles that were not closed release their threads and files, and warn with the remedy."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from focalroute import AsyncEnsemble, Ensemble, EnsembleClosed, PoolError
from focalroute.sim import SimulatedModel, SimulatedPool
from tests.loopback import until

MANY = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool([SimulatedModel("e", skill=0.9), SimulatedModel("f", skill=0.6)]) as simulated:
        yield simulated


def open_now() -> tuple[int, int]:
    """Threads and file descriptors."""
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))


def warned(act: Callable[[], object], back_to: tuple[int, int]) -> list[str]:
    """The warnings of unclosed things while this runs and until everything is let go of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
        gc.collect()
        until(lambda: all(now <= before for now, before in zip(open_now(), back_to, strict=True)))
    return [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)]


def ask_each(pool: SimulatedPool, folder: Path, *, used: bool = True, knot: bool = False) -> None:
    for number in range(MANY):
        ensemble = Ensemble(pool.endpoints, store=folder / f"{number}.db")
        if used:
            ensemble.ask("What is 17 + 25?", choices=["32", "42"])
        if knot:
            ensemble.itself = ensemble  # type: ignore[attr-defined]


async def ask_each_async(pool: SimulatedPool, folder: Path) -> None:
    for number in range(MANY):
        ensemble = AsyncEnsemble(pool.endpoints, store=folder / f"{number}.db")
        await ensemble.ask("What is 17 + 25?", choices=["32", "42"])


def settled(pool: SimulatedPool) -> tuple[int, int]:
    """What is open once everything that is loaded lazily was used, the pool's own connections included."""
    with Ensemble(pool.endpoints) as ensemble:
        ensemble.ask("What is 17 + 25?", choices=["32", "42"])
    gc.collect()
    time.sleep(0.1)
    return open_now()


@pytest.mark.parametrize(
    ("used", "knot"), [(True, False), (True, True), pytest.param(False, False, marks=pytest.mark.slow)]
)
def test_dropped_ensembles_close_and_warn_once_each(
    pool: SimulatedPool, tmp_path: Path, used: bool, knot: bool
) -> None:
    """Used or not, and also where only the garbage collector finds them."""
    before = settled(pool)
    said = warned(lambda: ask_each(pool, tmp_path, used=used, knot=knot), before)
    assert said == ["an Ensemble was never closed; use `with Ensemble(...)`, or `ensemble.close()`"] * MANY


def test_dropped_async_ensembles_close_and_warn_after_their_loop_ended(pool: SimulatedPool, tmp_path: Path) -> None:
    before = settled(pool)

    def run() -> None:
        for number in range(MANY):
            ensemble = AsyncEnsemble(pool.endpoints, store=tmp_path / f"{number}.db")
            asyncio.run(use(ensemble))

    async def use(ensemble: AsyncEnsemble) -> None:
        await ensemble.ask("What is 17 + 25?", choices=["32", "42"])

    said = warned(run, before)
    assert (
        said
        == ["an AsyncEnsemble was never closed; use `async with AsyncEnsemble(...)`, or `await ensemble.aclose()`"]
        * MANY
    )


@pytest.mark.parametrize("stay_s", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_dropped_async_ensembles_close_and_warn_in_a_loop_that_goes_on_or_ends(
    pool: SimulatedPool, tmp_path: Path, stay_s: float
) -> None:
    before = settled(pool)

    async def run() -> None:
        await ask_each_async(pool, tmp_path)
        gc.collect()
        await asyncio.sleep(stay_s)

    said = warned(lambda: asyncio.run(run()), before)
    assert len(said) == MANY
    assert all(one.startswith("an AsyncEnsemble was never closed") for one in said)


def test_closed_ensembles_do_not_warn(pool: SimulatedPool) -> None:
    before = settled(pool)

    def use() -> None:
        with Ensemble(pool.endpoints) as ensemble:
            ensemble.ask("What is 17 + 25?", choices=["32", "42"])
        Ensemble(pool.endpoints).close()
        asyncio.run(use_async())

    async def use_async() -> None:
        async with AsyncEnsemble(pool.endpoints) as ensemble:
            await ensemble.ask("What is 17 + 25?", choices=["32", "42"])

    assert warned(use, before) == []


def test_an_ensemble_is_closed_while_its_thread_starts(pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is not started yet looks like one that has ended, and then nothing would be closed."""
    starting, start = threading.Event(), threading.Thread.start

    def start_late(self: threading.Thread) -> None:
        if self.name == "focalroute-loop":
            starting.set()
            time.sleep(0.2)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    ensemble = Ensemble(pool.endpoints)
    user = threading.Thread(target=ask_until_closed, args=(ensemble,))
    user.start()
    starting.wait(10)
    ensemble.close()
    assert ensemble._async.closed
    user.join()


def test_an_ask_just_before_the_loop_ends_finds_it_closed(pool: SimulatedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may close the ensemble after an ask has seen its loop run."""
    ensemble = Ensemble(pool.endpoints)
    loop, portal = ensemble._loop, ensemble._loop.portal()

    def seen_running() -> object:
        ensemble.close()
        return portal

    monkeypatch.setattr(loop, "portal", seen_running)
    with pytest.raises(EnsembleClosed, match="closed"):
        ensemble.ask("What is 17 + 25?", choices=["32", "42"])


def ask_until_closed(ensemble: Ensemble) -> None:
    """An ask that the closing may end."""
    with suppress(PoolError, EnsembleClosed):
        ensemble.ask("What is 17 + 25?", choices=["32", "42"])


def test_what_a_dropped_ensemble_paid_is_in_its_store(pool: SimulatedPool, tmp_path: Path) -> None:
    """Nothing that was queued is lost."""
    before = settled(pool)
    warned(lambda: ask_each(pool, tmp_path), before)
    with Ensemble(pool.endpoints, store=tmp_path / "0.db") as again:
        assert again.stats().asks == 1


@pytest.mark.parametrize("used", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("made", ["Ensemble", pytest.param("AsyncEnsemble", marks=pytest.mark.slow)])
def test_the_interpreter_ends_silently_and_at_once(pool: SimulatedPool, tmp_path: Path, made: str, used: bool) -> None:
    """With ensembles still held, by a module and in a knot, and all warnings on; no ask under way is waited for."""
    code = f"""
import asyncio, time
from focalroute.serving import closing
from focalroute import AsyncEnsemble, Ensemble, Endpoint
endpoint = Endpoint("e", model="e", base_url={pool.endpoints[0].base_url!r})
ensemble = {made}([endpoint], store={str(tmp_path / "s.db")!r})
ensemble.itself = ensemble
if {used}:
    done = ensemble.ask("q", choices=["a", "b"])
    if {made == "AsyncEnsemble"}:
        asyncio.run(done)
closing._CLOSING_S = 50.0
print(time.time())
"""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    assert time.time() - float(done.stdout) < 30


@pytest.mark.slow
def test_the_interpreter_ends_silently_after_an_update(pool: SimulatedPool, tmp_path: Path) -> None:
    """Closing started another thread, which a program that ends cannot do."""
    code = f"""
import logging
from focalroute import Endpoint, Ensemble
logging.disable(logging.WARNING)  # the policy folder is empty
endpoint = Endpoint("e", model="e", base_url={pool.endpoints[0].base_url!r})
ensemble = Ensemble([endpoint], store={str(tmp_path / "s.db")!r}, policy={str(tmp_path / "policy")!r}, update_every=1)
ensemble.feedback(ensemble.ask("q", choices=["a", "b"]), reward=1)
ensemble._async._updater._latest.result(60)
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=90)
    assert (done.stderr, done.returncode) == ("", 0)
