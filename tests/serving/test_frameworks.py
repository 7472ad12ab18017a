"""What docs/migrating.md says to write for each framework runs, where the framework is installed.

None of them is needed to work on focalroute: `pip install` one to run its test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from focalroute.sim import SimulatedPool
from tests.docs.snippets import ROOT
from tests.server.running import served

FRAMEWORKS = {
    "LangChain": "langchain_openai",
    "LlamaIndex": "llama_index.llms.openai_like",
    "instructor": "instructor",
    "pydantic-ai": "pydantic_ai",
    "DSPy": "dspy",
}
_BEFORE = """
from focalroute import Ensemble
from focalroute.sim import SimulatedPool
with SimulatedPool() as pool, Ensemble(pool.endpoints, policy="plurality") as ensemble:
"""


def shown(framework: str) -> str:
    """The block of code below the framework's name."""
    page = (ROOT / "docs" / "migrating.md").read_text("utf-8")
    found = re.search(rf"^\*\*{framework}\*\*.*?^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_code_on_the_page_runs(framework: str) -> None:
    if not installed(FRAMEWORKS[framework]):
        pytest.skip(f"{framework} is not installed")
    with SimulatedPool() as pool, served(pool.endpoints, local_only=True) as url:
        block = shown(framework).replace("http://127.0.0.1:8000", url)
        code = _BEFORE + "".join(f"    {line}\n" for line in block.splitlines())
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
