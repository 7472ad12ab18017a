"""``focalroute init``: writes a first pool file from the keys in the environment, checks it, and asks a question."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from focalroute.cli import JsonOption, printable
from focalroute.core.dollars import dollars
from focalroute.core.errors import ConfigError
from focalroute.core.services import SERVICES, find_service

_MOST_LOCAL = 8
_QUESTION = "What is 17 + 25?"
#: Without a store, the record of learning and spending ends with the program.
_STORE = '[ensemble]\nstore = "focalroute.db" # relative to the folder the program runs in\n'
#: Only differences between endpoints count, so a single endpoint needs none.
_EXPECTED = (
    "# To each endpoint add how often it is right, such as its score on a public benchmark: expected_accuracy = 0.8\n\n"
)
#: Services whose keys are looked for, with a few models of each to start with. Models that a service does not list are
#: left out.
_MODELS: Mapping[str, tuple[str, ...]] = {
    "openai": ("gpt-4o-mini", "gpt-4o"),
    "openrouter": ("openai/gpt-4o-mini", "meta-llama/llama-3.3-70b-instruct", "qwen/qwen-2.5-72b-instruct"),
    "together": ("meta-llama/Llama-3.3-70B-Instruct-Turbo", "Qwen/Qwen2.5-72B-Instruct-Turbo"),
    "deepinfra": ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen2.5-72B-Instruct"),
}


def init(
    pool: Annotated[Path, typer.Option(help="The pool file to write.")] = Path("pool.toml"),
    model: Annotated[
        list[str] | None,
        typer.Option(help="SERVICE/MODEL to use, such as together/Qwen/Qwen3-8B; may be repeated."),
    ] = None,
    local: Annotated[str | None, typer.Option(help="Address of your own server, whose models are used.")] = None,
    usd_total: Annotated[str | None, typer.Option(help="Total budget, USD.")] = None,
    ask: Annotated[bool, typer.Option("--ask/--no-ask", help="Whether to ask a first question.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write a first pool file from the keys in the environment, check it, and ask it a first question.

    In a terminal it prompts for models, your own server and a budget, unless they are given.
    """
    from focalroute.cli.pool_check import check_pool
    from focalroute.core.pool import load_pool
    from focalroute.serving.sync import Ensemble

    if pool.exists():
        raise ConfigError(f"{pool}: already exists; give another path with --pool")
    if not os.access(pool.parent, os.W_OK):
        raise ConfigError(f"{pool}: cannot be written; give --pool a path in a folder that you may write to")
    found = [name for name in _MODELS if os.environ.get(SERVICES[name].api_key_env or "")]
    if sys.stdin.isatty() and not as_json:
        model, local, usd_total = _questions(found, model, local, usd_total)
    tables = [*_hosted(found, model), *_local(local)]
    if not tables:
        keys = ", ".join(SERVICES[name].api_key_env or "" for name in _MODELS)
        raise ConfigError(f"model: set a key ({keys}), or give --model or --local; focalroute demo needs neither")
    unlimited = _write(pool, [table for n, table in enumerate(tables) if table not in tables[:n]], usd_total)
    checked = check_pool(load_pool(pool).endpoints)
    problems = [f"{one.endpoint}: {one.remedy} ({one.detail})" for one in checked if one.state != "ok"]
    names = [one.endpoint for one in checked]
    if not as_json:  # before asking, which may fail
        print(f"{pool} has {', '.join(names)}")
        for problem in problems:
            print(f"  {problem}")
    if unlimited:
        whose = ", ".join(map(printable, unlimited))
        typer.echo(f"usd_total does not limit {whose}: no price was found; write prices into {pool}", err=True)
    answer = None
    if ask and not problems:
        with Ensemble.from_toml(pool) as ensemble:
            answer = ensemble.ask(_QUESTION, answer="number")
    if as_json:
        said = answer and answer.to_dict()
        print(json.dumps({"pool": str(pool), "endpoints": names, "problems": problems, "answer": said}, indent=2))
    elif answer is not None:
        print(f"{_QUESTION} {answer.value} (confidence {answer.confidence:.2f}, {dollars(answer.cost)})")
    if problems:
        raise typer.Exit(1)


