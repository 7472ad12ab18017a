"""What is left of a store when the power goes: `durability="full"` loses nothing that was acknowledged.

A library that is loaded before SQLite keeps a copy of each file as it is at each sync. These copies are what a disk has
for certain when the power goes; of what was written later all, nothing or a part may be there. Directory entries are
taken as written, and a disk that says it has synced is believed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from focalroute.store.accounts import Account
from focalroute.store.sqlite.store import SqliteStore

KEEP_AT_SYNC = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void keep(int file) {
    char name[64], path[PATH_MAX] = "", part[PATH_MAX + 64], whole[PATH_MAX + 64], data[65536];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    if (readlink(name, path, sizeof path - 1) < 0) return;
    const char *last = strrchr(path, '/');
    if (!last || strncmp(last, "/s.db", 5)) return;
    snprintf(whole, sizeof whole, "%s%s", getenv("SYNCED"), last);
    snprintf(part, sizeof part, "%s.part", whole);
    int out = open(part, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t size;
    for (off_t at = 0; (size = pread(file, data, sizeof data, at)) > 0; at += size)
        if (write(out, data, size) != size) abort();
    close(out);
    rename(part, whole);
}

int fsync(int file) {
    int failed = ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
    if (!failed) keep(file);
    return failed;
}

int fdatasync(int file) {
    int failed = ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file);
    if (!failed) keep(file);
    return failed;
}
"""

#: Answers, feedback, and money held and spent; each number that is printed is acknowledged.
WRITER = """
import sys
from decimal import Decimal
from focalroute.store.accounts import Account
from focalroute.store.sqlite.store import SqliteStore
from tests.store.made import answer, judge, trajectory
from tests.store.test_accounts import bill, hold
store = SqliteStore(sys.argv[1], durability=sys.argv[2], poll_s=0.02)
limits = {Account(): Decimal(1000)}
store.open_accounts(limits)
for number in range(10**6):
    at = store.reserve(hold(number, 1), limits).result(10).at
    store.write(answer(str(number), steps=trajectory()), bill(hold(number, 1), at, Decimal("0.5"))).result(10)
    store.write(judge(str(number))).result(10)
    print(number, flush=True)
"""

FILES = ("s.db", "s.db-wal")


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    folder = tmp_path_factory.mktemp("keeper")
    (folder / "keep.c").write_text(KEEP_AT_SYNC)
    library = folder / "keep.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, folder / "keep.c", "-ldl"], check=True)
    return library


def write_until_killed(keeper: Path, folder: Path, durability: str, calls: int) -> tuple[Path, Path, int]:
    """The folder as it is, a folder of what was synced, and how many numbers were acknowledged."""
    live, synced = folder / "live", folder / "synced"
    live.mkdir()
    synced.mkdir()
    environment = os.environ | {"LD_PRELOAD": str(keeper), "SYNCED": str(synced)}
    command = [sys.executable, "-c", WRITER, str(live / "s.db"), durability]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline() for _ in range(calls)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line for line in process.stdout if line.endswith("\n")]
    assert list(map(int, acknowledged)) == list(range(len(acknowledged)))
    return live, synced, len(acknowledged)


def restored(folder: Path, database: Path, log: Path) -> Path:
    """A store of the file from one folder and the log from another, as far as they are there."""
    folder.mkdir()
    for place, name in zip((database, log), FILES, strict=True):
        if (place / name).exists():
            shutil.copy(place / name, folder / name)
    return folder / "s.db"


@pytest.mark.parametrize("calls", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_full_durability_keeps_what_was_acknowledged(keeper: Path, tmp_path: Path, calls: int) -> None:
    """Before the first checkpoint and after several; whether the later writes to either file were lost or not."""
    live, synced, acknowledged = write_until_killed(keeper, tmp_path, "full", calls)
    assert set(FILES) <= {file.name for file in synced.iterdir()}
    if calls == 100:
        assert (synced / "s.db").stat().st_size > 40 * 4096  # there was a checkpoint
    for number, (database, log) in enumerate([(synced, synced), (live, synced), (synced, live)]):
        with closing(SqliteStore(restored(tmp_path / str(number), database, log))) as store:
            assert store.verify() == ()
            judged = {answer.id for answer, feedback in store.recent(10**6) if feedback}
            assert judged >= {str(done) for done in range(acknowledged)}
            assert store.balances([Account()]).result(10)[Account()].spent >= acknowledged * Decimal("0.5")


def test_normal_durability_may_lose_the_latest_but_stays_sound(keeper: Path, tmp_path: Path) -> None:
    """This is what the copies show where nothing is synced in time, as it may be at the very moment of the kill."""

    def loses(folder: Path) -> bool:
        folder.mkdir()
        _, synced, acknowledged = write_until_killed(keeper, folder, "normal", 60)
        with closing(SqliteStore(restored(folder / "restored", synced, synced))) as store:
            assert store.verify() == ()
            return len(list(store.recent(10**6))) < acknowledged

    assert any(loses(tmp_path / str(attempt)) for attempt in range(5))
