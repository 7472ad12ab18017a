"""The page of an evaluation: well-formed, complete, self-contained, and the same from its JSON."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.errors import ConfigError
from focalroute.evaluate.eval_page import eval_page
from focalroute.evaluate.eval_result import read_eval
from focalroute.evaluate.report import evaluate, evaluate_command
from focalroute.evaluate.report_page import page as page_module
from focalroute.evaluate.report_page.drawings import Drawing
from focalroute.evaluate.report_page.page import SECTIONS, as_svg, html
from focalroute.policy.bundle import cold, load
from tests.cli.calling import focalroute
from tests.evaluate.logs import Line, output, stream, write_log, write_pool
from tests.evaluate.report_page.browsing import browser, fits_a_phone
from tests.evaluate.report_page.reading import Checked
from tests.policies import ask_the_affordable

ODD = 'a < b & "c" $x_1$'


@pytest.fixture(scope="module", autouse=True)
def drawn_once() -> Iterator[None]:
    """Equal drawings are drawn once in this file; each takes half a second of CPU."""
    drawn: dict[str, str] = {}

    def once(name: str, drawing: Drawing, *, narrow: bool = False) -> str:
        key = repr((name, drawing, narrow))
        return drawn.get(key) or drawn.setdefault(key, as_svg(name, drawing, narrow=narrow))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "as_svg", once)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two seeds and three operating points, by the command."""
    folder = tmp_path_factory.mktemp("page")
    prices = {"small": 1.0, "medium": 3.0, "large": 9.0}
    lines = stream(50, {"small": 0.6, "medium": 0.75, "large": 0.9})
    for line in lines:
        line["task"] = ODD if line["task"] == "odd" else line["task"]
    log, pool = write_log(folder / "a&b.jsonl", lines), write_pool(folder / "pool.toml", prices)
    policy = load(ask_the_affordable(folder / "policy"))
    file = folder / "page.html"
    files: dict[str, Any] = {"html_file": file, "json_file": folder / "eval.json"}
    evaluate_command(log, pool, policy=policy, operating_points=(0.1, 0.3, 1), seeds=2, **files)
    return file


@pytest.fixture(scope="module")
def report_json(made: Path) -> Any:
    """What the evaluation wrote as JSON."""
    return json.loads(made.with_name("eval.json").read_text("utf-8"))


