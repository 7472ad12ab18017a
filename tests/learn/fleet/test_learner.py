"""A fleet's one learner: whatever happens to it, every feedback is learned from and acknowledged once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focalroute import Endpoint, Ensemble
from focalroute.cli.app import app
from focalroute.core.errors import ConfigError, PolicyError
from focalroute.core.records import Usage
from focalroute.learn.fleet import Follower, fetch, rollback_fleet_command
from focalroute.learn.fleet.learner import Archive, FleetLearner
from focalroute.learn.online import update_policy
from focalroute.learn.update_report import UpdateReport
from focalroute.policy import bundle
from focalroute.policy.fallback import Fallback
from focalroute.policy.publish import FILES, install, publish
from focalroute.policy.slot import PolicySlot
from focalroute.store import is_shared, open_store
from focalroute.store.base import LedgerRow
from focalroute.store.redis.fleet_policy import FleetPolicy
from focalroute.store.redis.reads import oldest_answers, oldest_ledger
from focalroute.store.redis.store import RedisStore
from tests.learn.made import linear_learner, play
from tests.learn.test_online import fill, put
from tests.loopback import until
from tests.redis_server import RedisServer, place
from tests.store.made import answer, judge


@pytest.fixture
def where(redis_server: RedisServer) -> str:
    return place(redis_server.url)


@pytest.fixture
def store(where: str) -> Iterator[RedisStore]:
    with closing(RedisStore(where, poll_s=0.02)) as opened:
        yield opened


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A folder with the policy that the fleet begins with."""
    folder = tmp_path / "start"
    put(folder, linear_learner())
    return folder


def played(count: int, seed: int, version: int = 1) -> Any:
    return play(linear_learner(), count, seed, version=version)


def published(store: RedisStore, learner: FleetLearner, seed: int = 0) -> int:
    """Feed the fleet until the learner has put a challenger on trial and published it; the version."""
    fill(store, played(500, seed, FleetPolicy(store).state().current or 1))
    assert on_trial(learner.step())
    fill(store, played(1000, seed + 1000, FleetPolicy(store).state().current))
    report = learner.step()
    assert report is not None
    assert report.status == "published", report.reason
    return report.version


def on_trial(report: UpdateReport | None) -> int:
    """The challenger."""
    assert report is not None
    assert report.status == "on trial", report.reason
    return report.challenger or 0


def test_it_learns_once_there_is_enough_and_notes_every_feedback_once(store: RedisStore, start: Path) -> None:
    learner, fleet_policy = FleetLearner(store, start=start, every=400, seed=0), FleetPolicy(store)
    fill(store, played(399, 0))
    assert learner.step() is None
    assert (fleet_policy.state().current, fleet_policy.state().learned) == (1, 0)
    fill(store, played(101, 1))
    assert on_trial(learner.step()) == 2
    state = fleet_policy.state()
    assert (state.current, state.versions, state.learned) == (1, (1,), 500)
    assert learner.step() is None
    assert fleet_policy.unlearned(10_000) == []


def test_a_trial_writes_no_files_but_its_own(store: RedisStore, start: Path, tmp_path: Path) -> None:
    """Whoever may write to Redis could else write to any file of the learner's user."""
    learner = FleetLearner(store, start=start, every=1, seed=0)
    fill(store, played(20, 0))
    FleetPolicy(store).keep_trial({f"{tmp_path}/absolute": b"x", f"../{'../' * 9}{tmp_path}/relative": b"x"})
    assert learner.step() is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["start"]


@pytest.mark.slow
def test_the_next_learner_continues_a_trial(store: RedisStore, start: Path) -> None:
    """The challenger and its evidence are in Redis; workers hear of it once it is published."""
    one, fleet_policy = FleetLearner(store, start=start, every=1, seed=0), FleetPolicy(store)
    fill(store, played(500, 0))
    assert on_trial(one.step()) == 2
    fill(store, played(20, 1))
    assert on_trial(one.step()) == 2
    one.close()
    other = FleetLearner(store, start=start, every=1, seed=0)
    fill(store, played(1300, 2))
    report = other.step()
    assert report is not None
    assert (report.status, report.version) == ("published", 2)
    assert report.comparison is not None
    assert report.comparison.episodes == 1320
    state = fleet_policy.state()
    assert (state.current, state.versions, state.learned) == (2, (1, 2), 1820)
    assert fleet_policy.trial().keys() == {"trial.npz"}


def test_the_same_seed_and_feedback_give_the_same_policy_as_one_file_does(store: RedisStore, start: Path) -> None:
    rows = played(500, 0)
    fill(store, rows)
    assert on_trial(FleetLearner(store, start=start, every=1, seed=3).step()) == 2
    with closing(open_store(None)) as alone:
        fill(alone, rows)
        update_policy(alone, start, seed=4)  # in a fleet the seed counts from the version
    shared = FleetPolicy(store).trial()
    here = bundle.folder_of(start, 2)
    for name in ("decider.onnx", "fusion.onnx"):
        assert shared[f"v000002/{name}"] == (here / name).read_bytes()


