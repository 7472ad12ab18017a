"""The texts of a whole log: each embedded once, before training and replaying, which then see the same vectors."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from focalroute import ConfigError, Endpoint, PoolError
from focalroute.evaluate.report import evaluate
from focalroute.evaluate.training import recorded, with_embedder
from focalroute.policy.bundle import cold, load
from focalroute.serving.embedders.embedding import embed_log
from focalroute.sim.compose import embeddings, vector
from tests.cli.calling import focalroute
from tests.evaluate.brief import brief_training as brief_training  # a fixture
from tests.evaluate.logs import stream, table_of, write_log, write_pool
from tests.interruptible import heed_interrupts
from tests.loopback import Handler, Server, json_reply, serving
from tests.serving.embedders.encoder import write_encoder

TEXTS = [f"text number {n}" for n in range(70)]


async def embed(_: web.Request, body: Any) -> web.StreamResponse:
    return json_reply(embeddings(body, "m"))


def failing(times: int, status: int = 503) -> Handler:
    left = times

    async def handler(request: web.Request, body: Any) -> web.StreamResponse:
        nonlocal left
        left -= 1
        return json_reply({}, status, {"Retry-After": "0"}) if left >= 0 else await embed(request, body)

    return handler


def service(server: Server) -> Endpoint:
    return Endpoint("e", model="m", base_url=server.url, input_usd_per_1m=1, output_usd_per_1m=0)


def sent(server: Server) -> list[str]:
    return [text for received in server.received for text in received.body["input"]]


def test_a_service_gets_each_text_once_many_at_a_time() -> None:
    with serving(embed) as server:
        vectors = embed_log([*TEXTS, "", *TEXTS], service(server))
    assert sorted(sent(server)) == sorted(TEXTS)
    assert len(server.received) == 3
    for text in TEXTS:
        assert vectors(text) == pytest.approx(np.array(vector(text)))
    assert not vectors(" ").any()
    assert vectors("").shape == (64,)
    assert vectors.name == "m"
    assert vectors.usd == Decimal(3 * len(TEXTS)) / 1_000_000  # tokens of so many texts
    with pytest.raises(KeyError):
        vectors("another text")


def test_a_call_that_fails_for_a_moment_is_repeated() -> None:
    with serving(failing(2)) as server:
        assert embed_log(TEXTS[:3], service(server))(TEXTS[0]).any()
        assert len(server.received) == 3


def test_a_service_that_goes_on_failing_is_an_error() -> None:
    with serving(failing(100, 401)) as server, pytest.raises(PoolError, match=r"embedder: .*HTTP 401"):
        embed_log(TEXTS, service(server))


@pytest.mark.parametrize("awaits", [False, True])
def test_a_function_gets_each_text_once_in_a_running_loop_too(awaits: bool) -> None:
    asked: list[str] = []

    def plain(text: str) -> list[float]:
        asked.append(text)
        return [3.0, 4.0]

    async def awaited(text: str) -> list[float]:
        return plain(text)

    async def notebook() -> Any:
        return embed_log(TEXTS + TEXTS, awaited if awaits else plain)

    vectors = asyncio.run(notebook())
    assert sorted(asked) == sorted(TEXTS)
    assert vectors(TEXTS[5]) == pytest.approx([0.6, 0.8])
    assert vectors.usd == 0


def test_ctrl_c_ends_it() -> None:
    """It went on until all texts were embedded."""
    code = """
import asyncio
from focalroute.serving.embedders.embedding import embed_log
async def embed(text):
    print("embedding", flush=True)
    await asyncio.sleep(3600)
embed_log(["text"], embed)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interrupts) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"embedding\n"
        run.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in run.communicate(timeout=60)[1]


def test_a_function_that_gives_no_vectors_is_wrong() -> None:
    with pytest.raises(ConfigError, match="embedder"):
        embed_log(TEXTS, lambda text: [float("nan")])


# -- training and replaying -------------------------------------------------------------------------------------------


