"""Looks at a page in a real headless browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TypeVar

import pytest

__all__ = ["PHONE", "browse", "browser", "fits_a_phone", "on_a_phone"]

Test = TypeVar("Test", bound=Callable[..., None])

PHONE = 375
_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browser(test: Test) -> Test:
    """Mark a test that needs a browser, which runs for `make verify` only."""
    needs = pytest.mark.skipif(_BROWSER is None, reason="needs a chromium: apt-get install chromium")
    marked: Test = pytest.mark.slow(needs(test))
    return marked


def browse(folder: Path, address: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a browser that keeps its profile in the folder, and logs the page's console to standard error."""
    assert _BROWSER is not None
    command = [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=500,4000", "--enable-logging=stderr", *options]
    return subprocess.run([*command, address.as_uri()], capture_output=True, text=True, timeout=180, check=True)


def on_a_phone(page: Path, folder: Path) -> Path:
    """The page in a frame of a phone's width (a headless window is wider), which says how wide its content is."""
    wrapper = folder / "phone.html"
    wrapper.write_text(
        f'<body style="margin:0"><iframe style="width:{PHONE}px;height:4000px;border:0" onload="document.title = '
        f'contentDocument.documentElement.scrollWidth" srcdoc="{escape(page.read_text("utf-8"))}"></iframe></body>',
        "utf-8",
    )
    return wrapper


def fits_a_phone(page: Path, folder: Path) -> None:
    """See that it does, and that nothing was said on the console."""
    said = browse(folder, on_a_phone(page, folder), "--dump-dom")
    width = re.search(r"<title>(\d+)</title>", said.stdout)
    assert width is not None
    assert int(width[1]) <= PHONE
    assert "CONSOLE" not in said.stderr
