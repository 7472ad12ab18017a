"""The settings of an ensemble: stated once, checked by name, and shown by editors."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import jedi
import pytest
from parso.cache import parser_cache

import focalroute
from focalroute import AsyncEnsemble, ConfigError, Endpoint, Ensemble
from focalroute.serving.query import ARGUMENTS, AskArguments
from focalroute.serving.settings import Settings

POOL = (Endpoint("a", model="m"),)


@pytest.mark.parametrize(
    "setting",
    [
        {"max_rounds": 0},
        {"max_rounds": True},
        {"seed": -1},
        {"cost_weight": 0},
        {"window": 0},
        {"deadline_s": 0},
        {"attempts": 0},
        {"deadline_s": float("nan")},
        {"samples": 2.5},
        {"probe_share": -0.1},
        {"probe_share": 1.1},
        {"probe_share": float("nan")},
        {"store_text": "false"},
        {"explore": 1},
        {"durability": "none"},
        {"max_round": 3},
    ],
    ids=str,
)
def test_a_limit_out_of_range_names_itself(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Settings(POOL, **setting)


def test_several_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError, match=r"max_rounds.*; .*window"):
        Settings(POOL, max_rounds=0, window=0)


def test_a_wrong_setting_in_a_pool_file_names_the_file_unless_another_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    endpoint = '[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"'
    path.write_text(f"{endpoint}\n[ensemble]\ndeadline_s = -1")
    with pytest.raises(ConfigError, match=rf"^{path}: ensemble: deadline_s: give more than 0$"):
        Ensemble(path)
    with pytest.raises(ConfigError, match=r"^Ensemble: deadline_s: give more than 0$"):
        Ensemble(path, deadline_s=0)
    Ensemble(path, deadline_s=1).close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('policy = "pluralty"', "policy: 'pluralty' is not a policy's name"),
        ('store = ""', "store: is empty; give a file"),
        ("store = 5", "store: give a file"),
        ('synthesiser = "b"', "synthesiser: 'b' is not in the pool"),
        ("telemetry = 5", "telemetry: give True"),
        ("update_every = 5", "update_every: an update needs a policy folder"),
    ],
)
def test_a_setting_of_a_pool_file_that_its_user_finds_wrong_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    """Given by its path or found; what was given in its place does not."""
    path = tmp_path / "pool.toml"
    path.write_text(f'[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n[ensemble]\n{line}')
    monkeypatch.setenv("FOCALROUTE_POOL", str(path))
    for pool in (path, None):
        with pytest.raises(ConfigError, match=rf"^{path}: ensemble: {said}"):
            Ensemble(pool)
    given = tomllib.loads(line)
    with pytest.raises(ConfigError, match=rf"^{said}") as told:
        Ensemble(path, **given)
    assert told.value.field == next(iter(given))


def test_a_setting_of_a_former_name_says_its_new_one() -> None:
    with pytest.raises(ConfigError, match="price_of_money: unknown key; did you mean 'cost_weight'"):
        Settings(POOL, price_of_money=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("ensemble", [AsyncEnsemble, Ensemble])
def test_an_ensemble_shows_every_setting_with_its_type_and_default(ensemble: type) -> None:
    shown = inspect.signature(ensemble).parameters
    assert list(shown) == [field.name for field in fields(Settings)]
    assert (shown["max_rounds"].annotation, shown["max_rounds"].default) == (int, 3)
    assert shown["endpoints"].default is None
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for name, one in shown.items() if name != "endpoints")


@pytest.mark.parametrize("method", ["ask", "ask_many", "feedback"])
def test_methods_to_be_awaited_are_coroutine_functions(method: str) -> None:
    """A background task of FastAPI called it, and dropped what it gave: the feedback was lost."""
    assert inspect.iscoroutinefunction(getattr(AsyncEnsemble, method))
    assert not inspect.iscoroutinefunction(getattr(Ensemble, method))


@pytest.fixture(scope="module")
def jedi_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of this file's own: two processes that write the common one at a time spoil it.

    Its 250,000 objects go at the end: each later test that collects garbage would look at them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jedi.settings, "cache_directory", str(tmp_path_factory.mktemp("jedi")))
        yield
    parser_cache.clear()


class Editor:
    """Lines of code that are read once, and what jedi offers within them."""

    def __init__(self, lines: Sequence[str], read: Callable[[str], Any] = jedi.Script) -> None:
        self._lines = lines
        self._read = read("\n".join(lines))

    def arguments(self, call: str) -> list[str]:
        """Return the arguments offered after this call's opening bracket."""
        (signature,) = self._read.get_signatures(*self._after(f"{call}("))
        return [argument.name for argument in signature.params]

    def completions(self, code: str) -> set[str]:
        """Return the names offered after this code."""
        return {one.name for one in self._read.complete(*self._after(code))}

    def _after(self, code: str) -> tuple[int, int]:
        """The line, from 1, and the column where some line's code ends, or a closing bracket follows."""
        (line,) = (n for n, line in enumerate(self._lines) if line.removesuffix(")") == code)
        return line + 1, len(code)


