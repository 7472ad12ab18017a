"""How progress is shown where standard error is a log."""

from __future__ import annotations

import pytest

from focalroute.core import progress


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    with progress.progress_bar("training", 9, shown=True) as advance:
        advance(4)
        advance(5)
    assert capsys.readouterr() == ("", "training: 4 of 9\ntraining: 9 of 9\n")
    with progress.progress_bar("reading", None, shown=True) as advance:
        advance(4)
    assert capsys.readouterr() == ("", "reading: 4\n")


def test_a_log_of_quick_work_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    for shown in (True, False):
        with progress.progress_bar("training", 9, shown=shown) as advance:
            advance(9)
    assert capsys.readouterr() == ("", "")
