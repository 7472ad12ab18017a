"""``focalroute batch``, and the options of ``ask``, as a person calls them."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from focalroute.cli.app import main
from focalroute.cli.batch import _Answers
from tests.interruptible import heed_interrupts
from tests.loopback import completion, json_reply, serving

QUESTIONS: list[Any] = ["What is 17 + 25?", {"query": "What is 6 * 7?", "choices": ["42", "43"]}, "What is 2 + 2?"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the questions."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["focalroute", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    return code if isinstance(code, int) else int(bool(code))


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_question_has_its_line_and_a_run_goes_on_where_it_stopped(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that died, half a line and one that failed are asked again; the others are not."""
    batch = ("batch", "in.jsonl", "out.jsonl", "--pool", pool_file, "--json")
    assert run(monkeypatch, *batch) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["before"], told["asked"], told["failed"]) == (0, 3, 0)
    out = folder / "out.jsonl"
    rows = sorted(answers(out), key=lambda row: row["index"])
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert rows[1]["text"] in ("42", "43")
    assert float(told["usd"]) == pytest.approx(sum(float(row["cost"]) for row in rows))
    failed = {"index": 2, "question": rows[2]["question"], "error": "PoolError: ..."}
    out.write_text(f'{json.dumps(rows[0])}\n{json.dumps(failed)}\n{{"index": 1, "que')
    assert run(monkeypatch, *batch) == 2
    assert "--resume" in capsys.readouterr().err
    assert run(monkeypatch, *batch, "--resume") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["before"], told["asked"]) == (1, 2)
    again = sorted(answers(out), key=lambda row: row["index"])
    assert [row["id"] == rows[row["index"]]["id"] for row in again] == [True, False, False]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGINT")
def test_a_run_without_questions_left_says_how_many_answers_are_there(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "0 answered" of a file with all answers."""
    command = ("batch", "questions.jsonl", "answers.jsonl", "--pool", str(pool_file))
    (folder / "questions.jsonl").write_text(json.dumps("What is 17 + 25?") + "\n")
    assert run(monkeypatch, *command) == run(monkeypatch, *command, "--resume") == 0
    assert capsys.readouterr().out.endswith("answers.jsonl (1 from before)\n")


@pytest.mark.parametrize("command", ["batch in.jsonl out.jsonl", "collect labelled.jsonl --out out.jsonl"])
def test_an_interrupt_says_how_to_go_on(folder: Path, command: str) -> None:
    (folder / "labelled.jsonl").write_text('{"query": "What is 17 + 25?", "choices": ["32", "42"], "label": "42"}')

    async def hanging(*_: Any) -> web.StreamResponse:
        await asyncio.sleep(120)
        return json_reply({})

    with serving(hanging) as server:
        (folder / "pool.toml").write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\nbase_url = "{server.url}"')
        words = [sys.executable, "-m", "focalroute", *command.split()]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts)
        assert server.arrived.wait(30)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said


def test_more_questions_at_a_time_than_can_be_started_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text('"What is 17 + 25?"\n')
    assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--concurrency", 10**9) == 2
    assert "concurrency: give a whole number from 1 to 10000" in capsys.readouterr().err


def test_the_whole_file_costs_no_more_than_it_may(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text('"What is 17 + 25?"\n' * 200)
    batch = ("batch", "in.jsonl", "out.jsonl", "--pool", pool_file, "--max-usd", "0.0002", "--concurrency", 2)
    assert run(monkeypatch, *batch) == 1
    rows = answers(folder / "out.jsonl")
    assert len(rows) == 200
    assert 0 < sum(float(row.get("cost", 0)) for row in rows) <= 0.0002
    assert {row["error"].split(":")[0] for row in rows if "error" in row} == {"BudgetExceeded"}
    assert "what is left of max_usd = 0.0002 USD" in capsys.readouterr().out


def test_the_cost_of_failed_asks_counts_towards_the_file_in_later_runs_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were paid for, and the sum and --max-usd knew nothing of it."""
    replies = ["neither", "neither", "42"]

    async def says(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion(replies.pop(0)))

    (folder / "in.jsonl").write_text('{"query": "What is 6 * 7?", "answer": "number"}\n')
    with serving(says) as service:
        (folder / "pool.toml").write_text(
            f'[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "{service.url}"\n'
            "input_usd_per_1m = 1\noutput_usd_per_1m = 1\n[ensemble]\nattempts = 1\n"
        )
        batch = ("batch", "in.jsonl", "out.jsonl", "--json")
        sums = []
        for options in ((), ("--resume",), ("--resume",)):
            run(monkeypatch, *batch, *options)
            sums.append(Decimal(json.loads(capsys.readouterr().out)["usd"]))
            before = (folder / "out.jsonl").read_text("utf-8")
            if "error" in before:  # a run that asks nothing, as it may not or is stopped, takes nothing away
                assert run(monkeypatch, *batch, "--resume", "--max-usd", "0.000001") == 2
                assert "has already cost" in capsys.readouterr().err
                assert (folder / "out.jsonl").read_text("utf-8") == before
    (row,) = answers(folder / "out.jsonl")
    once = Decimal("0.000011")
    assert sums == [once, 2 * once, 3 * once]
    assert (Decimal(row["failed_usd"]), Decimal(row["cost"])) == (2 * once, once)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("What is 17 + 25?", "in.jsonl:2: is not JSON"),
        ('{"prompt": "What?"}', "in.jsonl:2: query: required"),
        ('{"query": "What?", "choice": ["a"]}', "in.jsonl:2: choice: unknown key"),
        ('{"query": "What?", "tags": "team-a"}', "in.jsonl:2: tags: give a list"),
        ('{"query": "What?", "params": {"seed": 1e999}}', "in.jsonl:2: params: "),
        ("[" * 100_000, "in.jsonl:2: is not JSON"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_paid(
    pool_file: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    says: str,
) -> None:
    (folder / "in.jsonl").write_text(f'"What is 17 + 25?"\n{line}\n')
    assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--pool", pool_file) == 2
    assert says in capsys.readouterr().err
    assert not (folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"\n", "in.jsonl: holds no question"), ('"caf\xe9?"'.encode("latin-1"), "in.jsonl:1: is not UTF-8 text")],
)
def test_a_file_without_readable_questions_is_refused(
    pool_file: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    why: str,
) -> None:
    """An empty file had 0 answers and exit code 0; another encoding was not JSON."""
    (folder / "in.jsonl").write_bytes(content)
    assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--pool", pool_file) == 2
    assert why in capsys.readouterr().err


