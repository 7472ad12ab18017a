"""The command line, as a person calls it."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from examples.shipped_policy.training import cold_fusion
from focalroute.cli.app import main
from focalroute.learn.export import decider_model, fusion_model
from focalroute.policy.publish import publish
from focalroute.store.sqlite.store import SqliteStore
from tests.by_hand import linear_decider
from tests.cli.calling import focalroute, focalroute_apart
from tests.evaluate.logs import stream as recorded
from tests.evaluate.logs import write_log, write_pool
from tests.learn.made import linear_learner, play
from tests.loopback import completion, json_reply, serving, sse


def test_ask_prints_the_answer_alone_on_standard_output(pool_file: Path) -> None:
    result = focalroute_apart("ask", "What is 17 + 25?", "--choices", "32, 42, 44", "--pool", str(pool_file))
    assert result.returncode == 0
    assert result.stdout.strip() in ("32", "42", "44")
    assert "confidence" in result.stderr
    assert "$" in result.stderr


def test_a_reply_does_not_steer_the_terminal(tmp_path: Path) -> None:
    """What is no character is shown as such."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("a\tb\n\x1b[2J\x07\u202ec"))

    with serving(handler) as server:
        pool = tmp_path / "pool.toml"
        pool.write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\nbase_url = "{server.url}"\n')
        done = focalroute("ask", "?", "--pool", str(pool))
    assert done.stdout == "a\tb\n\ufffd[2J\ufffd\ufffdc\n"


def test_a_terminal_without_a_replys_characters_shows_the_rest(tmp_path: Path) -> None:
    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply(completion("caf\u00e9 \u2192 42"))

    with serving(handler) as server, contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "latin-1")) as out:
        pool = tmp_path / "pool.toml"
        pool.write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\nbase_url = "{server.url}"\n')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["focalroute", "ask", "?", "--pool", str(pool)])
            with pytest.raises(SystemExit):
                main()
    out.seek(0)
    assert out.read() == "caf\u00e9 ? 42\n"


