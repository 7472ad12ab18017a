"""Every example runs as it stands, and the notebook in a kernel."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.evaluate.brief import brief_training as brief_training  # a fixture

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
NOTEBOOK = EXAMPLES[0].parent / "notebook.ipynb"
# Examples whose uvicorn sets up the logging of its whole process, and a part of what they print.
OWN_PROCESS = {"drop_in_server": "42, ", "fastapi_app": "{'answer': 42, "}
#: The right answer of those that ask one question.
RIGHT = {"streaming": "The answer is 42.\n", "structured": "Sum(result='42'", "tools": "The answer is 42."}
SLOW = ("periodic_updates",)  # three updates, each in a process of its own


@pytest.mark.usefixtures("brief_training")
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
        for path in EXAMPLES
        if path.stem not in OWN_PROCESS
    ],
)
def test_an_example_runs_and_writes_no_errors(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, which is faster; a warning is an error here as everywhere in the tests."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    out, err = capfd.readouterr()
    assert out.strip()
    assert RIGHT.get(example.stem, "") in out
    assert err == ""


def test_the_output_shown_for_an_example_is_what_it_prints() -> None:
    page = (EXAMPLES[0].parents[1] / "docs" / "examples.md").read_text("utf-8")
    shown = dict(re.findall(r"^`(\w+)`:\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    assert [path.stem for path in EXAMPLES if path.stem not in shown] == []
    for stem, output in {**OWN_PROCESS, **RIGHT}.items():
        assert output in shown[stem]


@pytest.mark.parametrize(("stem", "output"), OWN_PROCESS.items())
def test_an_example_is_a_script_of_its_own(stem: str, output: str, tmp_path: Path) -> None:
    example = next(path for path in EXAMPLES if path.stem == stem)
    command = [sys.executable, "-W", "error", str(example)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert output in result.stdout


def test_no_example_is_long() -> None:
    """Each stays under 60 lines; of a notebook its cells of code are counted."""
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in EXAMPLES}
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    lengths[NOTEBOOK.name] = sum(len(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert {name: length for name, length in lengths.items() if length >= 60} == {}


@pytest.mark.slow
def test_the_notebook_runs_in_a_kernel(tmp_path: Path) -> None:
    """Cell by cell in a kernel of its own, where an event loop runs already."""
    notebook = nbformat.reads(NOTEBOOK.read_text("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert {output["output_type"] for output in outputs} == {"execute_result"}  # nothing on the error output
    assert outputs[0]["data"]["text/plain"].startswith("('42'")
