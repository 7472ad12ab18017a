"""Every example runs as it stands, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_word_on_its_error_output(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()
