"""``python -m tests.packaging``: what a user gets. Needs the network and uv, which `make` installs.

Builds wheel and sdist, has twine read them, installs the wheel into empty environments (alone, and with each extra),
runs the README's first answer there, and the core tests with the lowest versions that pyproject.toml allows and with
each generation of openai. Extras that bring torch are resolved, not installed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CLIENTS", "CORE", "main"]

ROOT = Path(__file__).resolve().parents[1]
#: Extras that are gigabytes: it is checked that they can be resolved.
HEAVY = ("train", "bertscore")
#: Extras of our own work.
OURS = ("dev", "docs")
#: What leans on the dependencies: HTTP, ready clients, settings, schemas, networks.
CORE = ("core", "answers", "endpoints", "policy", "serving/test_in_process.py", "learn/test_export.py")
#: What a ready client goes through.
CLIENTS = ("endpoints/test_endpoint.py", "serving/test_in_process.py")
OPENAI = ("openai==1.83.0", "openai>=2,<3", "openai>=3,<4")
TESTING = ("pytest>=8.3", "pytest-xdist>=3.6", "hypothesis>=6.120", "respx>=0.22", "pytest-httpx>=0.35")

# Imports every package that the extra named by the first argument brings by name.
_IMPORTS = """
import importlib, importlib.metadata as metadata, re, sys
wanted = [line for line in metadata.requires("focalroute") if f'extra == "{sys.argv[1]}"' in line.replace("'", '"')]
owners = metadata.packages_distributions()
assert wanted, "the extra brings nothing"
for line in wanted:
    name = re.match(r"[\\w.-]+", line)[0]
    same = lambda other: re.sub(r"[-_.]+", "-", other).lower() == re.sub(r"[-_.]+", "-", name).lower()
    modules = [module for module, holders in owners.items() if any(map(same, holders)) and not module.startswith("_")]
    assert modules, f"{name} is not installed"
    for module in modules[:1]:
        importlib.import_module(module)
import focalroute
"""


def main() -> None:
    """Run the parts named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.packaging", description="Check what a user gets.")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    named = parser.parse_args().parts or list(PARTS)
    with tempfile.TemporaryDirectory() as folder:
        dist = Path(folder) / "dist"
        _uv("build", "--quiet", "--out-dir", dist, cwd=ROOT)
        for name in named:
            began = time.perf_counter()
            PARTS[name](Path(folder), dist)
            print(f"{name}: as it should be, {time.perf_counter() - began:.0f} s", flush=True)


def _files(_: Path, dist: Path) -> None:
    """Metadata that an index takes, and nothing missing or too much."""
    wheel, sdist = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    _uv("tool", "run", "--quiet", "twine", "check", "--strict", wheel, sdist)
    held = zipfile.ZipFile(wheel).namelist()
    assert {"focalroute/py.typed", "focalroute/policy/cold/decider.onnx"} <= set(held)
    assert {name.split("/")[0].split("-")[0] for name in held} == {"focalroute"}
    with tarfile.open(sdist) as archive:
        source = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"Makefile", "mkdocs.yml", "docs/build.py", "examples/pool.toml", "tests/packaging.py"} <= source
    stray = {name for name in {*held, *source} if name.endswith((".pyc", ".db"))}
    assert stray == {"tests/data/before_renaming/store.db"}, stray  # a test opens it


def _quickstart(folder: Path, dist: Path) -> None:
    """From an empty environment and folder to the README's first answer."""
    python, empty = _environment(folder, "empty", next(dist.glob("*.whl"))), folder / "nothing"
    empty.mkdir()
    first = re.compile(
        r'^```python title="first.py"\n(?P<code>.*?)^```$.*?^\$ python first.py\n(?P<shown>.*?)^```$', re.M | re.S
    )
    found = first.search((ROOT / "README.md").read_text("utf-8"))
    assert found is not None
    said = _run([python, "-W", "error", "-c", found["code"]], cwd=empty)
    assert said == found["shown"], said
    _run([python.parent / "focalroute", "demo", "--queries", "20", "--json"], cwd=empty)


def _extras(folder: Path, dist: Path) -> None:
    """Each extra alone."""
    wheel = next(dist.glob("*.whl"))
    for extra in _extra_names():
        wanted = f"focalroute[{extra}] @ {wheel.as_uri()}"
        if extra in (*HEAVY, *OURS):
            needs = folder / f"{extra}.in"
            needs.write_text(wanted)
            _uv("pip", "compile", "--quiet", "--python-version", "3.11", needs)
        else:
            _run([_environment(folder, extra, wanted), "-W", "error::ImportWarning", "-c", _IMPORTS, extra], cwd=folder)
        print(f"  {extra}", flush=True)


def _lowest(folder: Path, _: Path) -> None:
    """The lowest version of everything that is named, extras included."""
    light: list[str] = [part for extra in _extra_names() if extra not in (*HEAVY, *OURS) for part in ("--extra", extra)]
    python = _environment(folder, "lowest", "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml", *light)
    _uv("pip", "install", "--quiet", "--python", python, *TESTING)
    _core(python, CORE)


def _openai(folder: Path, dist: Path) -> None:
    """The first openai that is allowed, and the latest of 2 and 3."""
    wheel = next(dist.glob("*.whl"))
    for version in OPENAI:
        python = _environment(folder, re.sub(r"\W", "", version), wheel, version, *TESTING)
        _core(python, CLIENTS)
        print(f"  {version}", flush=True)


def _typed(_: Path, __: Path) -> None:
    """No type of the package is unknown to pyright."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "focalroute", "--ignoreexternal"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    unknown = re.findall(r"With unknown type: (\d+)", done.stdout)
    assert unknown == ["0", "0"], done.stdout


PARTS = {
    "files": _files,
    "quickstart": _quickstart,
    "extras": _extras,
    "lowest": _lowest,
    "openai": _openai,
    "typed": _typed,
}


def _extra_names() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return list(project["optional-dependencies"])


def _environment(folder: Path, name: str, *needs: str | Path) -> Path:
    """A new environment with so much in it; its Python."""
    _uv("venv", "--quiet", "--python", f"{sys.version_info.major}.{sys.version_info.minor}", folder / name)
    python = folder / name / "bin" / "python"
    _uv("pip", "install", "--quiet", "--python", python, *needs)
    return python


def _core(python: Path, tests: Sequence[str]) -> None:
    """Run tests of the checkout there; an old dependency may use what is deprecated in a new one."""
    paths = [f"tests/{name}" for name in tests]
    _run([python, "-m", "pytest", "-n", "auto", "-W", "ignore::DeprecationWarning", *paths], cwd=ROOT)


def _uv(*arguments: str | Path, cwd: Path | None = None) -> None:
    _run([sys.executable, "-m", "uv", *arguments], cwd=cwd)


def _run(command: Sequence[str | Path], *, cwd: Path | None) -> str:
    """What it prints; on failure everything it said, and the end."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[:6]))}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