def test_of_two_candidates_one_learns_and_the_other_takes_over_when_its_lease_ends(
    store: RedisStore, start: Path
) -> None:
    one = FleetLearner(store, start=start, every=1, seed=0, lease_s=60)
    other = FleetLearner(store, start=start, every=1, seed=0)
    fill(store, played(500, 0))
    assert on_trial(one.step()) == 2
    fill(store, played(10, 1))
    assert other.step() is None
    assert "another process learns" in other.run().reason
    assert FleetPolicy(store).lease("keep", one._who, 0.01)  # for no longer
    until(lambda: other.step() is not None)
    assert FleetPolicy(store).state().learned == 510
    other.close()
    assert one.run().reason != "another process learns for this fleet now"


def test_a_learner_that_lost_the_lease_publishes_nothing_and_leaves_its_feedback(
    store: RedisStore, start: Path
) -> None:
    fleet_policy = FleetPolicy(store)
    fill(store, played(5, 0))
    token = fleet_policy.lease("take", "asleep", 0.01)
    entries = fleet_policy.unlearned(100)
    until(lambda: bool(fleet_policy.lease("take", "awake", 5.0)))
    files = {path.name: path.read_bytes() for path in bundle.folder_of(start, 1).iterdir()}
    assert fleet_policy.publish(files, version=1, parent=0, token=token, learned=entries) == "fenced"
    assert (fleet_policy.state().current, fleet_policy.state().learned) == (0, 0)
    assert fleet_policy.unlearned(100) == entries
    assert fleet_policy.state().token == token + 1


@pytest.mark.slow
def test_a_policy_rolled_back_under_an_update_stays_so(store: RedisStore, start: Path) -> None:
    learner, fleet_policy = FleetLearner(store, start=start, every=1, seed=0), FleetPolicy(store)
    assert published(store, learner) == 2
    fill(store, played(500, 1, version=2))
    token = fleet_policy.lease("keep", learner._who, 60.0)
    entries = fleet_policy.unlearned(1000)
    assert fleet_policy.roll_back(1)
    assert fleet_policy.publish({"manifest.json": b""}, version=3, parent=2, token=token, learned=entries) == "moved"
    assert (fleet_policy.state().current, fleet_policy.unlearned(1000)) == (1, entries)
    assert on_trial(learner.step()) == 3
    assert fleet_policy.state().versions == (1, 2)


