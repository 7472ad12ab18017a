"""However a process ends, what was acknowledged is in the store, and nothing hangs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from focalroute.store.sqlite.store import SqliteStore

HEAD = """
import os, sys, threading
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, bill, judge, trajectory
store = SqliteStore(sys.argv[1])
"""

ENDLESS = """
def write(thread):
    for i in range(10**9):
        name = f"{sys.argv[2]}-{thread}-{i}"
        store.write(answer(name, steps=trajectory()), bill()).result()
        store.write(judge(name)).result()
        os.write(1, (name + "\\n").encode())

for thread in range(3):
    threading.Thread(target=write, args=(thread,)).start()
"""


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HEAD + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int) -> None:
    """kill -9 at random moments while three threads write, several lives of one file."""
    path = tmp_path / "s.db"
    rng = random.Random(seed)
    acknowledged: list[str] = []
    for life in range(3):
        command = [sys.executable, "-c", HEAD + ENDLESS, str(path), str(life)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            acknowledged.append(process.stdout.readline().strip())
            time.sleep(rng.uniform(0.0, 0.15))
            process.send_signal(signal.SIGKILL)
            acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
    with closing(SqliteStore(path)) as store:
        assert store.verify() == ()
        judged = {answer.id for answer, said in store.recent(10**6) if said}
        assert set(acknowledged) <= judged
        assert store.totals()["a"].calls >= len(judged)


def test_the_end_of_the_interpreter_commits_what_is_queued(tmp_path: Path) -> None:
    """Without close, without waiting for any future, and without a hang."""
    path = tmp_path / "s.db"
    ended = run("for i in range(3000): store.write(answer(str(i)))", path)
    assert (ended.returncode, ended.stderr) == (0, "")
    with closing(SqliteStore(path)) as store:
        assert len(list(store.recent(10**6))) == 3000


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "raise ValueError", "store.close(); store.close()"])
def test_any_end_of_the_interpreter_is_clean(tmp_path: Path, end: str) -> None:
    """An exception, an exit, a close before it: the row is there each time."""
    path = tmp_path / "s.db"
    ended = run(f"store.write(answer('x'))\n{end}", path)
    assert ended.returncode in (0, 1, 3)
    with closing(SqliteStore(path)) as store:
        assert [answer.id for answer, _ in store.recent(9)] == ["x"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told_to_open_its_own(tmp_path: Path) -> None:
    """It does not hang, neither in use nor at its end, and does the parent's store no harm."""
    path = tmp_path / "s.db"
    code = """
import warnings
warnings.simplefilter("ignore")
store.write(answer("x")).result()
if os.fork() == 0:
    error = store.write(answer("y")).exception(10)
    own = SqliteStore(sys.argv[1])
    own.write(answer("z")).result(10)
    own.close()
    sys.exit(0 if "before a fork; open it after" in str(error) else 1)
status = os.wait()[1]
store.write(answer("w")).result(10)
sys.exit(status != 0)
"""
    ended = run(code, path)
    assert (ended.returncode, ended.stderr) == (0, "")
    with closing(SqliteStore(path)) as store:
        assert [answer.id for answer, _ in store.recent(9)] == ["x", "z", "w"]
        assert store.verify() == ()