def test_the_page_of_the_json_is_the_page_of_the_evaluation(made: Path, tmp_path: Path) -> None:
    done = focalroute("report", str(made.with_name("eval.json")), "--out", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_bytes() == made.read_bytes()


def test_the_page_is_well_formed_and_has_all_sections(made: Path) -> None:
    text = made.read_text("utf-8")
    found = Checked(text)
    assert found.open == []
    assert found.sections == SECTIONS
    assert found.tags["svg"] == len(SECTIONS) - 2  # the curve twice; table, updates, timeline not at all
    assert text.startswith("<!doctype html>")
    assert len(text) < 1_000_000


def test_nothing_comes_from_elsewhere_and_nothing_runs(made: Path) -> None:
    text = made.read_text("utf-8")
    assert "http" not in text
    assert "@import" not in text
    found = Checked(text)
    assert not {"script", "link", "img", "iframe", "object"} & found.tags.keys()
    assert [name for name, count in Counter(found.ids).items() if count > 1] == []
    assert found.targets <= set(found.ids)


def test_every_figure_is_in_the_table_and_every_method_on_the_curve(made: Path) -> None:
    text = made.read_text("utf-8")
    table, curve = text[text.index('id="figures"') :], text[text.index('id="curve"') : text.index('id="over-time"')]
    for name in ("focalroute @ 0.1", "focalroute @ 0.3", "focalroute @ 1", "oracle", "plurality", "shuffled"):
        assert f'<th scope="row">{name}</th>' in table
    for name in ("best-single-train", "cascade", "plurality", "round-robin", "carrot-knn"):
        assert len(re.findall(rf">{name}</text>", curve)) == 2  # wide and narrow


def test_names_are_text_and_never_markup(made: Path) -> None:
    """Nor formulas."""
    text = made.read_text("utf-8")
    assert "a &lt; b &amp;" in text
    assert "$x_1$" in text
    assert "a < b" not in text
    assert f"<title>{escape('focalroute on a&b.jsonl')}</title>" in text


def test_colours_are_the_style_sheets(made: Path) -> None:
    """No drawing holds a colour of its own, or it would be lost in the dark."""
    drawn = "".join(re.findall(r"<svg.*?</svg>", made.read_text("utf-8"), re.DOTALL))
    assert "currentColor" in drawn
    assert "var(--ours)" in drawn
    assert re.findall(r"#[0-9a-f]{6}\b", drawn) == []


def _scored(count: int) -> list[Line]:
    """Scores only, one endpoint fails everywhere, no task, and everything is free."""
    down = {"error": "down", "prompt_tokens": 1, "completion_tokens": 0}
    return [{"id": str(n), "outputs": {"a": output(None, score=0.3), "b": down}} for n in range(count)]


@pytest.mark.parametrize(
    "prices",
    [{"a": 0.0, "b": 0.0}, pytest.param({"a": 0.0, "b": 2.0}, marks=pytest.mark.slow)],
    ids=["free", "partly free"],
)
def test_odd_logs_have_a_page_too(tmp_path: Path, prices: dict[str, float]) -> None:
    log, pool = write_log(tmp_path / "log.jsonl", _scored(12)), write_pool(tmp_path / "pool.toml", prices)
    page = eval_page(read_eval(evaluate(log, pool, policy=cold()).to_dict(), "it"))
    assert page.sections.keys() == SECTIONS.keys()
    assert page.sections["tasks"].caption == "This log names no tasks."
    assert page.facts["seed"] == "0"  # "seeds 0" reads as none
    assert "focalroute report --policy" in page.sections["updates"].caption  # eval's --policy is another
    curve, over_time = (page.sections[name].drawing for name in ("curve", "over-time"))
    assert curve is not None
    assert over_time is not None
    assert ("all free, or of unknown cost" in as_svg("curve", curve)) is not any(prices.values())
    assert ("All calls are free, or of unknown cost" in page.lead) is not any(prices.values())
    assert "nan" not in as_svg("over-time", over_time).lower()


@pytest.mark.slow
def test_an_endpoint_that_never_answers_leaves_no_confidence(tmp_path: Path) -> None:
    """It did once, in the training part, as a log without any answer is refused."""
    lines = _scored(8)
    lines[0]["outputs"]["b"] = lines[0]["outputs"]["a"]
    for line in lines:
        line["outputs"].pop("a")
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", {"b": 1.0})
    text = html(eval_page(read_eval(evaluate(log, pool, policy=cold()).to_dict(), "it")))
    assert Checked(text).sections == SECTIONS
    assert "nan" not in text.lower()


def test_a_missing_extra_is_named_before_anything_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"focalroute\[report\]"):
        evaluate_command(tmp_path / "no.jsonl", tmp_path / "no.toml", html_file=tmp_path / "page.html")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"methods": None}, "methods: "),
        ({"figures": None}, "figures: "),
        ({"focalroute": []}, "no operating point"),
        ({"n_test": "many"}, "n_test: "),
        ({"equal_cost": {}}, "of eval --live"),
    ],
)
def test_errors_in_a_report_are_named(report_json: Any, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"it: .*{says}"):
        read_eval({**report_json, **change}, "it")
    with pytest.raises(ConfigError, match="it: is not a report"):
        read_eval([1], "it")


@browser
def test_the_page_fits_a_phone_and_the_console_has_nothing_to_say(made: Path, tmp_path: Path) -> None:
    fits_a_phone(made, tmp_path)
