"""The outcome log's reader: every part of the format, and a clear error for anything else."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from focalroute.core.errors import ConfigError
from focalroute.evaluate.outcomes import Output, read_log
from tests.evaluate.logs import Line, closed, output, write_log


def test_a_closed_question_is_read_whole(tmp_path: Path) -> None:
    given = output(1, probabilities=[0.1, 0.7, 0.2], score=0.5, cost_usd=0.001, latency_s=0.25)
    line = closed(1, {}, 2, task="sums") | {"outputs": {"a": given, "b": {"error": "timed out"}, "c": output(None)}}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [line]))
    assert (query.id, query.task, query.choices, query.label, query.line) == ("q1", "sums", ("A", "B", "C"), 2, 1)
    assert query.messages == ({"role": "user", "content": "question 1"},)
    a = query.outputs["a"]
    assert (a.answer, a.probabilities, a.score, a.cost_usd, a.latency_s) == (1, (0.1, 0.7, 0.2), 0.5, 0.001, 0.25)
    assert (a.prompt_tokens, a.completion_tokens, a.error) == (100, 10, None)
    assert query.outputs["b"].error == "timed out"
    assert query.outputs["c"].answer is None


def test_free_form_scores_and_messages_are_read(tmp_path: Path) -> None:
    lines: list[Line | str] = [
        {"id": "1", "messages": [{"role": "user", "content": "hi"}], "label": "x", "outputs": {"a": output("x")}},
        {"id": "2", "outputs": {"a": {"score": 0.5, "cost_usd": 0}}},
    ]
    first, second = read_log(write_log(tmp_path / "log.jsonl", lines))
    assert first.label == "x"
    assert first.outputs["a"].answer == "x"
    assert second.messages == ()
    assert second.outputs["a"].score == 0.5


def test_choices_of_which_no_output_says_which_it_backs_are_left_out(tmp_path: Path) -> None:
    """No endpoint's answer was found among the choices, so that all methods but the oracle were worth nothing."""
    scored: dict[str, Line] = {"a": {"score": 0.5, "cost_usd": 0}, "b": {"score": 1, "cost_usd": 0}}
    line: Line = {"id": "1", "choices": ["x", "y"], "outputs": scored}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [line]))
    assert query.choices is None
    line["outputs"] = {"a": scored["a"] | {"answer": 1}, "b": scored["b"] | {"answer": None, "score": 0}}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [line]))
    assert query.choices == ("x", "y")
    line["outputs"]["b"] = scored["b"]
    with pytest.raises(ConfigError, match=r"outputs\.b\.answer: is missing, but the score is not 0; give both"):
        read_log(write_log(tmp_path / "log.jsonl", [line]))


def test_a_gzip_file_reads_the_same(tmp_path: Path) -> None:
    plain = write_log(tmp_path / "log.jsonl", [closed(1, {"a": 0}), closed(2, {"a": 1})])
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    steps: list[int] = []
    assert read_log(packed, advance=steps.append) == read_log(plain)
    assert sum(steps) == 2


def test_a_mark_at_the_start_and_ends_of_lines_as_windows_writes_them_are_read(tmp_path: Path) -> None:
    plain = write_log(tmp_path / "log.jsonl", [closed(1, {"a": 0}), closed(2, {"a": 1})])
    windows = tmp_path / "windows.jsonl"
    windows.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n"))
    assert read_log(windows) == read_log(plain)


def test_probabilities_that_were_rounded_add_up_to_1(tmp_path: Path) -> None:
    """To two digits at least. What is further below 1 stays: the rest of the mass is on no choice."""
    given = {"a": [1.0004, 0.0003, 0.0], "b": [0.333, 0.333, 0.333], "c": [0.5, 0.25, 0.0], "d": [0.67, 0.17, 0.17]}
    line = closed(1, {}) | {"outputs": {name: output(0, probabilities=masses) for name, masses in given.items()}}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [line]))
    found = {name: one.probabilities for name, one in query.outputs.items()}
    assert found["a"] == pytest.approx((1.0004 / 1.0007, 0.0003 / 1.0007, 0.0))
    assert found["b"] == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert found["c"] == (0.5, 0.25, 0.0)
    assert found["d"] == pytest.approx((0.67 / 1.01, 0.17 / 1.01, 0.17 / 1.01))


