"""Tables of commands: complete in a pipe, whole columns in a terminal, and names as they are."""

from __future__ import annotations

import io
import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from focalroute.core.errors import ConfigError
from focalroute.evaluate.output import show_table, write_file

COLUMNS = ("", "accuracy", "95 %", "cost ratio")
ROWS = [("weighted-vote", "0.9125", "0.850 to 0.975", "0.134"), ("a[/b] [red]:cat:", "0.5000", "0.4 to 0.6", "1.000")]


class Terminal(io.StringIO):
    """Says that it is one; rich takes its width from COLUMNS."""

    def isatty(self) -> bool:
        return True


def _shown(monkeypatch: pytest.MonkeyPatch, width: int, kind: type[io.StringIO] = Terminal) -> str:
    out = kind()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", "25")  # without both, rich takes a dumb terminal for one of 80 columns
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", out)
    show_table(COLUMNS, ROWS, title="odd[/x].jsonl", strong=["weighted-vote"])
    return out.getvalue()


@pytest.mark.parametrize(("width", "columns"), [(100, 4), (50, 3), (31, 2), (10, 2)])
def test_a_narrow_terminal_shows_fewer_columns_and_says_which_it_lacks(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: int
) -> None:
    """In a terminal of 80 columns eval showed no accuracy, and half of each interval."""
    shown = _shown(monkeypatch, width)
    for cells in (COLUMNS, *ROWS):
        assert all(cell in shown for cell in cells[:columns])
    for row in ROWS:
        assert not any(cell in shown for cell in row[columns:])
    assert "…" not in shown
    assert ("No room for" in shown) == (columns < 4)


def test_a_pipe_gets_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch, 10, io.StringIO)
    assert all(cell in shown for row in ROWS for cell in row)
    assert "odd[/x].jsonl" in shown
    assert "No room" not in shown


def test_a_full_disk_leaves_a_report_as_it_was_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    former, link, new = tmp_path / "former.json", tmp_path / "link.json", tmp_path / "new.html"
    former.write_text("paid for")
    former.chmod(0o640)
    link.symlink_to(former)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for file in (link, new):
            with pytest.raises(ConfigError, match=f"{file.name}: cannot be written: File too large"):
                write_file(file, "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (former.read_text(), sorted(tmp_path.iterdir())) == ("paid for", [former, link])
    write_file(link, "better")
    assert (link.is_symlink(), former.read_text(), former.stat().st_mode & 0o777) == (True, "better", 0o640)


def test_a_pipe_gets_the_report_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file(pipe, "all of it")
    reader.join(10)
    assert (read, pipe.is_fifo()) == (["all of it"], True)
