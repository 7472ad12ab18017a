"""Collecting an outcome log: datasets read, every endpoint asked over HTTP, nothing paid twice or lost."""

from __future__ import annotations

import csv
import gzip
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from focalroute import ConfigError, Endpoint
from focalroute.answers import AnswerKind
from focalroute.core.pool import load_pool
from focalroute.evaluate.collect import LogFile, collect
from focalroute.evaluate.dataset import LabelledQuestion, read_dataset
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import join
from focalroute.sim import Fault, SimulatedPool, stream
from focalroute.sim.process import pool_toml
from tests.cli.calling import focalroute
from tests.evaluate.logs import billed, paid_for
from tests.loopback import Server, completion, json_reply, serving

ROWS: list[dict[str, Any]] = [
    {"id": q.id, "prompt": q.text, "choices": list(q.choices), "label": q.label, "task": q.topic} for q in stream(40)
]


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    with SimulatedPool() as pool:
        yield pool


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return written(tmp_path / "questions.jsonl", ROWS)


# -- datasets --------------------------------------------------------------------------------------------------------


def test_a_dataset_is_the_same_from_jsonl_gzip_and_csv(tmp_path: Path) -> None:
    words = [row for row in ROWS if not any(choice.isdecimal() for choice in row["choices"])]
    dataset = written(tmp_path / "questions.jsonl", words)
    zipped, table = tmp_path / "questions.jsonl.gz", tmp_path / "questions.csv"
    zipped.write_bytes(gzip.compress(dataset.read_bytes()))
    with table.open("w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets do
        writer = csv.DictWriter(file, list(ROWS[0]))
        writer.writeheader()
        writer.writerows({**row, "choices": json.dumps(row["choices"])} for row in words)
    read = read_dataset(dataset)
    assert read == read_dataset(zipped) == read_dataset(table)
    assert [one.label for one in read] == [row["label"] for row in words]


def test_a_long_text_in_a_table_is_read(tmp_path: Path) -> None:
    """Cells of more than 131,072 characters were said to be damaged."""
    before, text = csv.field_size_limit(), "word " * 40_000 + "?"
    (tmp_path / "long.csv").write_text(f'prompt,label\n"{text}",x\n')
    (question,) = read_dataset(tmp_path / "long.csv")
    assert (question.prompt, csv.field_size_limit()) == (text, before)


def test_messages_in_a_table_are_json(tmp_path: Path) -> None:
    """The JSON was asked as the text of one message."""
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"})
    with (tmp_path / "messages.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("messages", "label"), (json.dumps(messages), "x")])
    (question,) = read_dataset(tmp_path / "messages.csv")
    assert question.messages == messages


@pytest.mark.parametrize(
    ("row", "label"),
    [
        ({"question": "?", "choices": ["red", "blue"], "answer": "blue"}, 1),
        ({"question": "?", "choices": ["red", "blue"], "answer": 1}, 1),
        ({"question": "?", "choices": ["1", "3"], "answer": 1}, 1),  # a number is an index, a text a choice
        ({"question": "?", "choices": ["1", "3"], "answer": "1"}, 0),
        ({"question": "?", "choices": ["red", "blue"], "answer": "1"}, 1),
        ({"question": "?", "choices": ["red", "blue"], "answer": 1.0}, 1),  # as pandas writes it
        ({"question": "?", "choices": ["red", "blue"], "answer": "1.0"}, 1),
        ({"question": "?", "choices": {"text": ["red", "blue"], "label": ["A", "B"]}, "answerKey": "B"}, 1),
        ({"question": "?", "options": ["red", "blue"], "answer": "B"}, 1),  # as MMLU-Pro has it
        ({"question": "?", "options": ["B", "A"], "answer": "B"}, 0),
        ({"question": "?", "options": {"A": "red", "B": "blue"}, "answer": "B"}, 1),  # as MedQA has it
        ({"question": "?", "answer": "about 1,000"}, "1000"),
    ],
)
def test_labels_as_datasets_have_them(tmp_path: Path, row: Mapping[str, Any], label: int | str) -> None:
    (question,) = read_dataset(written(tmp_path / "one.jsonl", [row]), kind="number")
    assert question.label == label
    assert question.messages == ({"role": "user", "content": "?"},)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"answer": "x"}, "prompt, messages"),
        ({"prompt": "?"}, "label: is missing"),
        ({"prompt": 7, "label": "x"}, "prompt: give a text"),
        ({"prompt": "?", "choices": ["a", "b"], "label": 2}, "nor an index into them, from 0"),
        ({"prompt": "?", "choices": ["a", "b"], "label": "C"}, "label: 'C'"),
        ({"prompt": "?", "choices": ["a", "b"], "label": True}, "label: 'True'"),
        ({"prompt": "?", "choices": ["a", "b"], "label": 0.5}, "label: '0.5'"),
        ({"prompt": "?", "choices": ["a", "b"], "label": "1" * 5000}, "label: '1111"),
        ({"prompt": "?", "choices": "red, blue", "label": 0}, "choices: give a list"),
        ({"prompt": "?", "options": {"choices": ["red", "blue"]}, "label": "B"}, "choices: give a list"),
        ({"messages": "?", "label": "x"}, "messages: give a list, in CSV as JSON"),
        ({"prompt": "?", "choices": ["red", "red"], "label": 0}, "choices: must be distinct"),
        ({"prompt": "?", "choices": ["red"], "label": 0}, "choices: a closed question needs at least 2"),
        ({"prompt": " ", "label": "x"}, "query: is empty"),
        ({"messages": 7, "label": "x"}, "query: give"),
        ({"prompt": "?", "label": ["Paris", "paris"]}, "label: give one text or number"),
        ({"prompt": "?", "label": {"text": ["Paris"]}}, "label: give one text or number"),
        ({"prompt": "?", "label": math.nan}, "label: is missing"),
        (
            {"prompt": math.nan, "label": "x"},
            "prompt, messages: give one; the filled columns are label, and collect --",
        ),
        ([1], "is not an object"),
    ],
)
def test_a_row_that_is_wrong_is_named(tmp_path: Path, row: Any, says: str) -> None:
    good = {"prompt": "?", "label": "x"}
    with pytest.raises(ConfigError, match=r"wrong\.jsonl:2: ") as error:
        read_dataset(written(tmp_path / "wrong.jsonl", [good, row]))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("missing.jsonl", "cannot be read"),
        ("data.parquet", "give a .jsonl file (an object a line), a .csv file"),
        ("list.jsonl", "list.jsonl:1: begins a list"),
        ("empty.jsonl", "holds no question"),
        ("torn.jsonl", "torn.jsonl:1: is not JSON"),
        ("wide.csv", "more cells"),
        ("merged.csv", "more than one column is called 'label'"),
        ("unclear.csv", "one choice and the index of another"),
        ("twice.jsonl", "not unique"),
    ],
)
def test_a_dataset_that_cannot_be_read_is_named(tmp_path: Path, source: str, says: str) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "list.jsonl").write_text("[]")
    (tmp_path / "torn.jsonl").write_text('{"prompt": ')
    (tmp_path / "wide.csv").write_text("prompt,label\n?,x,y\n")
    (tmp_path / "merged.csv").write_text(",prompt,label,label,\n0,?,x,y,\n")
    (tmp_path / "unclear.csv").write_text('prompt,choices,label\n?,"[""1"", ""3""]",1\n')
    written(tmp_path / "twice.jsonl", [{"id": 1, "prompt": "?", "label": "x"}] * 2)
    with pytest.raises(ConfigError, match=source.replace(".", r"\.")) as error:
        read_dataset(tmp_path / source)
    assert says in str(error.value)


