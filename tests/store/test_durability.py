"""What happens to answers, feedback and policies when processes, disks and files fail under a whole ensemble."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from focalroute import Ensemble, StoreError
from focalroute.sim import SimulatedModel, SimulatedPool
from focalroute.sim.process import pool_toml
from focalroute.store.sqlite.store import SqliteStore
from tests.benchmarks.kills import run
from tests.policies import ask_all

QUESTION, CHOICES = "What is 17 + 25?", ["32", "42", "44", "52"]

#: Works on the pool file, the store and the folder that it is given, while ``full()`` and ``room()`` change the disk.
WORK = """
import json, logging, sys
from pathlib import Path
from focalroute import Ensemble, PolicyError, StoreError
from examples.shipped_policy.training import cold_fusion
from tests.by_hand import linear_decider
from focalroute.learn.export import decider_model, fusion_model
from focalroute.policy.publish import publish

logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
pool, disk = Path(sys.argv[1]), Path(sys.argv[2])

def caught(kind, act):
    try:
        return act() and ""
    except kind as error:
        return str(error)

def put():
    models = decider_model(linear_decider()), fusion_model(cold_fusion())
    return publish(disk / "policy", decider=models[0], fusion=models[1], names=(), parent=None)

put()
said = {}
with Ensemble.from_toml(pool, store=disk / "s.db", policy=disk / "policy", seed=0) as ensemble:
    def ask():
        return ensemble.ask("What is 17 + 25?", choices=["32", "42", "44", "52"])
    before, early = ask(), ask()
    ensemble.feedback(before, reward=1.0)
    full()
    answers = [ask() for _ in range(8)]
    said["texts"] = [answer.text for answer in answers]
    said["durable"] = [answer.durable for answer in answers]
    said["feedback"] = caught(StoreError, lambda: ensemble.feedback(early, reward=1.0))
    said["publish"] = caught(PolicyError, put)
    said["version"] = answers[-1].receipt.policy_version
    room()
    after = ask()
    said["again"] = after.durable
    ensemble.feedback(early, reward=1.0)
    ensemble.feedback(after, reward=1.0)
    said["published"] = put()
from focalroute.store.sqlite.store import SqliteStore
store = SqliteStore(disk / "s.db")
said["problems"] = store.verify()
said["judged"] = [answer.id for answer, feedback in store.recent(99) if feedback] == [before.id, early.id, after.id]
store.close()
print(json.dumps(said))
"""

#: No file may grow: every write beyond its end fails, as on a disk without room (with another number, EFBIG).
LIMITED = """
import resource
def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
def full():
    limit(0)
def room():
    limit(resource.RLIM_INFINITY)
"""

#: A disk of 4 MB that is filled up to the last byte.
FILLED = """
import os, pathlib, sys
filler = pathlib.Path(sys.argv[2]) / "filler"
def full():
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 512, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                pass
def room():
    filler.unlink()
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool([SimulatedModel("a", skill=0.999), SimulatedModel("b", skill=0.999)]) as running:
        yield running


