"""The page about a store: its numbers counted again, what it says where data is missing, and a real browser's view."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.shipped_policy.training import cold_fusion
from focalroute import Answer, AsyncEnsemble
from focalroute.core.dollars import dollars
from focalroute.core.errors import ConfigError
from focalroute.core.records import Feedback, Member
from focalroute.evaluate.report_page import page as page_module
from focalroute.evaluate.report_page.drawings import (
    AskedByRound,
    CostQuality,
    ErrorComparison,
    OverTime,
    Timelines,
    WhenRight,
)
from focalroute.evaluate.report_page.history import History, read_history
from focalroute.evaluate.report_page.page import SECTIONS, html
from focalroute.evaluate.report_page.report_command import MEANINGS, report_command, updates_section
from focalroute.evaluate.report_page.store_page import FEW, store_page
from focalroute.learn.export import decider_model, fusion_model
from focalroute.learn.trial import Trial, write_trial
from focalroute.learn.update_report import Comparison, Diagnostics
from focalroute.policy.publish import publish
from focalroute.sim import Question, SimulatedPool, stream
from focalroute.store.base import StoredAnswer
from focalroute.store.sqlite.store import SqliteStore
from tests.by_hand import linear_decider
from tests.evaluate.report_page.browsing import PHONE, browse, browser, fits_a_phone, on_a_phone
from tests.evaluate.report_page.reading import Checked

ODD = 'a < b & "c" $x_1$'


class Asked:
    """What was asked of a simulated pool, with the store that remembers it."""

    def __init__(self, store: Path, questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        self.store, self.questions, self.answers = store, questions, answers
        with closing(SqliteStore(store)) as opened:
            self.history = read_history(opened.recent(1000))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """80 labelled answers and one without feedback; the tasks have an odd name among them."""
    store = tmp_path_factory.mktemp("report") / "s.db"
    questions = list(stream(81, seed=5))

    async def ask(pool: SimulatedPool) -> list[Answer]:
        async with AsyncEnsemble(pool.endpoints, store=store, seed=1) as ensemble:
            answers = []
            for at in range(0, len(questions), 9):
                some = questions[at : at + 9]
                tasks = [ODD if q.topic == "logic" else q.topic for q in some]
                asks = [ensemble.ask(q.text, choices=q.choices, task=t) for q, t in zip(some, tasks, strict=True)]
                answers += await asyncio.gather(*asks)
                for answer, question in zip(answers[at:], some, strict=True):
                    if question is not questions[-1]:
                        await ensemble.feedback(answer, label_index=question.label)
        return answers

    with SimulatedPool() as pool:
        return Asked(store, questions, asyncio.run(ask(pool)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy folder with a trained version and two that updates made."""
    root = tmp_path_factory.mktemp("policy") / "p"
    figures = {one.name: 0.5 for one in fields(Diagnostics)} | {"episodes": 1234}
    trial = Trial(3)
    for version, metrics in enumerate(({"score": 0.9}, figures, {**figures, "entropy": 0.125}), 1):
        decider, fusion = decider_model(linear_decider()), fusion_model(cold_fusion())
        publish(root, decider=decider, fusion=fusion, names=(), parent=None, metrics=metrics)
        if version > 1:
            trial = trial.with_record(version, "published", Comparison(300, 0.25, 0.1, 1.5, 0.25, 0.0), "surely better")
    write_trial(root, trial)
    return str(root)


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_history_is_what_was_answered(asked: Asked) -> None:
    history, rated = asked.history, list(zip(asked.answers, asked.questions, strict=True))[:-1]
    assert (history.answers, len(history.worth), int(history.labelled.sum())) == (81, 80, 80)
    assert history.worth.sum() == sum(answer.choice == question.label for answer, question in rated)
    assert history.usd.sum() == pytest.approx(float(sum((answer.cost or Decimal(0)) for answer, _ in rated)))
    assert history.calls.sum() == sum(len(answer.receipt.calls) for answer, _ in rated)
    assert sorted(history.confidence) == pytest.approx(sorted(answer.confidence for answer, _ in rated))
    votes = [call for answer in asked.answers for call in answer.receipt.calls]
    for name, record in zip(history.names, history.endpoints, strict=True):
        for number, count in enumerate(record.by_round, 1):
            assert count == sum(call.endpoint == name and call.round == number for call in votes)


