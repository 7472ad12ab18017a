"""The structure of the package: which package may import which, the cost of an import, unique names."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.packaging import CLIENTS, CORE

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "focalroute"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each third-party engine (and the standard library's database) lives in one file, named here or yet to come.
ENGINES = {
    "onnx": {"learn/export.py"},
    "onnxruntime": {"policy/onnx_model.py"},
    "tokenizers": {"serving/embedders/__init__.py"},
    "openai": {"endpoints/transport.py", "serving/in_process.py"},
    "sqlite3": {"store/sqlite/database.py"},
    "httpx": {"core/network.py", "endpoints/http.py", "money/prices.py"},
    "tomlkit": {"money/prices.py"},
    "aiohttp": {"endpoints/http.py", "sim/server.py"},  # a client, and the simulated service it may talk to
    "tenacity": {"endpoints/calls.py"},
    "typer": {  # a command is declared beside what it does
        f"cli/{name}.py"
        for name in (
            "__init__",
            "app",
            "batch",
            "collect",
            "console",
            "demo",
            "init",
            "ledger",
            "policy",
            "pool",
            "server",
            "train",
            "update",
        )
    },
    "starlette": {"server/app.py"},
    "uvicorn": {"server/connections.py"},
    "opentelemetry": {
        "serving/telemetry/recorder.py",
        "serving/telemetry/__init__.py",
    },  # what records, and what sends it
    "prometheus_client": {"server/metrics.py"},
    "torch": {"learn/backend.py"},
    "datasets": {"evaluate/dataset.py"},
    "genai_prices": {"money/prices.py"},
    "matplotlib": {"evaluate/report_page/page.py"},
    "rouge_score": {"evaluate/quality.py"},
    "bert_score": {"evaluate/quality.py"},
    "jsonschema": {"answers/json_schema.py"},
    "referencing": {"answers/json_schema.py"},
    "re2": {"answers/json_schema.py"},
    "ray": {"evaluate/job_engine.py"},
    "redis": {"store/redis/connection.py"},
}

# A package imports itself and what stands above it. The serving packages stand above simulation, evaluation and the
# command line, so they can never import those.
ORDER = (
    "core",
    "answers",
    "store",
    "money",
    "observe",
    "policy",
    "endpoints",
    "learn",
    "serving",
    "server",
    "sim",
    "evaluate",
    "cli",
)

# Engines and everything heavy come with the first use, never with a public name.
LAZY = {
    "aiohttp",
    "bert_score",
    "datasets",
    "genai_prices",
    "httpx",
    "jsonschema",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "openai",
    "ray",
    "re2",
    "redis",
    "opentelemetry",
    "prometheus_client",
    "referencing",
    "rich",
    "rouge_score",
    "sqlite3",
    "starlette",
    "tokenizers",
    "tomlkit",
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


def imports(node: ast.AST, *, for_types: bool = False) -> Iterator[str]:
    """Dotted names of all that is imported, inside functions too; ``for_types``: also what only a type checker sees."""
    if not for_types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, for_types=for_types)


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def imports_of(file: Path) -> frozenset[str]:
    return frozenset(imports(tree_of(file)))


def importers(engine: str) -> set[str]:
    """The files that import an engine, relative to the package."""
    users = (file for file in FILES if any(name.split(".")[0] == engine for name in imports_of(file)))
    return {user.relative_to(PACKAGE).as_posix() for user in users}


def used_by(package: str) -> set[str]:
    """The parts of focalroute that the files of one of them import, itself left out."""
    names = (name for file in FILES if part_of(file) == package for name in imports_of(file))
    return {name.split(".")[1] for name in names if name.startswith("focalroute.")} - {package}


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_lives_in_its_file(engine: str) -> None:
    """Only the file named for it imports an engine."""
    assert importers(engine) == ENGINES[engine]


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_what_stands_above_it(package: str) -> None:
    """Imports run one way through the list."""
    assert used_by(package) <= set(ORDER[: ORDER.index(package)])


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even for types, or inside a function. A package's face, which only hands names on, does not count."""
    modules = {module_of(file): file for file in FILES if file.name != "__init__.py"}
    used = {
        module: {
            found if found in modules else found.rpartition(".")[0] for found in imports(tree_of(file), for_types=True)
        }
        for module, file in modules.items()
    }
    TopologicalSorter({module: names & set(modules) for module, names in used.items()}).prepare()


def test_the_list_names_every_package() -> None:
    """Beside the packages there is only what Python and type checkers ask for."""
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert entries == {*ORDER, "__init__.py", "__main__.py", "py.typed"}


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


@pytest.mark.parametrize("file", FILES, ids=module_of)
def test_every_module_has_one_sentence_at_its_head(file: Path) -> None:
    """Its docstring's first line is a whole sentence or phrase with a full stop."""
    said = ast.get_docstring(tree_of(file))
    assert said is not None
    assert said.splitlines()[0].endswith((".", ":", "?"))


def test_every_public_class_name_is_there_once() -> None:
    """A reader who looks for a class finds one."""
    nodes = (node for file in FILES for node in ast.walk(tree_of(file)))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


@pytest.mark.parametrize("name", sorted({*CORE, *CLIENTS}))
def test_what_is_tested_with_other_versions_is_there(name: str) -> None:
    """`make package` runs these, which `make test` does not."""
    assert (ROOT / "tests" / name).exists()


def test_no_machine_paths_in_the_tree() -> None:
    """Nothing that is written down depends on the machine it was written on."""
    folders = (PACKAGE, *(ROOT / name for name in ("tests", "docs", "examples", ".ci")))
    files = [file for folder in folders if folder.exists() for file in folder.rglob("*")]
    files += [ROOT / name for name in ("Makefile", "README.md", "pyproject.toml")]
    named = []
    for file in files:
        if file.is_file() and file.suffix not in (".pyc", ".onnx", ".db", ".npz", ".png"):
            found = MACHINE_PATH.search(file.read_text("utf-8"))
            named += [f"{file.relative_to(ROOT)}: {found[0]}"] if found else []
    assert named == []
