"""The linter of phrases finds each of them; `make lint` runs it on the pages and modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import language


def test_a_page_is_read_outside_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (page := tmp_path / "a.md").write_text(
        "Fine.\n\n```text\nnobody\n```\n\nIt hangs\non it, and there is no more `color`\nthan colour, or color.\n"
    )
    assert list(language.findings(page)) == [
        "a.md:7: 'hangs on': write 'depends on'",
        "a.md:9: 'color': write 'colour'",
    ]


def test_docstrings_and_messages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (module := tmp_path / "a.py").write_text(
        '"""What it is."""\n\nnobody = "nobody"\n\ndef f():\n    """What is it?"""\n    raise E(f"{1} is no number")\n'
    )
    assert list(language.findings(module)) == [
        "a.py:1: begins with 'What': say what it does or holds",
        "a.py:7: 'is no ': write 'is not a'",
    ]