DYING = """
import os, signal, sys, time
from focalroute.learn.fleet import learner
from focalroute.store.redis.store import RedisStore

def die(*_, **__):
    print("dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

learner.update_policy = die  # at the worst moment: the feedback is taken, nothing is published
one = learner.FleetLearner(RedisStore(sys.argv[1]), every=1, lease_s=0.3)
while one.step() is None:  # the lease of the one that died before has not ended yet
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_learner_killed_in_its_update_is_replaced_and_nothing_is_lost(where: str, store: RedisStore) -> None:
    fill(store, played(500, 0, version=0))
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", DYING, where], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "dies\n"), done.stderr
    successor = FleetLearner(store, every=1, seed=0)
    until(lambda: successor.step() is not None)
    assert FleetPolicy(store).state().learned == 500
    assert FleetPolicy(store).unlearned(10) == []


def test_workers_follow_what_is_published_and_rolled_back(store: RedisStore, where: str, tmp_path: Path) -> None:
    put(tmp_path / "start", linear_learner())
    folder = tmp_path / "worker"
    slot = PolicySlot.open(folder)
    follower = Follower(store, slot, folder)
    learner = FleetLearner(store, start=tmp_path / "start", every=1, seed=0)
    assert published(store, learner) == 2
    until(lambda: slot.current.version == 2)
    assert not (bundle.folder_of(folder, 2) / "learner.npz").exists()
    runner_output = roll_back(where)
    until(lambda: slot.current.version == 1)
    assert runner_output.endswith("version 1 serves now\n")
    follower.close()
    roll_back(where, "2")
    until(lambda: store._version == 2)
    store.write(answer("later")).result(10)  # the store's thread has survived that
    assert bundle.load(folder).version == 1
    slot.close()


def roll_back(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["policy", "rollback", *arguments], catch_exceptions=False)
    return done.output


def test_a_worker_starts_with_the_fleets_policy_or_without_redis_with_its_last_one(
    store: RedisStore, start: Path, tmp_path: Path
) -> None:
    fetch(store, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    FleetLearner(store, start=start, every=10**6).step()
    fetch(store, tmp_path / "worker")
    assert bundle.load(tmp_path / "worker").version == 1
    store.close()
    fetch(store, tmp_path / "worker")
    assert bundle.load(tmp_path / "worker").version == 1


def test_a_version_that_is_damaged_in_redis_keeps_no_worker_from_starting(
    where: str, store: RedisStore, start: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FleetLearner(store, start=start, every=10**6).step()
    store.run(lambda connection: connection.command("HSET", connection.keys["bundles"], "1/decider.onnx", b"x"))
    pool = [Endpoint("a", model="m", base_url="http://127.0.0.1:9/v1")]
    with Ensemble(pool, store=where, policy=tmp_path / "worker") as ensemble:
        assert ensemble.stats().policy_version == 0
        until(lambda: "version 1 of the fleet's policy: " in caplog.text)


def test_a_version_whose_files_are_gone_is_named_and_an_earlier_one_may_serve(
    where: str, store: RedisStore, start: Path
) -> None:
    """A rollback ended with KeyError, and an update named a temporary folder."""
    fleet_policy, learner = FleetPolicy(store), FleetLearner(store, start=start, every=10**6)
    learner.step()
    files = {path.name: path.read_bytes() for path in bundle.folder_of(start, 1).iterdir()}
    assert fleet_policy.publish({**files, "notes": b"x"}, version=2, parent=1) == "done"
    store.run(lambda connection: connection.command("HDEL", connection.keys["bundles"], "2/notes"))
    with pytest.raises(PolicyError, match="the files of version 2, which serves, are missing"):
        learner.run()
    with pytest.raises(ConfigError, match="the files of version 2 are missing; name another version"):
        rollback_fleet_command(where, None)
    rollback_fleet_command(where, 1)
    assert learner.run().version == 1


def test_a_bundle_of_other_files_is_not_installed(start: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in bundle.folder_of(start, 1).iterdir()}
    for wrong in ({}, {**files, "../escaped": b"x"}):
        with pytest.raises(PolicyError, match="publish it again"):
            install(tmp_path / "here", 1, wrong)
    with pytest.raises(PolicyError, match="SHA-256"):
        install(tmp_path / "here", 1, {**files, "decider.onnx": b"x"})
    assert bundle.versions(tmp_path / "here") == ()
    install(tmp_path / "here", 1, files)
    install(tmp_path / "here", 1, files)
    assert bundle.load(tmp_path / "here").version == 1


def test_a_fleets_version_replaces_another_of_its_number_once_it_has_passed_its_checks(
    start: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged one removed a policy that served; a sound one replaced a trained one without a word."""
    files = {path.name: path.read_bytes() for path in bundle.folder_of(start, 1).iterdir()}
    own = bundle.load(start, 1)
    publish(tmp_path, decider=own.decider_onnx, fusion=own.fusion_onnx, names=["mine"], parent=None)
    with pytest.raises(PolicyError, match="SHA-256"):
        install(tmp_path, 1, {**files, "decider.onnx": b"x"})
    assert bundle.load(tmp_path).names == ("mine",)
    assert not caplog.records
    install(tmp_path, 1, files)
    assert bundle.load(tmp_path).names == own.names
    assert "version 1 was another one; the fleet's replaces it" in caplog.text


def test_a_version_serves_before_it_is_kept_and_where_it_cannot_be(start: Path, tmp_path: Path) -> None:
    """A slow disk delays no swap, a full one prevents none; what fails its checks does not serve."""
    files = {path.name: path.read_bytes() for path in bundle.folder_of(start, 1).iterdir()}
    there: list[tuple[int, tuple[int, ...]]] = []
    install(tmp_path, 1, files, serve=lambda policy: there.append((policy.version, bundle.versions(tmp_path))))
    install(tmp_path, 1, files, serve=lambda policy: there.append((policy.version, bundle.versions(tmp_path))))
    assert there == [(1, ()), (1, (1,))]
    slot = PolicySlot(Fallback(), tmp_path / "worker")
    with pytest.raises(PolicyError, match="SHA-256"):
        slot.install(1, {**files, "decider.onnx": b"x"})
    assert slot.current.version == Fallback.version
    (tmp_path / "worker" / bundle.CURRENT / "in the way").mkdir(parents=True)
    with pytest.raises(PolicyError, match="cannot be written"):
        slot.install(1, files)
    assert slot.current.version == 1
    slot.close()


def test_redis_says_since_when_a_version_serves(store: RedisStore, start: Path) -> None:
    fleet_policy = FleetPolicy(store)
    assert fleet_policy.state().since == 0
    before = time.time()
    FleetLearner(store, start=start, every=10**6).step()
    published = fleet_policy.state().since
    assert before <= published <= time.time()
    assert fleet_policy.roll_back(1)
    assert fleet_policy.state().since > published


