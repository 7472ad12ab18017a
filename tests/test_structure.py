"""The house rules: who may import what, what an import costs, and what every module offers."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "focalroute"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each third-party engine (and the standard library's database) lives in one file, named here or yet to come.
ENGINES = {
    "onnx": {"learn/export.py"},
    "onnxruntime": {"policy/_onnx.py"},
    "tokenizers": {"embedders/onnx.py"},
    "openai": {"injected.py"},
    "sqlite3": {"store/sqlite.py"},
    "httpx": {"prices.py"},
    "certifi": {"http.py"},
    "aiohttp": {"http.py", "sim/server.py"},  # a client, and the simulated service it may talk to
    "tenacity": {"retries.py"},
    "typer": {"cli.py", "cli_policy.py", "cli_pool.py", "cli_server.py"},  # of a part: in that part
    "starlette": {"server/app.py"},
    "uvicorn": {"server/command.py"},
    "opentelemetry": {"telemetry/recorder.py", "telemetry/exporting.py"},  # what records, and what sends it
    "prometheus_client": {"server/metrics.py"},
    "torch": {"learn/_torch.py"},
    "datasets": {"collect/dataset.py"},
    "genai_prices": {"price_library.py"},
    "matplotlib": {"page/_engine.py"},
    "rouge_score": {"quality.py"},
    "bert_score": {"quality.py"},
    "jsonschema": {"structured.py"},
    "referencing": {"structured.py"},
    "ray": {"engine.py"},
    "redis": {"store/redis_link.py"},
}

# A part is a module or a package directly under focalroute. Hubs put parts together; nothing but a hub imports a hub.
HUBS = {
    "__init__",
    "__main__",
    "cli",
    "cli_pool",
    "cli_server",
    "console",
    "demo",
    "ensemble",
    "live",
    "pool_check",
    "server",
    "sync",
}
# Every other part imports these, itself, and what is listed for it.
BASE = {"config", "errors", "receipts", "records"}
BEYOND = {
    "answer_stream": {"background", "outlet"},
    "answers": {"structured", "tool_calls"},
    "ask": {"answers", "budget", "cost", "given", "observe", "outlet", "policy", "store", "structured"},
    "breaker": {"latency"},
    "budget": {"amounts", "cost", "store"},
    "capabilities": {"endpoint", "wire"},
    "closed_fields": {"canonical"},
    "commits": {"loops", "store"},
    "collect": {
        "amounts",
        "answers",
        "budget",
        "engine",
        "evaluate",
        "many",
        "pool",
        "progress",
        "query",
        "race",
        "store",
    },
    "config": {"amounts", "keys"},
    "cli_policy": {"fleet", "store", "evaluate", "policy"},
    "chain": {"answers", "ask", "elicit", "observe", "policy"},
    "cost": {"wire"},
    "elicit": {"answers", "capabilities", "structured", "tool_calls", "wire"},
    "embedders": {"budget", "cost", "endpoint", "limits", "observe", "outlay", "policy", "retries", "store", "wire"},
    "endpoint": {"http", "injected", "loops", "wire"},
    "evaluate": {
        "ask",
        "budget",
        "cost",
        "embedders",
        "engine",
        "files",
        "learn",
        "observe",
        "pacing",
        "page",
        "policy",
        "probe",
        "progress",
        "store",
    },
    "feedback": {"commits", "learn", "observe", "policy", "store", "updates"},
    "fleet": {"learn", "policy", "store"},
    "given": {"answers", "observe", "store", "structured"},
    "http": {"injected", "wire"},
    "injected": {"wire"},
    "judge": {"background", "ask", "budget", "feedback", "pacing", "pool", "race", "store"},
    "learn": {"answers", "observe", "policy", "store", "structured", "tool_calls"},
    "limits": {"loops"},
    "many": {"progress", "query"},
    "observe": {"answers", "tool_calls"},
    "outlay": {"budget", "cost", "wire"},
    "pacing": {"amounts", "observe", "store"},
    "page": {"observe"},
    "policy": {"observe"},
    "pool": {
        "breaker",
        "budget",
        "capabilities",
        "cost",
        "elicit",
        "endpoint",
        "limits",
        "needs",
        "outlet",
        "race",
        "retries",
        "seat",
        "store",
    },
    "pool_file": {"embedders"},
    "prices": {"amounts", "price_library"},
    "probe": {"background", "answers", "ask", "budget", "cost", "needs", "observe", "pacing", "pool", "store"},
    "query": {"answers", "structured"},
    "race": {"capabilities", "cost", "elicit", "outlet", "retries", "seat", "wire"},
    "report": {"evaluate", "files", "learn", "observe", "page", "policy", "store"},
    "retries": {"budget", "outlet"},
    "rounds": {"ask", "needs", "pool"},
    "seat": {
        "background",
        "breaker",
        "budget",
        "capabilities",
        "cost",
        "elicit",
        "endpoint",
        "limits",
        "needs",
        "outlay",
        "outlet",
        "retries",
        "store",
        "wire",
    },
    "structured": {"canonical", "closed_fields", "tool_calls"},
    "tool_calls": {"canonical"},
    "wire": {"needs"},
    "update_command": {"fleet", "learn", "policy", "store", "updates"},
    "updates": {"fleet", "learn", "policy", "store"},
    "savings": {"cost", "store"},
    "spending": {"cost", "learn", "observe", "savings", "store"},
    "stats": {"judge", "limits", "observe", "savings", "store"},
    "telemetry": {"__version__", "ask", "cost"},
    "synthesis": {"ask", "elicit", "needs", "pool"},
}

# Engines and everything heavy come with the first use, never with a public name.
LAZY = {
    "aiohttp",
    "bert_score",
    "certifi",
    "datasets",
    "genai_prices",
    "httpx",
    "jsonschema",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "openai",
    "ray",
    "redis",
    "opentelemetry",
    "prometheus_client",
    "referencing",
    "rich",
    "rouge_score",
    "sqlite3",
    "starlette",
    "tokenizers",
    "torch",
    "typer",
    "uvicorn",
}

MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:root|work|tmp|home/\w+|Users/\w+)/")


def part_of(file: Path) -> str:
    """The part that a file of the package belongs to."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def module_of(file: Path) -> str:
    """Its dotted name."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(node: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported, inside functions too; what only the type checker sees is left out."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


IMPORTS = {file: set(imports(ast.parse(file.read_text("utf-8")))) for file in FILES}
PARTS: dict[str, set[str]] = {}
for _file, _names in IMPORTS.items():
    _used = {name.split(".")[1] for name in _names if name.startswith("focalroute.")}
    PARTS.setdefault(part_of(_file), set()).update(_used - {part_of(_file)})


def importers(engine: str) -> set[str]:
    """The files that import an engine, relative to the package."""
    users = (file for file, names in IMPORTS.items() if any(name.split(".")[0] == engine for name in names))
    return {user.relative_to(PACKAGE).as_posix() for user in users}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_lives_in_its_file(engine: str) -> None:
    """Only the file named for it imports an engine."""
    assert importers(engine) == ENGINES[engine]


@pytest.mark.parametrize("part", sorted(PARTS.keys() - HUBS))
def test_parts_import_only_what_the_table_allows(part: str) -> None:
    """A part knows the records, the errors, the settings, itself and what is listed for it; never a hub."""
    assert PARTS[part] <= BASE | BEYOND.get(part, set())


def test_parts_form_no_cycle() -> None:
    """Data flows one way: the parts can be put in an order in which each imports only earlier ones."""
    order = list(TopologicalSorter({part: used & PARTS.keys() for part, used in PARTS.items()}).static_order())
    assert set(order) == PARTS.keys()


def test_importing_focalroute_is_light_and_silent() -> None:
    """By itself it loads nothing. With all public names it loads no engine, prints nothing, warns of nothing, writes
    no file, opens no connection and no database."""
    code = """
