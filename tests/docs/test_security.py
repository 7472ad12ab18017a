"""The bounds in SECURITY.md are those of the code, and the tests that it names exist."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.snippets import ROOT

PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
ROW = re.compile(r"\| (.+) \| ([0-9.,]+) ?(s|bytes|KiB|MiB|) \| `(\S+)\.py::(\w+)` \| `(\S+)::(\w+)` \|")
UNITS = {"": 1, "s": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20}
BOUNDS = [line for line in PAGE.splitlines() if "`focalroute/" in line and line.startswith("|")]


@pytest.mark.parametrize("line", BOUNDS, ids=lambda line: line.split("|")[1].strip())
def test_a_bound_is_the_code_s_and_a_test_holds_it(line: str) -> None:
    found = ROW.fullmatch(line)
    assert found, line
    _, figure, unit, module, constant, test_file, test = found.groups()
    module = module.removesuffix("/__init__").replace("/", ".")
    assert getattr(importlib.import_module(module), constant) == float(figure.replace(",", "")) * UNITS[unit]
    assert re.search(rf"^(async )?def {test}\(", (ROOT / test_file).read_text("utf-8"), re.MULTILINE)


def test_the_page_is_short_and_its_table_whole() -> None:
    text, _, table = PAGE.partition("| What | Bound |")
    assert len(BOUNDS) == len(table.splitlines()) - 2
    assert len(text.split()) < 900