def test_members_are_right_where_their_choice_is_the_label(asked: Asked) -> None:
    known = np.zeros_like(asked.history.right.sum(axis=0))
    for answer, question in list(zip(asked.answers, asked.questions, strict=True))[:-1]:
        for call in answer.receipt.calls:
            known[asked.history.names.index(call.endpoint)] += call.candidate == question.label
    assert ((asked.history.right & asked.history.member).sum(axis=0) == known).all()


def test_the_page_draws_these_numbers(asked: Asked) -> None:
    history = asked.history
    drawn = {name: section.drawing for name, section in store_page(history, "s.db").sections.items()}
    curve, errors, right, rounds = (drawn[name] for name in ("curve", "errors", "when-right", "rounds"))
    assert isinstance(curve, CostQuality)
    dots = {dot.name: dot for dot in curve.dots}
    assert dots["focalroute"].quality == pytest.approx(history.worth.mean())
    assert dots["focalroute"].cost == pytest.approx(1000 * history.usd.mean()) == dots["vote of those asked"].cost
    assert isinstance(errors, ErrorComparison)
    vote = errors.found["vote of those asked"]
    assert vote.errors == pytest.approx(1 - history.vote.mean(), abs=1e-6)
    assert vote.corrected - vote.spoilt == pytest.approx(history.worth.mean() - history.vote.mean(), abs=1e-5)
    assert isinstance(right, WhenRight)
    assert sum(right.rows) == (history.member.sum(axis=1) > 1).sum()
    assert isinstance(rounds, AskedByRound)
    total = sum(len(answer.receipt.calls) for answer in asked.answers)
    assert sum(map(sum, rounds.shares)) == pytest.approx(total / 81)


def test_the_timelines_are_those_of_the_receipts(asked: Asked) -> None:
    """The median and the 95 %, of all answers; their calls as the receipts have them."""
    slowest = sorted(asked.answers, key=lambda answer: answer.latency_s)
    drawing = store_page(asked.history, "s.db").sections["timeline"].drawing
    assert isinstance(drawing, Timelines)
    for shown, answer in zip(drawing.asks, (slowest[40], slowest[76]), strict=True):
        assert shown.title.endswith(f" s, {dollars(answer.cost)}")
        assert shown.ended == answer.latency_s
        found = [(call.endpoint, call.queued, call.sent, call.ended, call.outcome) for call in shown.calls]
        assert found == [
            (call.endpoint, call.queued_s, call.sent_s, call.ended_s, "done") for call in answer.receipt.calls
        ]
    older = [_answer(n, {"a": True}) for n in range(20)]
    assert "timeline" in store_page(read_history(older), "s.db").sections["timeline"].caption


def _answer(number: int, right: dict[str, bool], *, version: int = 0) -> tuple[StoredAnswer, tuple[Feedback, ...]]:
    """A closed question; the first endpoint named gives the answer."""
    candidates = {name: 0 if good else 1 for name, good in right.items()}
    answered = next(iter(candidates.values()))
    call = {"round": 1, "attempts": 1, "cost": None, "cost_source": "unknown", "error": None, "latency_s": 0.5}
    calls = [{**call, "endpoint": name} for name in right]
    receipt = {"calls": calls, "cost": None, "latency_s": 1.0, "policy_version": version}
    members = {name: Member(1, candidate, 5, 0.5, None) for name, candidate in candidates.items()}
    text = json.dumps(receipt)
    stored = StoredAnswer(str(number), 1.0, ("x", "y"), "choice", answered, (0.5, 0.5), members, None, text)
    said = Feedback(str(number), 1.0 if answered == 0 else -1.0, "x", "user", float(number))
    return stored, (said,)


