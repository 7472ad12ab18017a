"""The report as one page: well-formed, complete, self-contained, and fit for a phone in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from focalroute.evaluate.html.page import SECTIONS, page

from focalroute.errors import ConfigError
from focalroute.evaluate.command import evaluate_command
from focalroute.evaluate.report import evaluate
from focalroute.policy.bundle import cold
from tests.evaluate.logs import Line, output, stream, write_log, write_pool
from tests.policies import ask_the_affordable

VOID = {"meta", "br", "img", "link", "input", "hr"}
ODD = 'a < b & "c" $x_1$'
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = 390

browser = pytest.mark.skipif(BROWSER is None, reason="needs a chromium: apt-get install chromium")


class Checked(HTMLParser):
    """Reads a page and sees that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.sections: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name.endswith("href"):
                self.targets.add((value or "").removeprefix("#"))
            self.targets.update(re.findall(r"url\(#(.*?)\)", value or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.sections[self.ids[-1]] = data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two seeds and three operating points, by the command."""
    folder = tmp_path_factory.mktemp("page")
    prices = {"small": 1.0, "medium": 3.0, "large": 9.0}
    lines = stream(300, {"small": 0.6, "medium": 0.75, "large": 0.9})
    for line in lines:
        line["task"] = ODD if line["task"] == "odd" else line["task"]
    log, pool = write_log(folder / "a&b.jsonl", lines), write_pool(folder / "pool.toml", prices)
    policy = str(ask_the_affordable(folder / "policy"))
    file = folder / "page.html"
    evaluate_command(log, pool, policy=policy, operating_points="0.1,0.3,1", seeds=2, html_file=file)
    return file


def test_the_page_is_well_formed_and_has_all_sections(made: Path) -> None:
    text = made.read_text("utf-8")
    found = Checked(text)
    assert found.open == []
    assert found.sections == SECTIONS
    assert found.tags["svg"] == len(SECTIONS)  # the curve twice, the table not at all
    assert text.startswith("<!doctype html>")


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
    for name in ("best-single-train", "cascade", "plurality", "round-robin", "knn"):
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


@pytest.mark.parametrize("prices", [{"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 2.0}], ids=["free", "partly free"])
def test_odd_logs_have_a_page_too(tmp_path: Path, prices: dict[str, float]) -> None:
    log, pool = write_log(tmp_path / "log.jsonl", _scored(12)), write_pool(tmp_path / "pool.toml", prices)
    text = page(evaluate(log, pool, policy=cold()))
    assert Checked(text).sections == SECTIONS
    assert "This log names no tasks." in text
    assert ("all of them free" in text) is not any(prices.values())


def test_an_endpoint_that_never_answers_leaves_no_confidence(tmp_path: Path) -> None:
    lines = _scored(8)
    for line in lines:
        line["outputs"].pop("a")
    log, pool = write_log(tmp_path / "log.jsonl", lines), write_pool(tmp_path / "pool.toml", {"b": 1.0})
    text = page(evaluate(log, pool, policy=cold()))
    assert Checked(text).sections == SECTIONS
    assert "nan" not in text.lower()


def test_a_missing_extra_is_named_before_anything_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"focalroute\[report\]"):
        evaluate_command(tmp_path / "no.jsonl", tmp_path / "no.toml", html_file=tmp_path / "page.html")


def _browse(folder: Path, address: Path, *options: str) -> str:
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={folder / 'profile'}", "--window-size=500,4000", *options, address.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


def _on_a_phone(made: Path, folder: Path) -> Path:
    """The page in a frame of a phone's width (a headless window is wider), which says how wide its content is."""
    wrapper = folder / "phone.html"
    wrapper.write_text(
        f'<body style="margin:0"><iframe style="width:{PHONE}px;height:4000px;border:0" onload="document.title = '
        f'contentDocument.documentElement.scrollWidth" srcdoc="{escape(made.read_text("utf-8"))}"></iframe></body>',
        "utf-8",
    )
    return wrapper


@browser
@pytest.mark.xdist_group("browser")
def test_the_page_fits_a_phone(made: Path, tmp_path: Path) -> None:
    said = _browse(tmp_path, _on_a_phone(made, tmp_path), "--dump-dom")
    width = re.search(r"<title>(\d+)</title>", said)
    assert width is not None
    assert int(width[1]) <= PHONE


@browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_drawn_in_light_and_dark(made: Path, tmp_path: Path, dark: bool) -> None:
    """Paper of the scheme's own brightness, ink that stands out from it, and the curve's colour."""
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] * dark
    _browse(tmp_path, _on_a_phone(made, tmp_path), f"--screenshot={picture}", "--hide-scrollbars", *scheme)
    seen = imread(picture)[:, :PHONE, :3]
    brightness = seen.mean(axis=2)
    paper = float(np.median(brightness))
    assert (paper < 0.2) if dark else (paper > 0.9)
    assert (np.abs(brightness - paper) > 0.5).mean() > 0.01
    blue = (seen[..., 2] - seen[..., 0] > 0.4).mean()
    assert blue > 0.002