def test_columns_of_other_names_and_fields_that_do_not_exist(tmp_path: Path) -> None:
    path = written(tmp_path / "other.jsonl", [{"q": "?", "gold": "x", "prompt": "not this"}])
    (question,) = read_dataset(path, columns={"prompt": "q", "label": "gold"})
    assert (question.prompt, question.label) == ("?", "x")
    with pytest.raises(ConfigError, match="unknown field 'labels'"):
        read_dataset(path, columns={"labels": "gold"})


def test_an_unknown_kind_is_an_error_where_every_question_has_choices_too(dataset: Path) -> None:
    with pytest.raises(ConfigError, match="answer: unknown kind 'numbr'"):
        read_dataset(dataset, kind=cast("AnswerKind", "numbr"))


def test_a_hugging_face_dataset_without_the_package_says_what_to_install() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="pip install datasets"):
            read_dataset("hf:cais/mmlu:all:test")
    else:
        pytest.skip("the package datasets is installed")


# -- collecting ------------------------------------------------------------------------------------------------------


def test_a_log_that_was_collected_can_be_evaluated(tmp_path: Path, pool: SimulatedPool, dataset: Path) -> None:
    """Lines in the dataset's order though answers come in any, costs and tokens as the service said."""
    out = tmp_path / "log.jsonl"
    before = billed(pool)
    collected = collect(pool.endpoints, read_dataset(dataset), out)
    queries = read_log(out)
    assert [query.id for query in queries] == [row["id"] for row in ROWS]
    assert all(len(query.outputs) == len(pool.endpoints) for query in queries)
    outputs = [output for query in queries for output in query.outputs.values()]
    assert all(output.probabilities for output in outputs)
    assert collected.usd == billed(pool) - before > paid_for(out)
    pool_file = tmp_path / "pool.toml"
    pool_file.write_text(pool_toml(pool.endpoints))
    table = join(queries, load_pool(pool_file), out)
    right = table.value.sum(axis=0)
    assert [collected.right[name] for name in table.names] == right.tolist()
    assert collected.answered.total() == 40 * len(pool.endpoints)


