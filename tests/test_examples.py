"""Every example runs as it stands, in a process of its own, and the notebook in a kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
NOTEBOOK = EXAMPLES[0].parent / "notebook.ipynb"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_without_a_word_on_its_error_output(example: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip()


def test_no_example_is_long() -> None:
    """Each stays under 60 lines; of a notebook its cells of code are counted."""
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES}
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    lengths[NOTEBOOK.name] = sum(len(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert {name: length for name, length in lengths.items() if length >= 60} == {}


def test_the_notebook_runs_in_a_kernel(tmp_path: Path) -> None:
    """Cell by cell in a kernel of its own, where an event loop runs already."""
    notebook = nbformat.reads(NOTEBOOK.read_text("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output["output_type"] for output in outputs} == {"execute_result"}  # nothing on the error output
    assert outputs[0]["data"]["text/plain"].startswith("('42'")
