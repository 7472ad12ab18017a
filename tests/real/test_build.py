"""The build script says what is missing instead of failing somewhere in the middle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).with_name("build.py")


def run(*names: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BUILD, *names], env=env, capture_output=True, text=True, check=False)


def test_missing_tools_are_named(tmp_path: Path) -> None:
    """Without cmake and a compiler it stops at once and says what to install."""
    done = run("llama-server", PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "cmake and make and a C++ compiler" in done.stderr
    assert "apt-get install" in done.stderr


def test_an_unknown_server_is_refused(tmp_path: Path) -> None:
    """A name that it does not know is refused with the ones it knows."""
    done = run("nginx", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "llama-server, litellm" in done.stderr


def test_a_missing_server_is_named_without_building_it(tmp_path: Path) -> None:
    done = run("--check", "litellm", XDG_CACHE_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "litellm: not built\n")
    assert not list(tmp_path.iterdir())