def test_a_run_that_ended_early_is_resumed_without_asking_twice(
    tmp_path: Path, pool: SimulatedPool, dataset: Path
) -> None:
    questions, out = read_dataset(dataset), tmp_path / "log.jsonl"
    collect(pool.endpoints, questions[:15], out)
    before = {name: stats.calls for name, stats in pool.stats().items()}
    with out.open("ab") as file:
        file.write(b'{"id": "half a li')
    collected = collect(pool.endpoints, questions, out, resume=True)
    asked = {name: stats.calls - before[name] for name, stats in pool.stats().items()}
    assert (collected.before, collected.asked) == (15, 25)
    assert all(25 <= calls <= 25 + 7 for calls in asked.values())  # what it can do is probed anew
    assert [query.id for query in read_log(out)] == [row["id"] for row in ROWS]


def test_an_endpoint_that_is_new_in_the_pool_is_asked_what_the_others_were(
    tmp_path: Path, pool: SimulatedPool, dataset: Path
) -> None:
    questions, out = read_dataset(dataset), tmp_path / "log.jsonl"
    collect(pool.endpoints[:2], questions[:15], out)
    there, paid = read_log(out), paid_for(out)
    before = {name: stats.calls for name, stats in pool.stats().items()}
    limited = collect(pool.endpoints[:3], questions[:15], out, resume=True, max_usd=paid)
    assert (limited.before, limited.asked, limited.stopped) == (
        0,
        0,
        "the budget leaves too little for another question",
    )
    output = {"answer": 0, "prompt_tokens": 36, "completion_tokens": 1}
    with out.open("ab") as file:  # as a process that died leaves it
        line = json.loads(out.read_text().splitlines()[0])
        file.write(json.dumps({**line, "outputs": {pool.endpoints[2].name: output}}).encode() + b"\n")
    collected = collect(pool.endpoints[:3], questions, out, resume=True)
    asked = {name: stats.calls - before[name] for name, stats in pool.stats().items()}
    assert (collected.before, collected.asked) == (1, 39)
    names = [endpoint.name for endpoint in pool.endpoints]
    assert all(25 <= asked[name] <= 25 + 7 for name in names[:2])  # what it can do is probed anew
    assert 39 <= asked[names[2]] <= 39 + 7
    log = read_log(out)
    assert [query.id for query in log] == [row["id"] for row in ROWS]
    assert all(list(query.outputs) == names[:3] for query in log)
    assert all(
        new.outputs[name] == old.outputs[name] for new, old in zip(log, there, strict=False) for name in names[:2]
    )