def test_changes_and_versions_are_marked_where_they_came() -> None:
    """One endpoint turns bad half-way, the other stays as it is, and both cost nobody knows what."""
    rows = [_answer(n, {"turns": n < 100, "stays": n % 10 > 0}, version=n // 50) for n in range(200)]
    history = read_history(rows)
    (change,) = history.changes
    assert change[1] == "turns"
    assert 100 < change[0] < 130
    section = store_page(history, "s").sections["over-time"]
    assert isinstance(section.drawing, OverTime)
    assert [mark.at for mark in section.drawing.marks if not mark.found] == [51, 101, 151]
    assert "1: after" in section.caption
    assert "turns was right 40% of the last 10 times, 100% before" in section.caption
    assert section.drawing.axis == "calls"


def test_versions_that_answer_by_turns_are_marked_once() -> None:
    """As in a trial, where a line at every answer was a grey wall."""
    rows = [_answer(n, {"a": True}, version=n % 2 + (n >= 50)) for n in range(100)]
    drawn = store_page(read_history(rows), "s").sections["over-time"].drawing
    assert isinstance(drawn, OverTime)
    assert [mark.at for mark in drawn.marks] == [2, 52]


def test_a_vote_shares_ties() -> None:
    history = read_history([_answer(0, {"a": True, "b": False}), _answer(1, {"a": True, "b": False, "c": False})])
    assert history.vote.tolist() == [0.5, 0]


def test_the_summary_says_where_feedback_came_for_harder_answers() -> None:
    """As from a judge: what is right of these is less than of all."""
    rows = [_answer(n, {"a": True, "b": n % 4 > 0}) for n in range(80)]
    first = [(answer, said if answer.disputed else ()) for answer, said in rows]
    assert "Members differ on 100% of these, but only on 25% of all answers" in _lead_of(first)
    assert "differ" not in _lead_of(rows)
    open_texts = [(replace(answer, kind="text"), said) for answer, said in rows]  # that these differ says nothing
    assert "differ" not in _lead_of([*open_texts, *((answer, ()) for answer, _ in rows)])


def _lead_of(rows: Sequence[tuple[StoredAnswer, Sequence[Feedback]]]) -> str:
    return store_page(read_history(rows), "s").lead


def test_an_answer_without_its_receipt_is_left_out() -> None:
    whole, damaged = _answer(0, {"a": True}), _answer(1, {"a": True})
    rows = [whole, *((replace(damaged[0], receipt=text), damaged[1]) for text in ("{", "[]", "{}"))]
    assert read_history(rows).answers == 1


# -- what is missing ---------------------------------------------------------------------------------------------------


def _without(history: History, *, feedback: int) -> History:
    arrays = ("worth", "usd", "calls", "latency_s", "confidence", "version", "labelled", "vote", "known", "right",
              "member")  # fmt: skip
    return replace(history, **{name: getattr(history, name)[:feedback] for name in arrays})


def test_sections_without_data_say_what_they_need(asked: Asked) -> None:
    empty = store_page(read_history([]), "s.db")
    assert [name for name, one in empty.sections.items() if one.drawing or one.table] == []
    assert "nothing was asked" in empty.sections["timeline"].caption
    assert "is empty" in empty.lead
    one = replace(_without(asked.history, feedback=0), answers=1)
    assert "is about 1 answer, with" in store_page(one, "s.db").lead
    little = store_page(_without(asked.history, feedback=FEW - 1), "s.db")
    assert little.lead.endswith("good the answers were it needs feedback for 10.")
    few = little.sections
    assert "this store has it for 9" in few["curve"].caption
    assert few["rounds"].drawing is not None
    bare = replace(asked.history, labelled=np.zeros(80, np.bool_), vote=np.full(80, np.nan))
    sections = store_page(bare, "s.db").sections
    assert "Needs labels" in sections["errors"].caption
    assert sections["curve"].drawing is not None


def test_every_figure_of_an_update_has_its_meaning(folder: str) -> None:
    assert {one.name for one in fields(Diagnostics)} <= MEANINGS.keys()
    section = updates_section(folder)
    assert section.table is not None
    rows = {row[0]: row[1] for row in section.table.rows}
    assert section.table.columns[1] == "version 3"
    assert (rows["gain, points"], rows["entropy, nats"], rows["answers"]) == ("0.25", "0.125", "1,234")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(asked: Asked, folder: str) -> dict[str, Any]:
    """What the command says after it wrote the page and its drawings."""
    page, drawings, printed = asked.store.with_name("page.html"), asked.store.with_name("drawings"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        report_command(None, str(asked.store), policy=folder, out=page, png=drawings, as_json=True)
    said: dict[str, Any] = json.loads(printed.getvalue())
    return said


def test_the_command_writes_page_and_drawings(written: dict[str, Any]) -> None:
    assert written["missing"] == {}
    drawings = [Path(file) for file in written["pngs"]]
    assert sorted(file.stem for file in drawings) == sorted(SECTIONS.keys() - {"figures"})
    assert sorted(drawings[0].parent.iterdir()) == sorted(drawings)
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in drawings)
    text = Path(written["page"]).read_text("utf-8")
    found = Checked(text)
    assert (found.open, found.sections) == ([], SECTIONS)
    assert not {"script", "link", "img", "iframe", "object"} & found.tags.keys()
    assert "http" not in text
    assert "nan" not in text.lower()
    assert "a &lt; b &amp;" in text
    assert "a < b" not in text
    assert len(text) < 1_000_000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give EVAL.json"),
        ({"evaluation": "s.db", "store": "s.db"}, "give EVAL.json"),
        ({"evaluation": "s.db"}, "s.db: is a store; give it as --store"),
        ({"evaluation": "none.json"}, "none.json: cannot be read"),
        ({"evaluation": "text"}, "text: is not JSON"),
        ({"store": "none.db"}, "none.db: there is no such store"),
        ({"store": "s.db", "out": "nowhere/page.html"}, "cannot be written"),
        ({"store": "s.db", "out": "s.db"}, "s.db: is also read or written for another purpose"),
        ({"evaluation": "text", "out": "text"}, "text: is also read or written for another purpose"),
        ({"store": "s.db", "policy": "nowhere"}, "nowhere: there is no such folder"),
        ({"store": "s.db", "png": "text"}, "text: cannot be made"),
    ],
)
def test_wrong_options_are_named(
    given: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    SqliteStore(Path("s.db")).close()
    Path("text").write_text("[1")
    paths: dict[str, Any] = {name: value if name == "policy" else Path(value) for name, value in given.items()}
    with pytest.raises(ConfigError, match=re.escape(says)):
        report_command(**{"evaluation": None, "store": None, "out": Path("page.html"), **paths})


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(written: dict[str, Any]) -> Path:
    return Path(written["page"])


@browser
def test_figures_stay_in_sight_beside_a_long_name(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tables; without the drawings, which take seconds."""
    monkeypatch.setattr(page_module, "as_svg", lambda *_, **__: "")
    names = ("x" * 200, *asked.history.names[1:])
    page = tmp_path / "page.html"
    shown = html(store_page(replace(asked.history, names=names), "s.db"))
    wide = "document.title = document.querySelector('.scroll').scrollWidth"
    page.write_text(f"{shown}<style>main {{ width: 700px }}</style><script>{wide}</script>", "utf-8")
    found = re.search(r"<title>(\d+)</title>", browse(tmp_path, page, "--dump-dom").stdout)
    assert found is not None
    assert int(found[1]) <= 700


@browser
def test_the_page_fits_a_phone_and_the_console_has_nothing_to_say(page: Path, tmp_path: Path) -> None:
    fits_a_phone(page, tmp_path)


@browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_drawn_in_light_and_dark(page: Path, tmp_path: Path, dark: bool) -> None:
    """Paper of the scheme's own brightness, ink that stands out from it, and the curve's colour."""
    from matplotlib.image import imread

    picture = tmp_path / "page.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] * dark
    browse(tmp_path, on_a_phone(page, tmp_path), f"--screenshot={picture}", "--hide-scrollbars", *scheme)
    seen = imread(picture)[:, :PHONE, :3]
    brightness = seen.mean(axis=2)
    paper = float(np.median(brightness))
    assert (paper < 0.2) if dark else (paper > 0.9)
    assert (np.abs(brightness - paper) > 0.5).mean() > 0.01
    blue = (seen[..., 2] - seen[..., 0] > 0.4).mean()
    assert blue > 0.002


@browser
def test_the_page_is_printed_on_a_few_sheets(page: Path, tmp_path: Path) -> None:
    browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type /Page\b", printed)) <= 6
