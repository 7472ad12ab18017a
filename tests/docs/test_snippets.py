"""Every block of the README and of the docs runs as it stands, or says why it does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from focalroute.sim import SimulatedModel, SimulatedPool, default_models
from focalroute.sim.process import pool_toml
from tests.docs.snippets import ROOT, pages, run_page

#: Models that the pages ask by name.
MODELS = (
    "meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "Qwen/Qwen2.5-72B-Instruct-Turbo",
    "Qwen/Qwen2.5-72B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct",
    "gpt-4o-mini",
)
KEYS = ("TOGETHER_API_KEY", "DEEPINFRA_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool([*default_models(), *(SimulatedModel(name) for name in MODELS)]) as served:
        yield served


@pytest.mark.filterwarnings("ignore:an Ensemble was never closed:ResourceWarning")  # a page may show how one is made
@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(
    page: Path, pool: SimulatedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        monkeypatch.setenv(key, "made-up")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:langsmith_plugin")  # slow to import; langchain-openai brings it along
    monkeypatch.chdir(tmp_path)
    usual = [endpoint for endpoint in pool.endpoints if endpoint.model not in MODELS]
    Path("pool.toml").write_text(pool_toml(usual))
    unrun = run_page(page, tmp_path, pool.port, os.environ)
    assert all(len(reason.split()) > 2 for reason in unrun)