def test_a_log_of_something_else_is_left_alone(tmp_path: Path, pool: SimulatedPool, dataset: Path) -> None:
    questions, out = read_dataset(dataset), tmp_path / "log.jsonl"
    collect(pool.endpoints[:1], questions[:2], out)
    there = out.read_bytes()
    with pytest.raises(ConfigError, match="already exists"):
        collect(pool.endpoints, questions, out)
    with pytest.raises(ConfigError, match="not in the dataset"):
        collect(pool.endpoints, questions[5:], out, resume=True)
    with pytest.raises(ConfigError, match=r"log\.jsonl:1: id: '[^']+' has another question, choices or label"):
        collect(pool.endpoints, [replace(questions[5], id=questions[0].id), questions[1]], out, resume=True)
    with pytest.raises(ConfigError, match="name that ends in"):
        collect(pool.endpoints, questions, tmp_path / "log.txt")
    with pytest.raises(ConfigError, match="cannot be written"):
        collect(pool.endpoints, questions, tmp_path / "no" / "log.jsonl")
    assert out.read_bytes() == there


def test_a_second_process_does_not_write_into_a_log_that_is_under_way(
    tmp_path: Path, pool: SimulatedPool, dataset: Path
) -> None:
    log, questions = tmp_path / "log.jsonl", read_dataset(dataset)
    with (
        closing(LogFile(log, questions, [], resume=False, advance=lambda _: None)),
        pytest.raises(ConfigError, match=r"log\.jsonl: another process is writing it; wait until it ends"),
    ):
        collect(pool.endpoints, questions, log, resume=True)
    assert collect(pool.endpoints, questions[:2], log, resume=True).asked == 2


def test_the_budget_holds_over_all_resumptions(tmp_path: Path, pool: SimulatedPool, dataset: Path) -> None:
    questions, out = read_dataset(dataset), tmp_path / "log.jsonl"
    whole = collect(pool.endpoints, questions, tmp_path / "whole.jsonl").usd
    cap = whole / 2
    first = collect(pool.endpoints, questions, out, max_usd=cap, concurrency=4)
    assert first.stopped is not None
    assert 0 < first.asked < 40
    assert len(read_log(out)) == first.asked
    second = collect(pool.endpoints, questions, out, max_usd=cap, resume=True)
    assert max(first.usd, second.usd, paid_for(out)) <= cap
    third = collect(pool.endpoints, questions, out, max_usd="1e23", resume=True)  # as good as no budget
    assert third.stopped is None
    assert len(read_log(out)) == 40


def test_a_whole_log_needs_no_budget(tmp_path: Path, pool: SimulatedPool, dataset: Path) -> None:
    """It is not said to have stopped early, although its answers cost more than is allowed now."""
    questions, out = read_dataset(dataset)[:3], tmp_path / "log.jsonl"
    assert collect(pool.endpoints, questions, out).usd > 0
    whole = collect(pool.endpoints, questions, out, max_usd="1e-9", resume=True)
    assert (whole.stopped, whole.before, whole.usd) == (None, 3, Decimal(0))


def test_free_form_answers_are_written_in_normal_form(tmp_path: Path, pool: SimulatedPool) -> None:
    rows = [{"prompt": q.text, "label": q.answer} for q in stream(10, topics=["arithmetic"])]
    questions = read_dataset(written(tmp_path / "free.jsonl", rows), kind="number")
    collected = collect(pool.endpoints, questions, tmp_path / "log.jsonl", kind="number")
    queries = read_log(tmp_path / "log.jsonl")
    right = sum(out.answer == query.label for query in queries for out in query.outputs.values())
    assert right == collected.right.total() > 0
    assert {type(out.answer) for query in queries for out in query.outputs.values()} <= {str, type(None)}


def _endpoints(server: Server, *names: str) -> list[Endpoint]:
    return [Endpoint(name, base_url=server.url, model=name) for name in names]


