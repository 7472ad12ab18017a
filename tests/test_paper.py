"""The scripts of examples/paper run: each in its quick form, on a small generated log, and prints what it should."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from examples.paper.appendix_g import perturbed
from examples.paper.common import Benchmark, Options, members
from examples.paper.table6 import interval
from focalroute.core.pool import load_pool
from focalroute.evaluate.table import split
from tests.evaluate.logs import closed, table_of

PAPER = Path(__file__).resolve().parents[1] / "examples" / "paper"
SCRIPTS = {
    "table1": "**rl-focal, pools drawn**",
    "fig2": "mean accuracy (control)",
    "fig3": "no metric",
    "fig4": "one head",
    "sweeps": "| gamma | accuracy %",
    "tables2_3": "static-subset",
    "fig6": "| endpoints |",
    "tables7_8": "RL-Focal, as published",
    "appendix_g": "adversarial",
}
#: Of these, the one that `make test` runs.
QUICK = "fig3"
#: Those that need no log: they ask simulated models.
ASKING = {"elicitation": "10 samples", "table6": "picked, greedily", "der": "DER minus"}


@pytest.mark.parametrize(
    "name", ["elicitation", *(pytest.param(name, marks=pytest.mark.slow) for name in ("table6", "der"))]
)
def test_a_script_that_asks_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--quick"])
    importlib.import_module(f"examples.paper.{name}").main()
    assert ASKING[name] in capsys.readouterr().out


def test_an_interval_needs_two_seeds_and_one_has_none() -> None:
    assert [interval(values) for values in ([1.0, 3.0], [2.0])] == ["2.0 ± 12.7", "2.0"]


def test_logs_are_changed_where_a_member_is_missing_too(tmp_path: Path) -> None:
    lines = [closed(n, {"a": 0, "b": 1} if n % 2 else {"b": 1}) for n in range(10)]
    table = table_of(tmp_path, lines, {"a": 1.0, "b": 1.0})
    twice = members(table, [0, 1, 0])
    assert twice.names == ("a", "b", "a (2)")
    assert twice.there[:, [0, 2]].tolist() == [[bool(n % 2)] * 2 for n in range(10)]
    options = Options(1, True, tmp_path, tmp_path, None, (), frozenset())
    benchmark = Benchmark("gaps", table, split(table, per_task=False, fraction=0.5), options)
    struck = perturbed(benchmark, "adversarial", 1.0, 0)
    assert struck.candidate[:, 0].tolist() == [-1, 0, -1, 0, -1, 2, -1, 2, -1, 2]


def test_the_pool_of_small_models_is_a_pool() -> None:
    pool = load_pool(PAPER / "small_models.pool.toml")
    assert [endpoint.name for endpoint in pool.endpoints] == ["llama-3.2-3b", "qwen-2.5-3b", "mistral-7b"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else [pytest.mark.slow]) for name in SCRIPTS]
)
def test_a_script_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--figures", str(tmp_path), "--data", str(tmp_path)])
    importlib.import_module(f"examples.paper.{name}").main()
    out, err = capsys.readouterr()
    assert SCRIPTS[name] in out
    assert err == ""
    assert not list(tmp_path.iterdir())  # what is quick is not to be shown


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads((PAPER / "presentation.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "presentation.ipynb", "exec"), names)
    out = capsys.readouterr().out
    assert "plurality" in out
    assert "answered" in out
