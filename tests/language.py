"""Finds phrases that read as translated, and American spellings: ``python -m tests.language``, a part of ``make lint``.

It reads the pages outside their code, docstrings, and the texts of exceptions. tests/docs/test_language.py holds it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

__all__ = ["PHRASES", "findings", "texts"]

ROOT = Path(__file__).resolve().parents[1]
#: What not to write, and what to write instead.
PHRASES = {
    r"\bhangs? on\b": "depends on",
    r"(?<!there )\b(?:is|are) no (?!long|more|less|worse|better|fewer|lower|higher|newer|older|later|soon)": "is not a",
    r"\bnobody\b": "no endpoint, no one",
    r"\bwhoever\b": "anyone who",
    r"\bso many\b": "that many, n",
    r"\bwhat is said of\b": "name it",
    r"\bnot to be had\b": "not available",
    r"\bis no error\b": "is not an error",
}
#: American words that are British as well, or names.
_BOTH = [
    "authorization",
    "biased",
    "license",
    "math",
    "meter",
    "practice",
    "program",
    "stories",
    "story",
    "unrecognized",
]
_FENCED = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The prose of a file, each part with its line."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        yield 1, _FENCED.sub(lambda block: "\n" * block[0].count("\n"), source)
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) and isinstance(first := node.body[0], ast.Expr):
                yield first.lineno, str(ast.literal_eval(first.value))
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def american() -> dict[str, str]:
    """American spellings and their British ones, by codespell's list."""
    pairs = (files("codespell_lib") / "data/dictionary_en-GB_to_en-US.txt").read_text("utf-8").splitlines()
    turned = {
        word.strip(): british for british, words in (pair.split("->") for pair in pairs) for word in words.split(",")
    }
    return {word: turned[word] for word in turned.keys() - turned.values() - {"", *_BOTH}}


_AMERICAN = american()


def findings(path: Path) -> Iterator[str]:
    """Every phrase of a file that should be another, with its place."""
    for line, text in texts(path):
        for phrase, instead in PHRASES.items():
            for found in re.finditer(phrase, text.replace("\n", " "), re.IGNORECASE):
                place = line + text.count("\n", 0, found.start())
                yield f"{path.relative_to(ROOT)}:{place}: {found[0]!r}: write {instead!r}"
        for found in re.finditer(r"[a-z]+", re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), text.lower())):
            if found[0] in _AMERICAN:
                place = line + text.count("\n", 0, found.start())
                yield f"{path.relative_to(ROOT)}:{place}: {found[0]!r}: write {_AMERICAN[found[0]]!r}"
        if path.suffix == ".py" and re.match(r"What\b(?!.*\?)", text):
            yield f"{path.relative_to(ROOT)}:{line}: begins with 'What': say what it does or holds"


def main() -> None:
    """Print the findings of every page and module."""
    paths = [ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
    paths += [path for folder in ("focalroute", "examples", "docs") for path in (ROOT / folder).rglob("*.py")]
    found = [finding for path in sorted(paths) for finding in findings(path)]
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