def _question(number: int) -> LabelledQuestion:
    return LabelledQuestion(str(number), ({"role": "user", "content": f"{number}?"},), f"{number}?", None, "42", None)


def test_a_failed_call_and_a_reply_without_an_answer_are_told_apart(tmp_path: Path) -> None:
    async def handler(_: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] == "broken":
            return web.json_response({"error": {"message": "no"}}, status=400)
        return json_reply(completion("42" if body["model"] == "good" else "I cannot say."))

    with serving(handler) as server:
        endpoints = _endpoints(server, "good", "vague", "broken")
        collected = collect(endpoints, [_question(0)], tmp_path / "log.jsonl", kind="number")
    outputs = read_log(tmp_path / "log.jsonl")[0].outputs
    assert (outputs["good"].answer, outputs["vague"].answer, outputs["vague"].error) == ("42", None, None)
    assert outputs["broken"].error is not None
    assert outputs["broken"].error.startswith("status: ")
    assert (dict(collected.answered), dict(collected.failed)) == ({"good": 1, "vague": 1}, {"broken": 1})
    assert collected.right["good"] == 1
    assert collected.right["vague"] == 0


def test_more_questions_at_a_time_than_can_be_started_are_refused(tmp_path: Path) -> None:
    """Their coroutines took all memory before any question was asked."""
    nowhere = Endpoint("a", model="m", base_url="http://127.0.0.1:9/v1")
    for concurrency in (0, 10**9):
        with pytest.raises(ConfigError, match="concurrency: give a whole number from 1 to 10000"):
            collect([nowhere], [_question(0)], tmp_path / "log.jsonl", concurrency=concurrency)


def test_where_every_call_fails_it_does_not_go_on(tmp_path: Path) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return web.json_response({"error": {"message": "who are you?"}}, status=401)

    with serving(handler) as server:
        questions = [_question(number) for number in range(100)]
        endpoints = _endpoints(server, "a", "b")
        collected = collect(endpoints, questions, tmp_path / "log.jsonl", concurrency=1)
    assert collected.asked == 10
    assert "every call of 10 questions in a row failed" in (collected.stopped or "")
    assert collected.usd == Decimal(0)
    assert all("who are you?" in collected.error[name] for name in "ab")


@pytest.mark.parametrize(("down", "asked"), [(2, 10), (1, 12)])
def test_questions_that_failed_in_an_outage_are_asked_again(
    tmp_path: Path, pool: SimulatedPool, dataset: Path, down: int, asked: int
) -> None:
    """All of it stayed in the log as failed; where one endpoint was down, a new log had to be paid for."""
    questions, out = read_dataset(dataset)[:12], tmp_path / "log.jsonl"
    for endpoint in pool.endpoints[:down]:
        pool.set(endpoint.name, faults=Fault("status", status=401))
    assert collect(pool.endpoints[:2], questions, out, concurrency=1).asked == asked
    pool.reset()
    collected = collect(pool.endpoints[:2], questions, out, resume=True)
    assert (collected.before, collected.asked, collected.stopped) == (0, 12, None)
    assert collected.answered.total() == 12 * down
    assert all(output.error is None for query in read_log(out) for output in query.outputs.values())
    assert collect(pool.endpoints[:2], questions, out, resume=True).before == 12


def test_a_log_without_a_line_is_removed_and_unknown_costs_are_named(
    tmp_path: Path, pool: SimulatedPool, dataset: Path
) -> None:
    """The next run, with prices, was refused as the empty log was there; and a run without prices "cost $0"."""
    unpriced = [replace(one, input_usd_per_1m=None, output_usd_per_1m=None) for one in pool.endpoints[:1]]
    questions, out = read_dataset(dataset)[:2], tmp_path / "log.jsonl"
    with pytest.raises(ConfigError, match="cannot be kept while the price"):
        collect(unpriced, questions, out, max_usd=5)
    assert not out.exists()
    assert collect([*unpriced, *pool.endpoints[1:2]], questions, out).unpriced == {unpriced[0].name}


# -- the command -----------------------------------------------------------------------------------------------------