def _with(field: str, value: Any) -> Line:
    return closed(7, {"a": 0}) | {field: value}


def _answering(**fields: Any) -> Line:
    return closed(7, {}) | {"outputs": {"a": output(0) | fields}}


_UNLABELLED = {"id": "7", "outputs": {"a": output("x")}}
_UNPRICED = {"id": "7", "label": "x", "outputs": {"a": {"answer": "x", "cost": 0.1}}}
_NO_TOKENS = {"id": "7", "label": "x", "outputs": {"a": {"answer": "x", "completion_tokens": 1}}}
_SILENT = {"id": "7", "label": "x", "outputs": {"a": {"prompt_tokens": 1, "completion_tokens": 1}}}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"id": NaN, "outputs": {}}', "id: required"),
        ('{"id": -Infinity}', "-Infinity is not a JSON number; give null"),
        ('{"id": "7", "id": "8", "outputs": {}}', "id"),
        (_with("id", None), "id"),
        (_with("id", True), "id"),
        (_with("id", ""), "id: required"),
        (_with("id", "q1"), "id"),
        (_with("task", [1]), "task"),
        (_with("prompt", 1), "prompt"),
        (_with("messages", []), "messages"),
        ({"id": "7", "question": "?", "outputs": {}}, "question: unknown field; did you mean 'prompt'?"),
        ({"id": "7", "promt": "?", "outputs": {}}, "promt: unknown field; did you mean 'prompt'?"),
        ({"id": "7", "message": [], "outputs": {}}, "message: unknown field; did you mean 'messages'?"),
        ({"id": "7", "messages": [{"role": "user", "content": 7}], "outputs": {}}, "messages"),
        ({"id": "7", "messages": [{"role": 7, "content": "x"}], "outputs": {}}, "messages"),
        (_with("choices", ["A"]), "choices"),
        (_with("choices", "AB"), "choices"),
        (_with("label", 3), "label"),
        (_with("label", 1.5), "label"),
        (_with("label", -1), "label"),
        (_with("label", "A"), "label"),
        (_with("label", True), "label"),
        (_with("outputs", None), "outputs: give an object, endpoint name -> output"),
        ({"sample_id": 1, "gpt-4": 1.0}, "as docs/evaluating.md shows; the line has sample_id, gpt-4"),
        (_UNLABELLED | {"answer": "x"}, "answer: unknown field; did you mean 'label'?"),
        (_UNPRICED, "outputs.a.cost: unknown field; did you mean 'cost_usd'?"),
        (_with("outputs", {"a": 1}), "outputs.a"),
        (_answering(answer=3), "outputs.a.answer"),
        (_answering(answer="A"), "outputs.a.answer"),
        (_answering(probabilities=[0.5, 0.5]), "outputs.a.probabilities"),
        (_answering(probabilities=[0.9, 0.9, 0]), "outputs.a.probabilities"),
        (_answering(probabilities=[0.34, 0.34, 0.34]), "outputs.a.probabilities"),
        (_answering(probabilities=[-0.1, 0.5, 0.5]), "outputs.a.probabilities"),
        (_answering(score=1.5), "outputs.a.score"),
        (_answering(prompt_tokens=-1), "outputs.a.prompt_tokens"),
        (_answering(prompt_tokens=10**30), "outputs.a.prompt_tokens"),
        (_answering(cost_usd=1e300), "outputs.a.cost_usd"),
        (_answering(latency_s=1e300), "outputs.a.latency_s"),
        (_answering(completion_tokens=1.5), "outputs.a.completion_tokens"),
        (_answering(cost_usd=-1), "outputs.a.cost_usd"),
        (_answering(latency_s="fast"), "outputs.a.latency_s"),
        (_answering(error=5), "outputs.a.error"),
        (_answering(prompt_tokens=""), "outputs.a.prompt_tokens: is missing; give it, or cost_usd"),
        (_UNLABELLED, "outputs.a.score: is missing, and the query has no label; give one of them, or leave such lines"),
        (_NO_TOKENS, "outputs.a.prompt_tokens"),
        (_SILENT, "outputs.a.answer"),
    ],
    ids=str,
)
def test_a_breach_names_file_line_and_field(tmp_path: Path, line: Line | str, field: str) -> None:
    """And nothing is read, the good lines around it neither; unless bad rows are to be left out."""
    log = write_log(tmp_path / "log.jsonl", [closed(1, {"a": 0}), line, closed(2, {"a": 0})])
    with pytest.raises(ConfigError) as caught:
        read_log(log)
    assert str(caught.value).startswith(f"{log}:2: ")
    assert field in str(caught.value)
    assert "Input should" not in str(caught.value)  # pydantic's words, which speak of the code
    bad_rows: list[str] = []
    assert [query.line for query in read_log(log, bad_rows=bad_rows)] == [1, 3]
    assert bad_rows == [str(caught.value)]


