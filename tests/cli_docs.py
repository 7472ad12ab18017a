"""``python -m tests.cli_docs``: writes what is below the marker in docs/cli.md, from the commands.

What is written depends on the commands alone: on no terminal's width, colours, or version of what prints their help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from focalroute.cli.app import app

__all__ = ["FILE", "MARKER", "Parameter", "commands", "generated", "parameters", "renewed"]

FILE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
MARKER = "<!-- What follows is written by python -m tests.cli_docs. -->"

_KINDS = {Path: "PATH", int: "N", float: "X", str: "TEXT"}


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command; ``spelt`` as it is typed."""

    spelt: str
    help: str
    default: str
    argument: bool


def commands(of: typer.Typer = app, name: str = "focalroute") -> Mapping[str, Callable[..., Any]]:
    """What is called by each name, groups by their commands, in the order of the help."""
    found = {}
    for info in of.registered_commands:
        assert info.callback is not None
        found[f"{name} {info.name or info.callback.__name__}"] = info.callback
    for group in of.registered_groups:
        assert group.typer_instance is not None
        found |= commands(group.typer_instance, f"{name} {group.name}")
    return found


def generated() -> str:
    """The reference of every command, as Markdown."""
    return "\n".join(line for name, command in commands().items() for line in _section(name, command))


def renewed(page: str) -> str:
    """The page with its generated part as it should be."""
    return f"{page[: page.index(MARKER)]}{MARKER}\n\n{generated()}"


def parameters(command: Callable[..., Any]) -> Iterator[Parameter]:
    """As its signature has them."""
    for name, hint in get_type_hints(command, include_extras=True).items():
        if name in ("context", "return"):
            continue
        kind, info = get_args(hint)
        assert isinstance(info, OptionInfo | ArgumentInfo), name
        if info.hidden:
            continue
        default = inspect.signature(command).parameters[name].default
        needed = default is inspect.Parameter.empty
        shown = "required" if needed else f"`{default}`" if str(default) not in ("None", "", "False") else ""
        if isinstance(info, ArgumentInfo):
            spelt = info.metavar or name.upper()
            yield Parameter(spelt if needed else f"[{spelt}]", info.help or "", shown, True)
        else:
            # typer takes the first spelling for its default
            given = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
            spelt = given[0] if given else "--" + name.replace("_", "-")
            yield Parameter(" ".join(filter(None, (spelt, _kind(kind)))), info.help or "", shown, False)


def _section(name: str, command: Callable[..., Any]) -> Iterator[str]:
    found = list(parameters(command))
    yield f"## {name}\n"
    yield f"```text\n{' '.join([name, *(one.spelt for one in found if one.argument), '[OPTIONS]'])}\n```\n"
    yield f"{inspect.getdoc(command)}\n"
    yield "| | | without it |"
    yield "|---|---|---|"
    for one in found:
        help = one.help.replace("[", "\\[")  # no link
        yield f"| `{one.spelt}` | {help} | {one.default} |"
    yield ""


def _kind(hint: Any) -> str:
    """What stands for its value; nothing for a flag."""
    if get_origin(hint) is Literal:
        return ",".join(get_args(hint))
    if get_origin(hint) in (Union, type(int | None), list):
        return _kind(get_args(hint)[0])
    return "" if hint is bool else _KINDS[hint]


if __name__ == "__main__":
    FILE.write_text(renewed(FILE.read_text("utf-8")), "utf-8")
