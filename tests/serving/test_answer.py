"""Answers printed, in a notebook and as JSON; many as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from focalroute import Answer, ConfigError, Endpoint, Ensemble
from focalroute.core.dollars import Dollars, dollars
from focalroute.sim import SimulatedPool
from tests.loopback import completion, json_reply, serving

QUESTION, CHOICES = "What is 17 + 25?", ["32", "42", "44"]


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with SimulatedPool() as pool, Ensemble(pool.endpoints, policy="plurality", seed=0) as made:
        yield made


@pytest.fixture(scope="module")
def answer(ensemble: Ensemble) -> Answer:
    return ensemble.ask(QUESTION, choices=CHOICES)


def test_an_answer_prints_its_text_and_is_one_line_in_a_console(answer: Answer) -> None:
    assert str(answer) == f"{answer}" == answer.text
    assert f"{answer:>9}" == f"{answer.text:>9}"
    assert repr(answer) == (
        f"Answer({answer.text!r}, confidence={answer.confidence:.2f}, cost={dollars(answer.cost)}, calls=6)"
    )
    long = replace(answer, text="word " * 1000 + "So it is 42.", cost=None)
    assert "So it is 42.'" in repr(long)
    assert len(repr(long)) < 150
    assert "cost=unknown" in repr(long)


def test_money_prints_in_plain_digits(answer: Answer) -> None:
    tiny = Dollars("6E-7")
    assert f"${tiny}" == "$0.0000006"
    assert f"{tiny} {tiny:.2f} {tiny!s}" == "0.0000006 0.00 0.0000006"
    assert tiny == Decimal("6E-7")
    assert isinstance(answer.cost, Dollars)
    assert isinstance(answer.receipt.calls[0].cost, Dollars)
    shown = {"6E-7": "$0.0000006", "0.0012345": "$0.00123", "0": "$0.00", "12.5": "$12.50", "0.05": "$0.05"}
    assert {usd: dollars(Decimal(usd)) for usd in shown} == shown


def test_usage_and_time_are_those_of_all_calls(answer: Answer) -> None:
    assert answer.usage is not None
    told = [call.usage for call in answer.receipt.calls if call.usage]
    assert answer.usage.prompt_tokens == sum(usage.prompt_tokens for usage in told) > 0
    assert answer.latency_s == answer.receipt.latency_s > 0


@pytest.mark.parametrize(
    ("replies", "disputed"),
    [(("42", "42.0", "42"), False), (("42", "42", "44"), True), (("42", "no idea", "42"), False)],
)
def test_an_answer_is_disputed_where_members_gave_different_ones(replies: tuple[str, ...], disputed: bool) -> None:
    """A reply without an answer is not a different one."""

    async def reply(_: Any, body: Any) -> Any:
        return json_reply(completion(replies[int(body["model"])]))

    with serving(reply) as service:
        pool = [Endpoint(name, model=str(n), base_url=service.url) for n, name in enumerate("abc")]
        with Ensemble(pool, policy="plurality") as ensemble:
            answer = ensemble.ask(QUESTION, answer="number")
    assert len(answer.receipt.calls) == 3
    assert answer.disputed is answer.to_dict()["disputed"] is disputed


def test_an_answer_as_json_holds_it_all(ensemble: Ensemble, answer: Answer) -> None:
    plain = answer.to_dict()
    assert json.loads(answer.to_json()) == plain
    assert (plain["text"], plain["value"], plain["id"]) == (answer.text, answer.value, answer.id)
    assert plain["cost"] == str(answer.cost)
    assert plain["receipt"] == json.loads(answer.receipt.to_json())
    odd = ensemble.ask(QUESTION, answer=lambda text: text[-3:], metadata={"at": object()})
    assert json.loads(odd.to_json())["value"] == odd.value


class Texts(HTMLParser):
    """Collects a page's tags and texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_notebook_shows_every_members_reply_and_runs_nothing(answer: Answer) -> None:
    page = answer._repr_html_()
    shown = Texts(page)
    assert {call.endpoint for call in answer.receipt.calls} <= set(shown.texts)
    assert f"{max(answer.probabilities):.2f}" in shown.texts
    assert len(page) < 10_000
    long = "step " * 1000 + "So it is 42."
    (said,) = {text for text in Texts(replace(answer, candidates=(long,) * 9)._repr_html_()).texts if "step" in text}
    assert said.startswith("step step")
    assert said.endswith("So it is 42.")
    assert len(said) < 200
    hostile = '<script>alert(1)</script><div style="x">'
    other = replace(answer, text=hostile, candidates=(hostile,) * len(answer.candidates))
    read = Texts(other._repr_html_())
    assert set(read.tags) == set(shown.tags)
    assert read.texts.count(hostile) > 1


def test_many_answers_are_rows_and_lines(ensemble: Ensemble, tmp_path: Path) -> None:
    """A query that fails keeps its place, and its exception says which one it is."""
    answers = ensemble.ask_many(
        [{"query": QUESTION, "choices": CHOICES}, " ", {"query": QUESTION, "answer": "number"}], return_exceptions=True
    )
    rows = answers.rows()
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert [set(row) == set(rows[0]) for row in rows] == [True] * 3
    assert rows[1]["cost_usd"] is None
    assert rows[0]["cost_usd"] > 0
    assert rows[0]["asked"].count(", ") == 5
    failed = answers[1]
    assert isinstance(failed, ConfigError)
    assert failed.index == 1
    assert failed.__notes__ == ["in queries[1]"]
    answers.to_jsonl(tmp_path / "answers.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2]
    assert lines[1]["error"] == f"ConfigError: {failed}"
    assert lines[2]["text"] == rows[2]["text"]
    assert [row["text"] for row in answers[:2].rows()] == [row["text"] for row in rows[:2]]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_rows_make_a_data_frame(ensemble: Ensemble, library: str) -> None:
    frames = pytest.importorskip(library, reason=f"{library} is not installed")
    answers = ensemble.ask_many([" ", {"query": QUESTION, "choices": CHOICES}], return_exceptions=True)
    frame = frames.DataFrame(answers.rows())
    assert frame.shape == (2, len(answers.rows()[0]))
    assert frame["cost_usd"].sum() > 0


def test_an_answer_of_unknown_price_has_no_cost() -> None:
    async def handler(_: Any, __: Any) -> Any:
        return json_reply(completion())

    with (
        serving(handler) as server,
        Ensemble([Endpoint("e", model="m", base_url=server.url)]) as ensemble,
    ):
        assert ensemble.stats().cost == 0  # nothing was called
        answer = ensemble.ask(QUESTION)
        stats = ensemble.stats()
        assert answer.cost is stats.cost is stats.endpoints["e"].cost is None


def test_a_receipt_tells_what_happened_when(answer: Answer) -> None:
    events = answer.receipt.timeline
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    of_one = [event.what for event in events if event.endpoint == answer.receipt.calls[0].endpoint]
    assert of_one == ["queued", "sent", "done"]
    assert events[-1].what == "fused"
    assert answer.to_dict()["receipt"]["fused_s"] == answer.receipt.fused_s
    first, *lines = str(answer.receipt).splitlines()
    assert len(lines) == len(events)
    assert first.split(", ")[1] == f"{len(answer.receipt.calls)} calls in 1 round"
