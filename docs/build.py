"""Builds the site of the docs: ``python docs/build.py [FOLDER]`` writes it into FOLDER/site (build/site).

The pages are made to be read in the repository. For the site README.md becomes the first page, links that leave docs/
lead to the repository, and every example stands on the page of examples. A page without a place in the navigation, or a
link that leads nowhere, fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

__all__ = ["build", "navigation", "pages"]

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
REPOSITORY = "https://github.com/focalroute/focalroute"
_LINK = re.compile(r"\]\(([\w./-]+)(#[\w-]+)?\)")
_SHIM = re.compile(r'<script src="https?://[^>]*iframe-worker[^>]*></script>')
#: In place of the shim that the offline plugin would fetch from elsewhere: no browser starts a worker, here the search,
#: from a file on the disk, but from a text.
_WORKER = """if (location.protocol === "file:") {
  window.Worker = class extends Worker {
    constructor() {
      super(URL.createObjectURL(new Blob([%s])));
    }
  };
}
"""
#: Where a row of a table must not break a figure: 0.656 @ 0.203, +2.8 (+0.9 to +4.8), 83.0 ± 2.1, 8.4e-05 ↓.
_ROW = re.compile(r"^\|.*", re.MULTILINE)
_WITHIN = re.compile(r"[\d)] (?:@|to) [-+.\d]|\d ± [\d.]++(?! @)|\d ↓|\de-\d")
#: Where a name in a cell may break: behind a dot, a stroke or an underscore.
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_NAME = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_JOINT = re.compile(r"(?<=\w[./_])(?=\w)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def pages() -> dict[str, str]:
    """Every page of the site by its name, as it is to be built.

    Raises:
        SystemExit: a link leads to a file that is not there.
    """
    found = {
        path.relative_to(ROOT / "docs").as_posix(): path.read_text("utf-8")
        for path in sorted((ROOT / "docs").rglob("*.md"))
    }
    found["index.md"] = (ROOT / "README.md").read_text("utf-8")
    found = {name: _linked(text, name) for name, text in found.items()}
    found["examples.md"] += _examples()
    return {name: _ROW.sub(_unbroken, text) for name, text in found.items()}


def navigation() -> set[str]:
    """The pages that mkdocs.yml names."""
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
    return set(re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE))


def build(folder: Path) -> Path:
    """Build the site in a folder; nothing else is written.

    Returns:
        The folder of the site.

    Raises:
        SystemExit: a page has no place, a place no page, or a warning came up.
    """
    texts, named = pages(), navigation()
    if lost := sorted(texts.keys() ^ named):
        sys.exit(f"mkdocs.yml: nav and docs/ differ: {', '.join(lost)}")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "docs").mkdir(parents=True)
    for name, text in texts.items():
        (path := folder / "docs" / name).parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    shutil.copy(ROOT / "docs" / "site.css", folder / "docs")
    shutil.copytree(FIGURES, folder / "docs" / "figures")
    (folder / "focalroute").symlink_to(ROOT / "focalroute")  # what the API reference is read from
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    site = folder / "site"
    (search,) = site.glob("assets/javascripts/workers/search.*.js")
    (site / "worker.js").write_text(_WORKER % json.dumps(search.read_text("utf-8")), "utf-8")
    for page in site.rglob("*.html"):
        worker = f'<script src="{os.path.relpath(site / "worker.js", page.parent)}"></script>'
        page.write_text(_CELL.sub(_breakable, _SHIM.sub(worker, page.read_text("utf-8"))), "utf-8")
    return site


def _breakable(cell: re.Match[str]) -> str:
    return _NAME.sub(lambda name: _JOINT.sub("<wbr>", name[0]), cell[0])


def _unbroken(row: re.Match[str]) -> str:
    return _WITHIN.sub(
        lambda figure: figure[0].replace(" ", "\N{NO-BREAK SPACE}").replace("e-", "e-\N{WORD JOINER}"), row[0]
    )


def _linked(text: str, page: str) -> str:
    """A page with its links as those of the site; what is code stays as it is."""
    parts = _FENCED.split(text)
    parts[::2] = [_LINK.sub(partial(_turned, page=page), part) for part in parts[::2]]
    return "".join(parts)


def _turned(link: re.Match[str], page: str) -> str:
    """A link of the repository as one of the site."""
    target, anchor = link[1], link[2] or ""
    path = (ROOT if page == "index.md" else (ROOT / "docs" / page).parent) / target
    if not path.exists():
        sys.exit(f"{page}: {link[0]} leads nowhere")
    path = Path(os.path.normpath(path))
    if path.parent == FIGURES or (path.suffix == ".md" and path.is_relative_to(ROOT / "docs")):
        place = path.relative_to(ROOT / "docs").as_posix()
    elif path == ROOT / "examples":
        place = "examples.md"
    elif path.parent == ROOT / "examples" and path.suffix == ".py":
        place, anchor = "examples.md", f"#{path.stem}"
    else:
        return f"]({REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{path.relative_to(ROOT)}{anchor})"
    return f"]({os.path.relpath(place, Path(page).parent)}{anchor})"


def _examples() -> str:
    """The text of every example, under its name."""
    parts = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        code = path.read_text("utf-8")
        title = (ast.get_docstring(ast.parse(code)) or "").splitlines()[0]
        parts.append(f'## {path.stem} {{ #{path.stem} }}\n\n{title}\n\n```python title="{path.name}"\n{code}```\n')
    return "\n" + "\n".join(parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds the site of the docs.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build", help="the site goes into FOLDER/site")
    print(build(parser.parse_args().folder))