def test_ask_as_json_holds_the_receipt(pool_file: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    result = focalroute(
        *("ask", "What is 17 + 25?", "--answer", "number", "--samples", "3"),
        *("--pool", str(pool_file), "--store", str(store), "--json"),
    )
    said = json.loads(result.stdout)
    assert said["receipt"]["answer_id"] == said["id"]
    assert {call["method"] for call in said["receipt"]["calls"]} == {"samples"}
    assert said["text"] == said["candidates"][said["probabilities"].index(max(said["probabilities"]))]
    assert store.exists()


def test_ask_takes_a_policy_by_its_name(pool_file: Path) -> None:
    """As a folder of that name only where it is written as a path."""
    asked = {}
    for policy in ("plurality", "./plurality"):
        result = focalroute("ask", "What is 17 + 25?", "--answer", "number", "--pool", str(pool_file), "--json",
                            "--policy", policy)  # fmt: skip
        assert result.returncode == 0, result.stderr
        asked[policy] = json.loads(result.stdout)["receipt"]
    assert asked["plurality"]["policy"] == "plurality"
    assert len(asked["plurality"]["calls"]) == 6
    assert (asked["./plurality"]["policy"], asked["./plurality"]["policy_version"]) == (None, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ask", "What?", "--choices", "one", "--pool", "POOL"], "choices"),
        (["ask", "What?", "--pool", "missing.toml"], "missing.toml"),
        (["ask", "What?", "--answer", "haiku", "--pool", "POOL"], "haiku"),
        (["ask", "What?", "--samples", "0", "--pool", "POOL"], "samples"),
        (["ask", "   ", "--pool", "POOL"], "query"),
        (["ask", "What?", "--pool", "POOL", "--policy", "pluralty"], "did you mean 'plurality'"),
        (["update", "--store", "s.db", "--policy", "plurality"], "'plurality' is a rule"),
        (["update", "--store", "s.db", "--policy", "x"], 'x: there is no such folder; for a new one give "./x"'),
        (["ask", "What?"], "--pool"),
        (["demo", "--queries", "1"], "--queries"),
        (["eval", "log.jsonl", "--pool", "POOL", "--preset", "rl"], "preset"),
        (["eval", "log.jsonl", "--pool", "POOL", "--seeds", "0"], "--seeds"),
        (["eval", "log.jsonl", "--pool", "POOL", "--seed", "-1"], "--seed"),
        (["update", "--store", "s.db", "--policy", "./policy", "--seed", "-1"], "--seed"),
        (["policy", "compare", "cold", "cold@1", "--store", "s.db", "--seed", "-1"], "--seed"),
        (["eval", "log.jsonl", "--pool", "POOL", "--operating-points", "0.2,half"], "operating_points"),
        (["eval", "log.jsonl", "--pool", "POOL", "--policy", "missing"], "missing"),
        (["eval", "log.jsonl", "--pool", "POOL", "--html", "missing/report.html"], "cannot be written"),
        (["eval", "log.jsonl", "--pool", "POOL", "--out", "policy"], "--out applies only with --live"),
        (["eval", "--live", "sim", "--queries", "q.jsonl", "--html", "a.html"], "--html applies only without --live"),
        (["eval", "log.jsonl", "--live", "sim", "--queries", "q.jsonl"], "log applies only without --live"),
        (["chat", "--pool", "missing.toml"], "missing.toml"),
        (["pool", "check", "missing.toml"], "missing.toml"),
        (["report"], "give EVAL.json"),
        (["report", "eval.json", "--last", "50"], "--last applies only with --store"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_of_the_user_are_named_with_exit_code_2(
    pool_file: Path,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(pool_file) if argument == "POOL" else argument for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["focalroute", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_a_chat_reads_questions_from_a_pipe_and_learns_from_feedback(pool_file: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    said = "/feedback good\nWhat is 17 + 25?\n/feedback meh\n/feedback good\n\n/foo\n/cost\n/new\n/quit\nWhat?\n"
    result = focalroute_apart("chat", "--pool", str(pool_file), "--store", str(store), said=said)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    notes = result.stderr.splitlines()
    assert notes[0] == "/feedback: there is no answer yet"
    assert "confidence" in notes[1]
    assert notes[1].endswith("so far")
    assert notes[2:5] == ["/feedback: say good or bad", "noted: good", "/foo: is not a command; /help lists them"]
    assert notes[5].startswith("paid $0.0000")
    assert notes[6:] == ["a new conversation"]
    with closing(SqliteStore(store)) as opened:
        ((answer, feedback),) = opened.recent(10)
    assert [(one.answer_id, one.reward) for one in feedback] == [(answer.id, 1.0)]


def test_a_chat_remembers_what_was_said(tmp_path: Path) -> None:
    """And its endpoint is asked with a stream."""

    async def handler(request: web.Request, body: Any) -> web.StreamResponse:
        said = " | ".join(message["content"] for message in body["messages"])
        choice = {"index": 0, "delta": {"content": said}, "finish_reason": "stop"}
        return await sse(request, {"choices": [choice]}, "[DONE]")

    with serving(handler) as server:
        pool = tmp_path / "pool.toml"
        pool.write_text(f'[[endpoint]]\nname = "e"\nmodel = "m"\nbase_url = "{server.url}"\n')
        done = focalroute("chat", "--pool", str(pool), said="one\ntwo\n/new\nthree\n")
    assert done.stdout.splitlines() == ["one", "one | one | two", "three"]


def test_a_chat_as_json_is_a_line_for_each_thing(pool_file: Path) -> None:
    said = "What is 17 + 25?\n/feedback bad\n"
    result = focalroute("chat", "--pool", str(pool_file), "--json", said=said)
    answer, feedback = map(json.loads, result.stdout.splitlines())
    assert answer["receipt"]["answer_id"] == answer["id"] == feedback["feedback"]
    assert answer["total_cost_usd"] == answer["receipt"]["cost"]
    assert feedback["reward"] == -1
    failed = focalroute("chat", "--pool", str(pool_file), "--json", "--max-usd", "0.000000001", said="What?\n")
    assert failed.returncode == 1
    assert json.loads(failed.stdout).keys() == {"error"}


@pytest.mark.slow
def test_a_chat_without_standard_input_ends_at_once(pool_file: Path) -> None:
    command = [sys.executable, "-m", "focalroute", "chat", "--pool", str(pool_file)]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_measurements_are_remembered(pool_file: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "s.db")
    result = focalroute("pool", "measure", str(pool_file), "--store", store, "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert all(one["latency_s"] > 0 and float(one["cost"]) > 0 for one in found)
    checked = json.loads(focalroute("pool", "check", str(pool_file), "--store", store, "--json").stdout)
    assert [one["capabilities"] for one in checked] == [one["capabilities"] for one in found]
    assert {one["source"] for one in checked} == {"store"}
    paid = json.loads(focalroute("ledger", "--store", store, "--json").stdout)
    assert {one["endpoint"]: float(one["cost"]) for one in paid} == {
        one["endpoint"]: float(one["cost"]) for one in found
    }


def test_paid_findings_are_kept_in_the_pool_file_s_store(pool_file: Path, tmp_path: Path) -> None:
    """Without --store it was lost, though pages say that such a check is made ahead."""
    path, store = tmp_path / "named.toml", tmp_path / "s.db"
    path.write_text(f"{pool_file.read_text()}\n[ensemble]\nstore = '{store}'\n")
    unknown = json.loads(focalroute("pool", "check", str(path), "--json").stdout)
    assert {one["source"] for one in unknown} == {""}
    assert not store.exists()
    assert focalroute("pool", "measure", str(path)).returncode == 0
    checked = json.loads(focalroute("pool", "check", str(path), "--json").stdout)
    assert {one["source"] for one in checked} == {"store"}


def test_measuring_names_endpoints_that_do_not_answer(tmp_path: Path) -> None:
    pool = tmp_path / "pool.toml"
    pool.write_text('[[endpoint]]\nname = "gone"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n')
    result = focalroute("pool", "measure", str(pool))
    assert result.returncode == 1
    assert "gone: could not reach the service" in result.stdout


def test_eval_replays_a_log_and_writes_its_report(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [dict(line) for line in recorded(30, {"a": 0.9, "b": 0.6})])
    pool = write_pool(tmp_path / "pool.toml", {"a": 1.0, "b": 0.1})
    options = ["--policy", "cold", "--seeds", "2", "--preset", "der", "--json", str(tmp_path / "report.json")]
    result = focalroute("eval", str(log), "--pool", str(pool), *options)
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["n_train"], report["n_test"], report["seeds"], report["policy"]) == (24, 6, 2, "cold")
    assert {"plurality", "oracle", "shuffled", "preset-der"} <= {row["name"] for row in report["methods"]}
    assert "plurality" in result.stdout
    printed = focalroute("eval", str(log), "--pool", str(pool), "--policy", "cold", "--json", "-")
    assert json.loads(printed.stdout)["n_test"] == 6


def test_update_says_what_came_of_it(tmp_path: Path) -> None:
    missing = focalroute("update", "--store", str(tmp_path / "s.db"), "--policy", str(tmp_path / "policy"))
    assert (missing.returncode, "no such store" in missing.stderr) == (2, True)
    SqliteStore(tmp_path / "s.db").close()
    result = focalroute("update", "--store", str(tmp_path / "s.db"), "--policy", str(tmp_path / "policy"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("insufficient: version 0;")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of rewarded answers, ``s.db``, their policy, ``o``, and one that asks more, ``p``."""
    folder = tmp_path_factory.mktemp("told")
    with closing(SqliteStore(folder / "s.db")) as store:
        store.write(*[row for pair in play(linear_learner(), 120, 0) for row in pair]).result()
    decider, fusion = linear_decider(), fusion_model(cold_fusion())
    more = replace(decider, bias=decider.bias + np.float32(0.3))
    for name, net in (("o", decider), ("p", more)):
        publish(folder / name, decider=decider_model(net), fusion=fusion, names=(), parent=None)
    return folder


def test_policies_are_compared_on_a_store(told: Path) -> None:
    result = focalroute("policy", "compare", "o", "p@1", "--store", "s.db", cwd=told)
    assert result.returncode == 0, result.stderr
    assert "A: o (version 1); effective sample size 120 of 120, mean ratio 1.00" in result.stdout
    assert "than A: " in result.stdout
    as_json = focalroute("policy", "compare", "o", "p", "--store", "s.db", "--json", cwd=told)
    said = json.loads(as_json.stdout)
    assert (said["episodes"], said["labelled"], said["greedy"]) == (120, 120, 0)
    assert said["difference"]["reward"].keys() == {"ips", "self-normalised", "doubly-robust"}
    assert said["verdict"] in result.stdout


def test_policies_are_shown_and_rolled_back(told: Path) -> None:
    shown = focalroute("policy", "show", "p", "--json", cwd=told)
    assert json.loads(shown.stdout)["versions"] == [1]
    back = focalroute("policy", "rollback", "p", "1", cwd=told)
    assert (back.returncode, back.stdout) == (0, "p: version 1 serves now\n")
    told_so = focalroute("policy", "rollback", "p", "1", "--json", cwd=told)
    assert json.loads(told_so.stdout) == {"folder": "p", "version": 1}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "cold", "p", "--store", "none.db"], "none.db: there is no such store"),
        (["compare", "cold", "none", "--store", "s.db"], "none: there is no such folder"),
        (["compare", "p", "p@1", "--store", "s.db"], "policies: both are the same"),
        (["rollback", "p"], "has no parent in this folder"),
        (["rollback", "p", "9"], "version 9 is not kept; give one of 1"),
    ],
)
def test_wrong_arguments_of_a_policy_command_are_named(told: Path, arguments: list[str], says: str) -> None:
    result = focalroute("policy", *arguments, cwd=told)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_the_version_and_the_module_are_there() -> None:
    from focalroute import __version__

    result = focalroute_apart("--version")
    assert (result.returncode, result.stdout.strip()) == (0, __version__)


def test_output_that_cannot_be_written_is_an_error_and_not_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "focalroute", "policy", "show", "cold"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")


@pytest.mark.slow
def test_without_standard_error_standard_output_has_only_what_was_asked_for() -> None:
    """The key was written into the file of keys, which no server reads then."""
    command = ["sh", "-c", '"$0" -m focalroute key alice 2>&-', sys.executable]
    made = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert made.stdout.startswith("[[key]]")
    assert "fr-" not in made.stdout


def test_a_pool_that_does_not_answer_is_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('[[endpoint]]\nname = "gone"\nmodel = "m"\nbase_url = "http://127.0.0.1:1/v1"\n')
    result = focalroute("ask", "What?", "--pool", str(path))
    assert result.returncode == 1
    assert result.stderr.startswith("error: check base_url and that its server runs: 127.0.0.1:1 could not be reached")
    assert "(gone, m at 127.0.0.1:1: connection" in result.stderr


def test_the_demo_compares_with_honest_baselines() -> None:
    result = focalroute("demo", "--queries", "40", "--seed", "3", "--json")
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    rows = {row["method"].split(" (")[0]: row for row in said["rows"]}
    assert list(rows) == ["focalroute", "focalroute, no feedback", "best single", "plurality of all", "random single"]
    assert rows["plurality of all"]["calls_per_query"] == 6
    assert rows["best single"]["calls_per_query"] == rows["random single"]["calls_per_query"] == 1
    assert 1 <= rows["focalroute"]["calls_per_query"] < 6
    assert 1 <= rows["focalroute, no feedback"]["calls_per_query"] < 6
    assert rows["best single"]["accuracy"] >= rows["random single"]["accuracy"]
    for row in rows.values():
        assert row["accuracy"] == pytest.approx((row["accuracy_before_drift"] + row["accuracy_after_drift"]) / 2)


@pytest.mark.slow
def test_the_demo_prints_a_table_that_fits_a_terminal() -> None:
    result = focalroute_apart("demo", "--queries", "20")
    assert (result.returncode, result.stderr) == (0, "")  # the first thing that anybody sees has no warnings
    lines = result.stdout.splitlines()
    assert any("focalroute, no feedback" in line for line in lines)
    assert "…" not in result.stdout
    assert max(map(len, lines)) <= 80