def test_the_command_follows_until_it_is_told_to_end(where: str, store: RedisStore, start: Path) -> None:
    command = [sys.executable, "-m", "focalroute", "update", "--store", where, "--policy", str(start), "--follow"]
    with subprocess.Popen([*command, "--every", "500", "--seed", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            until(lambda: FleetPolicy(store).state().current == 1)
            fill(store, played(500, 0))
            assert process.stdout.readline().startswith("on trial: version 1; version 2 is on trial")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert FleetPolicy(store).lease("take", "next", 5.0)  # it gave it up


def test_answers_that_redis_no_longer_keeps_are_in_the_archive_once(where: str, tmp_path: Path) -> None:
    """As long as there is an archive, workers leave it twice as much; and taking over twice doubles nothing."""
    row = LedgerRow("x", "a", 3.5, Usage(1, 2), Decimal("0.001"), "price", ("team",))
    path = tmp_path / "archive.db"
    with closing(RedisStore(f"{where}&keep=20")) as store:
        archive = Archive(store, path)
        for number in range(40):
            store.write(answer(f"a{number}"), judge(f"a{number}"), *[row] * 8).result(10)
        (first,) = store.run(lambda connection: oldest_answers(connection, 39))
        archive._take_answer(first[2])  # as if it had been killed before Redis let go of it
        archive._take_bills(store.run(lambda connection: oldest_ledger(connection, 39)))
        assert archive.take() == 20
        assert archive.take() == 0
        assert [kept.id for kept, _ in store.recent(100)] == [f"a{number}" for number in range(20, 40)]
        assert store.totals()["a"].calls == 320
        assert sum(one.calls for one in store.ledger("all")) == 160
        archive.close()
    with closing(open_store(path)) as kept:
        assert [(stored.id, len(said)) for stored, said in kept.recent(100)] == [(f"a{n}", 1) for n in range(20)]
        total = kept.totals()["a"]
        assert (total.calls, total.unpriced, total.cost) == (160, 0, Decimal("0.160"))
        assert (total.prompt_tokens, total.completion_tokens) == (160, 320)
        assert kept.verify() == ()


def test_the_archive_goes_by_what_the_workers_keep(where: str, tmp_path: Path) -> None:
    """The learner's address need not say it again, and did drop more if it did not."""
    with closing(RedisStore(f"{where}&keep=20")) as store, closing(open_store(f"{where}&keep=5")) as learners:
        assert is_shared(learners)
        for number in range(30):
            store.write(answer(f"a{number}")).result(10)
        with closing(Archive(learners, tmp_path / "archive.db")) as archive:
            assert archive.take() == 10
        assert len(list(store.recent(100))) == 20


def test_the_archive_takes_rows_before_workers_drop_them(where: str, tmp_path: Path) -> None:
    """Twice as many as Redis should keep may come within seconds."""
    with closing(RedisStore(f"{where}&keep=20")) as store, closing(Archive(store, tmp_path / "archive.db")) as archive:
        learner = FleetLearner(store, every=10**6, archive=archive)
        began = time.monotonic()
        for number in range(2):
            for place in range(20):
                store.write(answer(f"{number}-{place}")).result(10)
            until(lambda: learner.step() is None and sum(1 for _ in store.recent(100)) == 20)
        assert time.monotonic() - began < 30
        learner.close()
    with closing(open_store(tmp_path / "archive.db")) as kept:
        assert [stored.id for stored, _ in kept.recent(100)] == [f"0-{place}" for place in range(20)]


def test_threads_of_one_process_may_all_be_candidates(store: RedisStore, start: Path) -> None:
    """As workers with ``update_every`` are: each tries, one learns, each feedback counts once."""
    fill(store, played(500, 0))
    learners = [FleetLearner(store, start=start, every=1, seed=0) for _ in range(4)]
    threads = [threading.Thread(target=learner.step) for learner in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = FleetPolicy(store).state()
    assert (state.current, state.learned) == (1, 500)


@pytest.fixture
def _soon() -> Iterator[None]:
    """Interrupt a test that hangs."""

    def fail(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("put_there", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "link"])
def test_a_fleet_does_not_begin_with_a_bundle_of_links_or_pipes(
    store: RedisStore, start: Path, put_there: Callable[[Path], None]
) -> None:
    """Nobody waits for a pipe's writer; what is no file of a bundle is not even opened."""
    put_there(start / "v000001" / "notes")
    put_there(start / "v000001" / "learner.npz")
    learner = FleetLearner(store, start=start)
    with pytest.raises(PolicyError, match=r"learner\.npz: is (not a regular file|a link out of)"):
        learner.step()
    (start / "v000001" / "learner.npz").unlink()
    learner.step()
    assert {"manifest.json", "decider.onnx", "fusion.onnx"} <= set(FleetPolicy(store).files(1)) <= FILES
