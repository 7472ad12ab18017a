"""Runs the blocks of a page as a reader would: in a folder of their own, against a simulated pool.

Blocks of Python share the names of their page, and may await. Of a console every line that begins with ``$`` is run by
bash; lines below it must come out, numbers aside, "..." being anything. A block with a title is written to that file. A
page may prepare what it does not show in a comment (``<!--- invisible-code-block: python``).

A block that cannot be run says why in a comment before it, ``<!--- skip: next, "why" -->``. It must still compile; what
it calls of make, of focalroute and of this package's modules must be there.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import SkipTest

import typer.main
from openai import OpenAI
from sybil import Document, Example, Region
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from focalroute import Ensemble
from focalroute.cli.app import app
from tests.cli.calling import focalroute

__all__ = ["LANGUAGES", "ROOT", "check_command", "pages", "run_page"]

ROOT = Path(__file__).resolve().parents[2]
#: Where the pages say that services are, and the dialect in which the simulated pool stands in for them.
ADDRESSES = {
    "https://api.together.xyz/v1": "together",
    "https://api.deepinfra.com/v1/openai": "deepinfra",
    "https://openrouter.ai/api/v1": "openrouter",
    "https://api.openai.com/v1": "openai",
    "http://localhost:8000/v1": "vllm",
    "http://localhost:8080/v1": "llamacpp",
}
#: What a fenced block may be; the last four are shown only.
LANGUAGES = ("python", "console", "toml", "text", "json", "yaml", "html")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_TITLED = re.compile(r'^```\w+ title="([\w.-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run_page(page: Path, folder: Path, port: int, environment: Mapping[str, str]) -> list[str]:
    """Run every block of a page, in order.

    Args:
        page: the file.
        folder: where to; the working directory is there already.
        port: of the simulated pool, which stands in for all services.
        environment: of the commands.

    Returns:
        Why some were not run.
    """
    shell = _Shell(folder, environment)
    text = page.read_text("utf-8")
    for address, dialect in ADDRESSES.items():
        text = text.replace(address, f"http://127.0.0.1:{port}/{dialect}/v1")
    document = Document(text, str(page))
    document.namespace["__name__"] = "__main__"
    parsers: list[Callable[[Document], Iterable[Region]]] = [
        CodeBlockParser("python", _python),
        CodeBlockParser("console", shell),
        _files,
        SkipParser(),
    ]
    for parser in parsers:
        for region in parser(document):
            document.add(region)
    unrun = []
    with ExitStack() as left_open:
        left_open.callback(_close, document.namespace)
        for example in document.examples():
            try:
                example.evaluate()
            except SkipTest as reason:
                _check_unrun(example)
                unrun.append(str(reason))
    return unrun


def _close(names: Mapping[str, Any]) -> None:
    """Close what a page left open."""
    for value in names.values():
        if isinstance(value, Ensemble | OpenAI):
            value.close()


def _python(example: Example) -> None:
    """Run a block in the names of its page."""
    code = compile(_placed(example), example.path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    done = eval(code, example.namespace)
    if inspect.iscoroutine(done):
        asyncio.run(done)


def _placed(example: Example) -> str:
    """A block's text, below as many empty lines that errors name the line of the page."""
    above: int = example.line + example.parsed.line_offset
    return "\n" * above + str(example.parsed)


class _Shell:
    """Runs the commands of a console, each in the same folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    def __call__(self, example: Example) -> None:
        for command, expected in _commands(example.parsed):
            done = self._run(command)
            said = done.stdout + done.stderr
            assert done.returncode == 0, f"{example.path}:{example.line}: {command}\n{said}"
            for line in expected:
                place = re.search(_pattern(line), said := _plain(said), re.MULTILINE)
                assert place, f"{example.path}:{example.line}: {command} did not print {line!r} but\n{said}"
                said = said[place.end() :]

    def _run(self, command: str) -> subprocess.CompletedProcess[str]:
        """By bash; a plain call of focalroute in this process, which takes a tenth of the time."""
        words = shlex.split(command, comments=True)
        if words[0] == "focalroute" and not set(command) & set("|<>&$"):
            return focalroute(*words[1:], cwd=self._folder)
        shell, environment = ["bash", "-ec", command], {**self._environment}
        return subprocess.run(shell, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=120)


def _commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command, and the lines that are shown below it."""
    command, shown = "", list[str]()
    for line in block.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif line.strip():
            assert command, f"a console begins with a command, '$ ...', not with {line!r}"
            shown.append(line)
    assert command, "a console without a command"
    yield command, shown


def _plain(text: str) -> str:
    return _NUMBER.sub("0", text)


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _plain(line.strip()).split("..."))


def _files(document: Document) -> Iterator[Region]:
    """Blocks with a title, each a name and a text."""
    for block in _TITLED.finditer(document.text):
        yield Region(block.start(), block.end(), block.groups(), _write)


def _write(example: Example) -> None:
    name, text = example.parsed
    Path(name).write_text(text, "utf-8")


def _check_unrun(example: Example) -> None:
    """What can be said of a block without running it."""
    language = example.document.text[example.region.start :].split("\n", 1)[0].strip("`").strip()
    if language == "python":
        compile(_placed(example), example.path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return
    for command, _ in _commands(example.parsed):
        check_command(command)


def check_command(command: str) -> None:
    """That what a command names is there: a module, a target of the Makefile, a command of focalroute."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        assert set(words[1:]) <= targets, f"{command}: the Makefile has no such target"
    elif words[0] == "focalroute":
        _check_focalroute(words[1:])
    elif words[:2] == ["python", "-m"] and words[2].split(".")[0] in ("focalroute", "tests", "examples"):
        path = ROOT.joinpath(*words[2].split("."))
        assert path.with_suffix(".py").exists() or path.is_dir(), f"{command}: no such module"


def _check_focalroute(words: list[str]) -> None:
    """That the command line has such a command with such options."""
    command = typer.main.get_command(app)
    while words and words[0] in (known := getattr(command, "commands", {})):
        command, words = known[words[0]], words[1:]
    assert not hasattr(command, "commands"), f"focalroute {' '.join(words)}: no such command"
    known = {option for parameter in command.params for option in parameter.opts}
    given = {word.split("=")[0] for word in words if word.startswith("--")}
    assert given <= known, f"no such option: {', '.join(given - known)}"