def _questions(
    found: list[str], model: list[str] | None, local: str | None, usd_total: str | None
) -> tuple[list[str] | None, str | None, str | None]:
    """Prompt for what is not given; an empty line accepts the default."""
    if model is None:
        offered = " ".join(f"{name}/{one}" for name in found for one in _MODELS[name])
        model = typer.prompt("Models (SERVICE/MODEL ...)", default=offered).split()
    if local is None:
        local = typer.prompt("Address of a server of your own", default="") or None
    if usd_total is None:
        usd_total = typer.prompt("What may be spent in all, USD", default="1") or None
    return model, local, usd_total


def _hosted(found: list[str], wanted: list[str] | None) -> Iterator[dict[str, str]]:
    """Yield tables for endpoints of hosted services: the wanted ones, else the `_MODELS` of each service with a key."""
    from focalroute.money.prices import NotListed

    if wanted is None:
        wanted = [f"{name}/" for name in found]
    for text in wanted:
        name, _, model = text.partition("/")
        try:
            service = find_service(name)
        except ValueError as error:
            raise ConfigError(f"model: {text!r}: give SERVICE/MODEL; {error}") from None
        if service.base_url is None:
            raise ConfigError(f"model: {text!r}: write base_url into the file by hand, such as {service.example}")
        table = {"service": name}
        if model:
            yield {"model": model, **table}
            continue
        if name not in _MODELS:
            raise ConfigError(f"model: {text!r}: give SERVICE/MODEL")
        try:
            listed = _listed(name, table)
        except NotListed:
            listed = []
        yield from ({"model": one, **table} for one in _MODELS[name] if not listed or one in listed)


def _local(base_url: str | None) -> Iterator[dict[str, str]]:
    """Yield tables for the models that the user's own server lists."""
    from focalroute.money.prices import NotListed

    if base_url is None:
        return
    try:
        listed = _listed("local", {"base_url": base_url})
    except NotListed as error:
        raise ConfigError(
            f"local: {base_url}/models: {error}; is the address right, and the server up? If it needs a key, write the "
            "pool file by hand"
        ) from None
    except ConfigError as error:
        raise ConfigError(f"local: {str(error).removeprefix('Endpoint: base_url: ')}") from None
    if not listed:
        raise ConfigError(f"local: {base_url}/models lists no model; load one into the server")
    for model in listed[:_MOST_LOCAL]:
        yield {"model": model, "base_url": base_url}


def _listed(name: str, table: Mapping[str, str]) -> list[str]:
    """Return the models that a service lists, without unprintable names; raise NotListed if it gives no list."""
    from focalroute.core.config import Endpoint
    from focalroute.money.prices import fetch_models, listed_models

    settings: dict[str, Any] = {"model": "any", **table}
    names = dict.fromkeys(model["id"] for model in listed_models(fetch_models(Endpoint(name, **settings))))
    return [name for name in names if name.isprintable() and name.strip()]


def _write(pool: Path, tables: list[dict[str, str]], usd_total: str | None) -> list[str]:
    """Write the pool file with listed prices; if there is a budget, return the endpoints without a price.

    Only the models of the user's own server get a price of 0.
    """
    from focalroute.core.dollars import parse_usd
    from focalroute.core.pool import load_pool
    from focalroute.money.prices import listed_prices, write_prices

    budget = ""
    if usd_total is not None:
        budget = f"\n[budget]\nusd_total = {parse_usd(usd_total, 'usd_total'):f}\n"
    names = set[str]()
    text = _EXPECTED if len(tables) > 1 else ""
    for table in tables:
        base = table["model"].rsplit("/", 1)[-1].lower()
        name = next(one for one in chain([base], (f"{base}-{n}" for n in count(2))) if one not in names)
        names.add(name)
        values = {"name": name, **table}
        lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
        text += "[[endpoint]]\n" + "".join(lines)
        if "service" not in table:
            text += "# A price of 0 means free: no budget limits it.\ninput_usd_per_1m = 0\noutput_usd_per_1m = 0\n"
        text += "\n"
    with TemporaryDirectory(dir=pool.parent) as beside:  # a half-written file would block the next try
        draft = Path(beside) / pool.name
        draft.write_text(text, "utf-8")
        write_prices(draft, listed_prices(load_pool(draft).endpoints))
        unpriced = [endpoint.name for endpoint in load_pool(draft).endpoints if budget and endpoint.price is None]
        if unpriced:
            budget += (
                "allow_unpriced = true # calls to endpoints without a price are not counted: give each its price\n"
            )
        draft.write_text(draft.read_text("utf-8") + _STORE + budget, "utf-8")
        draft.replace(pool)
    return unpriced