def test_questions_are_read_from_gzip_and_after_a_byte_order_mark(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + (folder / "in.jsonl").read_bytes()))
    assert run(monkeypatch, "batch", "in.jsonl.gz", "out.jsonl", "--pool", pool_file) == 0
    assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--pool", pool_file, "--resume", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["before"] == 3


def test_answers_to_other_questions_are_left_alone(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = hashlib.sha256(json.dumps(QUESTIONS[0]).encode()).hexdigest()[:16]
    for text, says in (
        ('{"index": 0, "question": "0", "cost": null}\n', "another file"),
        (f'{{"index": 7, "question": "{digest}", "cost": null}}\n', "another file"),
        ("notes\n", "not a file of answers"),
        (f'{{"index": 0, "question": "{digest}"}}\n', "not a file of answers"),
        (f'{{"index": "0", "question": "{digest}", "cost": "1"}}\n', "not a file of answers"),
        (f'{{"index": 0, "question": "{digest}", "cost": "-9"}}\n', "not a file of answers"),
        (f'{{"index": 0, "question": "{digest}", "cost": "NaN"}}\n', "not a file of answers"),
        (f'{{"index": 0, "question": "{digest}", "cost": "1e999999999"}}\n', "not a file of answers"),
        ("[" * 100_000 + "\n", "not a file of answers"),
    ):
        (folder / "out.jsonl").write_text(text)
        assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--pool", pool_file, "--resume") == 2
        assert says in capsys.readouterr().err
        assert (folder / "out.jsonl").read_text() == text


WRONG = [("--pool", "no.toml"), ("--max-usd", "much"), ("--policy", "none"), ("--store", ".")]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_command_that_was_wrong_can_be_given_again(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[str, str]
) -> None:
    assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--pool", pool_file, *wrong) != 0
    assert [path.name for path in folder.iterdir()] == ["in.jsonl"]


def test_something_else_than_a_file_is_named_and_left_alone(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    for out, *more in ((".",), ("pipe", "--resume")):
        assert run(monkeypatch, "batch", "in.jsonl", out, "--pool", pool_file, *more) == 2
        assert f"{out}: is not a file; give another name" in capsys.readouterr().err
    assert (folder / "pipe").is_fifo()


def test_a_second_run_does_not_take_the_file_from_the_first(
    pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = ("batch", "in.jsonl", "out.jsonl", "--pool", pool_file, "--resume")
    with _Answers(folder / "out.jsonl", [], resume=False):
        assert run(monkeypatch, *batch) == 2
        assert "out.jsonl: another process is writing it; wait until it ends" in capsys.readouterr().err
    assert run(monkeypatch, *batch) == 0


def test_a_neighbouring_file_is_left_alone(pool_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "out.jsonl.part").write_text("mine")
    assert run(monkeypatch, "batch", "in.jsonl", "out.jsonl", "--pool", pool_file) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "out.jsonl", "out.jsonl.part"]
    assert (folder / "out.jsonl.part").read_text() == "mine"


def test_ask_takes_a_system_message_and_parameters_and_shows_each_members_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def handler(_: Any, __: Any) -> Any:
        return json_reply(completion("forty\ntwo"))

    with serving(handler) as server:
        pool = tmp_path / "pool.toml"
        pool.write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\nbase_url = "{server.url}"\n')
        asked = ("ask", "What?", "--pool", pool, "--system", "Be short.", "-v")
        assert run(monkeypatch, *asked, "--param", "temperature=0", "--param", "user=me") == 0
        sent = server.received[-1].body
    assert sent["messages"][0] == {"role": "system", "content": "Be short."}
    assert (sent["temperature"], sent["user"]) == (0, "me")
    assert "round 1: e: forty two, unknown" in capsys.readouterr().err
    assert run(monkeypatch, *asked, "--param", "temperature") == 2
    assert "give NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["batch", pytest.param("collect", marks=pytest.mark.slow)])
def test_a_full_disk_is_an_error_that_names_the_file(pool_file: Path, folder: Path, command: str) -> None:
    """No file may grow, which fails as a full disk does."""
    code = (
        "import resource, sys\n"
        "from focalroute.cli.app import main\n"
        f"sys.argv = ['focalroute', *{_written(command, pool_file)!r}]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "main()\n"
    )
    row = {"id": "a", "prompt": "What is 17 + 25?", "choices": ["32", "42"], "label": 1}
    (folder / "set.jsonl").write_text(json.dumps(row))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "File too large: 'out.jsonl'" in done.stderr.splitlines()[-1]


def _written(command: str, pool_file: Path) -> list[str]:
    files = {"batch": ["in.jsonl", "out.jsonl"], "collect": ["set.jsonl", "--out", "out.jsonl"]}[command]
    return [command, *files, "--pool", str(pool_file)]