def test_what_pandas_and_other_tools_write_is_read(tmp_path: Path) -> None:
    """Numbers as names, 36.0 for 36, NaN and empty texts for what is missing, blank lines: all were refused.

    Except an empty error, with which every call counted as failed.
    """
    given = output(1.0, prompt_tokens=36.0, latency_s=math.nan, error="", probabilities=[0.0, 1.0])
    line = {"id": 7, "task": 3, "prompt": "?", "choices": [32, 4.5], "label": 1.0, "outputs": {"a": given, "b": None}}
    free = {"id": 8, "label": "x", "outputs": {"a": output(""), "b": output("x", cost_usd=math.nan)}}
    one, other = read_log(write_log(tmp_path / "log.jsonl", [line, "", free, ""]))
    assert (one.id, one.task, one.choices, one.label) == ("7", "3", ("32", "4.5"), 1)
    assert one.outputs == {"a": Output(1, (0.0, 1.0), prompt_tokens=36, completion_tokens=10)}
    assert (other.line, other.outputs["a"].answer, other.outputs["b"].cost_usd) == (3, "", None)


def test_fields_that_are_not_read_may_say_anything(tmp_path: Path) -> None:
    """A score beside a label, say, or times under another name."""
    extra = {"score": 0.0, "cost": 0.1, "latency": 2.0}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [_answering(answer=7 % 3, **extra)]))
    assert query.outputs["a"].answer == 1


def test_a_text_that_is_null_counts_as_left_out(tmp_path: Path) -> None:
    line: Line = {"id": "7", "prompt": None, "messages": None, "question": None, "outputs": {}}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [line]))
    assert query.messages == ()


def test_a_log_without_text_may_hold_what_is_not_read(tmp_path: Path) -> None:
    line = {"id": "7", "prompt_id": "8a", "prompt_tokens": 4, "outputs": {}}
    (query,) = read_log(write_log(tmp_path / "log.jsonl", [line]))
    assert query.messages == ()


def test_a_log_of_bad_rows_alone_names_the_first(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", ["{", "[]"])
    with pytest.raises(ConfigError, match=r"log\.jsonl:1: not valid JSON"):
        read_log(log, bad_rows=[])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "log.json",
            "[{}]",
            r"log\.json:1: begins a list; give one object per line, as jq",
        ),
        ("log.jsonl", '\n[\n{"id": "7"}]', r"log\.jsonl:2: begins a list"),
        (
            "log.csv",
            "id,prompt\n",
            r"log\.csv: is a table; give JSON with one object per line, as pandas' to_json\(orient='records'",
        ),
        ("log.parquet", "PAR1", r"log\.parquet: is a table; give JSON with one object per line"),
    ],
)
def test_what_tables_and_lists_are_exported_as_is_refused_with_a_remedy(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    """Even where bad rows are skipped: a list of one line is not one bad row."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_log(tmp_path / name, bad_rows=[])


def test_files_that_are_not_a_log_are_refused(tmp_path: Path) -> None:
    empty, latin, torn = tmp_path / "empty.jsonl", tmp_path / "latin.jsonl", tmp_path / "torn.jsonl.gz"
    empty.touch()
    latin.write_bytes(b'{"id": "1", "outputs": {}}\n{"id": "\xe9"}\n')
    lines = "".join(json.dumps(closed(n, {"a": n % 3})) + "\n" for n in range(2000))
    torn.write_bytes(gzip.compress(lines.encode())[:-200])
    none = tmp_path / "none"
    for path, why in ((empty, "no query"), (latin, "2: is not UTF-8"), (torn, "damaged"), (none, "cannot be read")):
        with pytest.raises(ConfigError, match=why):
            read_log(path)