def test_collect_from_the_command_line(tmp_path: Path, pool: SimulatedPool, dataset: Path) -> None:
    pool_file, out = tmp_path / "pool.toml", tmp_path / "log.jsonl"
    pool_file.write_text(pool_toml(pool.endpoints))
    common = ("collect", str(dataset), "--pool", str(pool_file), "--out", str(out))
    short = focalroute(*common, "--limit", "5")
    assert short.returncode == 0
    assert "5 questions asked for $" in short.stdout
    again = focalroute(*common, "--limit", "8", "--resume", "--json")
    said = json.loads(again.stdout)
    assert (said["before"], said["asked"], said["stopped"]) == (5, 3, None)
    assert {one["answered"] for one in said["endpoints"]} == {3}
    for arguments, says in (((), "already exists"), (("--resume", "--column", "label"), "FIELD=COLUMN")):
        wrong = focalroute(*common, *arguments)
        assert wrong.returncode == 2
        assert says in wrong.stderr
    spent = focalroute(*common, "--resume", "--max-usd", "0.0000001")
    assert spent.returncode == 1
    assert "stopped: the budget" in spent.stdout


def test_labels_in_another_form_than_answers_are_suspected(tmp_path: Path, pool: SimulatedPool) -> None:
    """GSM8K's are worked solutions: without a kind of answer the whole text is the label."""
    rows = [{"question": f"What is {n} + 1?", "answer": f"We add.\n#### {n + 1}"} for n in range(20)]
    pool_file, data = tmp_path / "pool.toml", written(tmp_path / "gsm8k.jsonl", rows)
    pool_file.write_text(pool_toml(pool.endpoints[:1]))
    common = ("collect", str(data), "--pool", str(pool_file))
    wrong = focalroute(*common, "--out", str(tmp_path / "wrong.jsonl"))
    name = pool.endpoints[0].name
    assert f"Never right: {name}; are answers and labels written in the same form?" in wrong.stdout
    right = focalroute(*common, "--out", str(tmp_path / "right.jsonl"), "--answer", "number")
    assert "Never right" not in right.stdout


def test_a_pool_that_answers_nothing_is_a_failure_that_says_why(tmp_path: Path, dataset: Path) -> None:
    """Too few questions to stop early ended with exit code 0, and without the reason."""
    pool_file = tmp_path / "pool.toml"
    pool_file.write_text('[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n')
    common = ("collect", str(dataset), "--pool", str(pool_file), "--out", str(tmp_path / "log.jsonl"), "--limit", "2")
    failed = focalroute(*common)
    assert failed.returncode == 1
    assert "a: connection: could not reach the service" in failed.stdout
    (endpoint,) = json.loads(focalroute(*common, "--resume", "--json").stdout)["endpoints"]
    assert endpoint["error"].startswith("connection: ")


@pytest.mark.slow
def test_a_killed_process_loses_no_line(tmp_path: Path, pool: SimulatedPool) -> None:
    rows = [{"id": q.id, "prompt": q.text, "choices": list(q.choices), "label": q.label} for q in stream(1000, seed=7)]
    source, pool_file, out = written(tmp_path / "q.jsonl", rows), tmp_path / "pool.toml", tmp_path / "log.jsonl"
    pool_file.write_text(pool_toml(pool.endpoints))
    for model in pool.models:
        pool.set(model.name, latency_s=0.3)  # else it has ended before it is killed
    code = "from focalroute.cli.app import main; main()"
    arguments = ["collect", str(source), "--pool", str(pool_file), "--out", str(out), "--json"]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    while process.poll() is None and (not out.exists() or out.stat().st_size < 20_000):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    pool.reset()
    lines = out.read_bytes().count(b"\n")
    limit = str(lines + 20)
    assert 0 < lines < 900
    resumed = focalroute(*arguments, "--resume", "--limit", limit)
    assert resumed.returncode in (0, 2)  # lines beyond the limit may be there: then they are not of this dataset
    whole = focalroute(*arguments, "--resume", "--limit", str(lines + 60))
    assert whole.returncode == 0, whole.stderr
    assert json.loads(whole.stdout)["before"] >= lines
    assert len({query.id for query in read_log(out)}) == lines + 60