import json, os, sys
seen = []
def hook(event, args):
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event.startswith(("socket.", "sqlite3.", "subprocess.")):
        seen.append(event)
sys.addaudithook(hook)
import focalroute
alone = [name for name in sys.modules if name.startswith("focalroute.") or name == "numpy"]
from focalroute import *
print(json.dumps([seen, alone, sorted({name.split(".")[0] for name in sys.modules})]))
"""
    command = [sys.executable, "-B", "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    acts, alone, loaded = json.loads(line)
    assert acts == alone == []
    assert not LAZY & set(loaded)


@pytest.mark.parametrize("file", [file for file in FILES if file.name != "__main__.py"], ids=module_of)
def test_every_module_says_what_it_offers(file: Path) -> None:
    """It has a docstring, and all that its __all__ names exists."""
    module = importlib.import_module(module_of(file))
    assert module.__doc__
    offered: list[str] = module.__all__
    assert [name for name in offered if not hasattr(module, name)] == []
    assert len(offered) == len(set(offered))


def test_no_machine_paths_in_the_tree() -> None:
    """Nothing that is written down depends on the machine it was written on."""
    folders = (PACKAGE, *(ROOT / name for name in ("tests", "docs", "examples", ".ci")))
    files = [file for folder in folders if folder.exists() for file in folder.rglob("*")]
    files += [ROOT / name for name in ("Makefile", "README.md", "pyproject.toml")]
    named = []
    for file in files:
        if file.is_file() and file.suffix not in (".pyc", ".onnx", ".db", ".npz"):
            found = MACHINE_PATH.search(file.read_text("utf-8"))
            named += [f"{file.relative_to(ROOT)}: {found[0]}"] if found else []
    assert named == []