LINES = stream(30, {"a": 0.9, "b": 0.6})
PRICES = {"a": 1.0, "b": 0.1}


def test_training_sees_its_vectors_and_a_policy_says_whose_it_remembers(tmp_path: Path) -> None:
    table = table_of(tmp_path, LINES, PRICES)

    def parity(text: str) -> Sequence[int]:
        return (3, 0) if int(text.split()[1]) % 2 else (0, 5)

    log = recorded(with_embedder(table, parity), np.arange(10))
    assert log.vectors.tolist() == [[0, 1], [1, 0]] * 5
    assert "parity" in log.embedder


def test_evaluate_takes_an_embedder(tmp_path: Path) -> None:
    """Every text of the log is embedded, those of the test part too, and once for all seeds."""
    log = write_log(tmp_path / "log.jsonl", [dict(line) for line in LINES])
    asked: list[str] = []

    def length(text: str) -> list[float]:
        asked.append(text)
        return [1.0, float(len(text))]

    report = evaluate(log, write_pool(tmp_path / "pool.toml", PRICES), embedder=length, policy=cold(), seeds=2)
    assert (report.n_test, report.to_dict()["embedder"].endswith("length")) == (6, True)
    assert sorted(asked) == sorted(line["prompt"] for line in LINES)


def pool_with(folder: Path, table: str) -> Path:
    pool = write_pool(folder / "pool.toml", PRICES)
    pool.write_text(f"{pool.read_text()}\n[embedder]\n{table}\n")
    return pool


@pytest.mark.usefixtures("brief_training")
def test_the_command_line_trains_and_replays_with_the_pool_files_embedder(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [dict(line) for line in LINES])
    with serving(embed) as server:
        pool = pool_with(tmp_path, f'base_url = "{server.url}"\nmodel = "m"\ninput_usd_per_1m = 0.02')
        trained = focalroute(
            "train", str(log), "--pool", str(pool), "--out", str(tmp_path / "policy"), "--iterations", "1", "--json"
        )
        assert trained.returncode == 0, trained.stderr
        assert sorted(sent(server)) == sorted(line["prompt"] for line in LINES)
        policy = load(tmp_path / "policy")
        options = ["--policy", str(tmp_path / "policy"), "--operating-points", "0.5"]
        replayed = focalroute("eval", str(log), "--pool", str(pool), *options)
        assert replayed.returncode == 0, replayed.stderr
        assert len(sent(server)) == 2 * len(LINES)
    assert policy.hyperparameters["embedder"] == "m"
    assert policy.experience is not None
    assert policy.experience.embedder == "m"
    assert policy.experience.vectors[-1] == pytest.approx(np.array(vector(LINES[-1]["prompt"])), abs=0.01)
    assert "remembers texts" not in replayed.stderr


def test_a_pool_file_may_name_a_local_encoder(tmp_path: Path) -> None:
    """By paths relative to it."""
    write_encoder(tmp_path / "encoder")
    pool = pool_with(tmp_path, 'onnx = "encoder/model.onnx"\ntokenizer = "encoder/tokenizer.json"\nmax_tokens = 32')
    log = write_log(tmp_path / "log.jsonl", [dict(line) for line in LINES])
    report = evaluate(log, pool, policy=cold())
    assert report.n_test == 6
    (tmp_path / "encoder" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"encoder.tokenizer\.json: cannot be read"):
        evaluate(log, pool, policy=cold())


def test_a_service_that_is_down_ends_a_training_with_exit_code_1(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [dict(line) for line in LINES])
    with serving(failing(100, 401)) as server:
        pool = pool_with(tmp_path, f'base_url = "{server.url}"\nmodel = "m"')
        done = focalroute("train", str(log), "--pool", str(pool), "--out", str(tmp_path / "policy"))
    assert (done.returncode, "embedder: no features" in done.stderr) == (1, True)
    assert not (tmp_path / "policy").exists()
