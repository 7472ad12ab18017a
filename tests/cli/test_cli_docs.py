"""docs/cli.md agrees with the commands, and every command has help, JSON output and completion."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.cli_docs import FILE, commands, parameters, renewed

COMMANDS = commands()


def test_the_page_is_up_to_date() -> None:
    page = FILE.read_text("utf-8")
    assert renewed(page) == page, "run python -m tests.cli_docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_the_page_says_what_it_prints(name: str) -> None:
    assert "--json" in {one.spelt.split()[0] for one in parameters(COMMANDS[name])}
    assert f"\n| `{name.removeprefix('focalroute ')}` |" in FILE.read_text("utf-8")


def test_everything_has_a_help_text() -> None:
    assert [name for name, command in COMMANDS.items() if not command.__doc__] == []
    every = [(name, one) for name, command in COMMANDS.items() for one in parameters(command)]
    assert [(name, one.spelt) for name, one in every if not one.help.endswith(".")] == []


def test_the_shell_completes_commands() -> None:
    shell = {"_FOCALROUTE_COMPLETE": "complete_bash", "COMP_WORDS": "focalroute pool m", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['focalroute']; from focalroute.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | shell, capture_output=True, text=True, timeout=60
    )
    assert sorted(done.stdout.split()) == ["measure"]