#: What somebody has begun to type, and what should be offered then.
BEGUN = {"max_": {"max_tokens=", "max_usd="}, "temp": {"temperature="}}
METHODS = ("ask", "ask_many", "stream", "feedback", "update", "reload", "stats")


@pytest.mark.usefixtures("jedi_cache")
@pytest.mark.parametrize("ensemble", [pytest.param(AsyncEnsemble, marks=pytest.mark.slow), Ensemble])
def test_a_notebook_offers_every_setting_and_every_argument(ensemble: type) -> None:
    made: Any = object.__new__(ensemble)
    names = {"Ensemble": ensemble, "ensemble": made}
    lines = ["Ensemble()", *(f"ensemble.{method}()" for method in METHODS)]
    editor = Editor(lines, lambda code: jedi.Interpreter(code, [names]))
    assert editor.arguments("Ensemble") == [field.name for field in fields(Settings)]
    for method in METHODS:
        assert editor.arguments(f"ensemble.{method}") == [*inspect.signature(getattr(made, method)).parameters]


@pytest.mark.usefixtures("jedi_cache")
@pytest.mark.parametrize("ensemble", [pytest.param("AsyncEnsemble", marks=pytest.mark.slow), "Ensemble"])
def test_an_editor_that_reads_the_source_alone_offers_the_same(ensemble: str) -> None:
    made = getattr(focalroute, ensemble)
    answer = "    (await ensemble.ask('?'))." if made is AsyncEnsemble else "    ensemble.ask('?')."
    options = [f"ensemble.{method}('?', {begun}" for method in ("ask", "ask_many", "stream") for begun in BEGUN]
    begun = [f"from focalroute import {ensemble}", f"ensemble = {ensemble}('pool.toml')", f"{ensemble}()"]
    calls = [f"ensemble.{method}()" for method in METHODS]
    editor = Editor([*begun, *calls, *(f"{option})" for option in options), "async def main():", answer])
    assert editor.arguments(ensemble) == [field.name for field in fields(Settings)]
    for method in METHODS:
        parameters = {*inspect.signature(getattr(made, method)).parameters} - {"self"}
        assert set(editor.arguments(f"ensemble.{method}")) == parameters
    for option in options:
        assert BEGUN[option.rsplit(" ", 1)[1]] <= editor.completions(option)
    assert {"text", "value", "confidence", "cost", "receipt"} <= editor.completions(answer)


def test_the_arguments_of_an_ask_are_those_that_type_checkers_know() -> None:
    assert {"query", *AskArguments.__annotations__} == set(ARGUMENTS)
    assert set(ARGUMENTS) < set(inspect.signature(AsyncEnsemble.ask_many).parameters) | {"query"}
    for method in METHODS:
        shown = [inspect.signature(getattr(ensemble, method)) for ensemble in (AsyncEnsemble, Ensemble)]
        assert list(shown[0].parameters) == list(shown[1].parameters)


@pytest.mark.parametrize("ensemble", [AsyncEnsemble, Ensemble])
def test_an_ensemble_of_no_endpoints_or_wrong_settings_is_refused(ensemble: Any) -> None:
    with pytest.raises(ConfigError, match="endpoints: give a list of Endpoint objects or a pool file"):
        ensemble()
    with pytest.raises(ConfigError, match="max_round: unknown key"):
        ensemble(POOL, max_round=3)
    with pytest.raises(ConfigError, match="give settings by keyword"):
        ensemble(POOL, "policy")