def survive(pool: SimulatedPool, disk: Path, tmp_path: Path, change: str) -> tuple[dict[str, Any], str]:
    """Work in a process of its own; what it says in the end, and its log."""
    (tmp_path / "pool.toml").write_text(pool_toml(pool.endpoints))
    command = [sys.executable, "-c", change + WORK, str(tmp_path / "pool.toml"), str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *log, said = done.stdout.splitlines()
    return json.loads(said), "\n".join(log)


def check(said: dict[str, Any], log: str, disk: Path) -> None:
    assert said["texts"] == ["42"] * 8
    assert said["durable"][-1] is False
    assert "an answer could not be stored: " in log
    assert re.search(r"2 calls of \w{32}, which cost \$0\.\d+, are not in the ledger: ", log)
    assert str(disk / "s.db") in said["feedback"]
    assert said["publish"].startswith(f"{disk / 'policy'}: cannot be written: ")
    assert said["publish"].endswith("the current policy stays")
    assert (said["version"], said["published"]) == (1, 2)
    assert (said["again"], said["problems"], said["judged"]) == (True, [], True)


@pytest.mark.slow
def test_files_that_cannot_grow_stop_the_store_but_no_ask(pool: SimulatedPool, tmp_path: Path) -> None:
    """Every answer comes, those that are not kept say so, and with room all goes on without a restart."""
    check(*survive(pool, tmp_path, tmp_path, LIMITED), tmp_path)


def test_a_full_disk_stops_the_store_but_no_ask(pool: SimulatedPool, tmp_path: Path) -> None:
    """The same on a real file system of 4 MB, and the error says to make room."""
    with tempfile.TemporaryDirectory() as name:
        disk = Path(name)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", name], capture_output=True)
        if mounted.returncode:
            pytest.skip("this process may not mount a file system")
        try:
            said, log = survive(pool, disk, tmp_path, FILLED)
        finally:
            subprocess.run(["umount", name], check=True)
    check(said, log, disk)
    assert "make room on the disk" in said["feedback"]
    assert "No space left" in said["publish"]


def test_a_damaged_store_is_named_at_the_start_or_asks_go_on(pool: SimulatedPool, tmp_path: Path) -> None:
    """Whichever page is overwritten: it cannot be opened, or `verify` finds it and answers come all the same."""
    path = tmp_path / "s.db"
    with Ensemble(pool.endpoints, store=path) as ensemble:
        for _ in range(3):
            ensemble.feedback(ensemble.ask(QUESTION, choices=CHOICES), reward=1.0)
    sound = path.read_bytes()
    opened, refused = 0, list[str]()
    for start in range(0, len(sound), 4096):
        path.write_bytes(sound[:start] + b"\x5a" * 4096 + sound[start + 4096 :])
        try:
            with Ensemble(pool.endpoints, store=path) as ensemble:
                opened += 1
                assert ensemble.ask(QUESTION, choices=CHOICES).text == "42"
        except StoreError as error:
            refused.append(str(error))
        else:
            with closing(SqliteStore(path)) as store:
                assert store.verify() != ()
    assert opened
    assert refused
    assert all(reason.startswith(f"{path}: ") and "name another file" in reason for reason in refused)


@pytest.mark.slow
def test_a_disk_that_may_only_be_read_is_named_at_the_start(pool: SimulatedPool, tmp_path: Path) -> None:
    """A policy can be served from it; a store cannot be opened there, and that is said."""
    code = """
import os, sys
from pathlib import Path
from focalroute import Ensemble, StoreError
disk = Path(sys.argv[2])

def ask(**settings):
    with Ensemble.from_toml(sys.argv[1], **settings) as ensemble:
        return ensemble.ask("What is 17 + 25?", choices=["32", "42", "44", "52"])

ask()  # all code is loaded before the rights of root are gone, for whom nothing is read-only
os.geteuid() or os.seteuid(65534)
try:
    ask(store=disk / "s.db")
except StoreError as error:
    print(error)
answer = ask(policy=disk / "policy")
print(answer.receipt.policy_version, answer.text)
"""
    with tempfile.TemporaryDirectory() as name:
        disk = Path(name)
        (disk / "pool.toml").write_text(pool_toml(pool.endpoints))
        SqliteStore(disk / "s.db").close()
        ask_all(disk / "policy")
        (disk / "s.db").chmod(0o444)
        disk.chmod(0o555)
        command = [sys.executable, "-c", code, str(disk / "pool.toml"), name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        disk.chmod(0o755)
    assert done.returncode == 0, done.stderr
    error, text = done.stdout.splitlines()
    assert error.startswith(f"{disk / 's.db'}: ")
    assert "make the file and its folder" in error
    assert text == "1 42"


@pytest.mark.slow  # `tests.store.test_death` kills a store quicker
def test_an_ensemble_that_is_killed_loses_nothing() -> None:
    """`tests.benchmarks.kills` with 3 of them; it checks everything itself."""
    said, serving = run(kills=3, seed=1, longest_s=0.3)
    assert said.asked >= said.judged.keys() > set()
    assert serving >= said.version > 0
