"""The pool as a process: its controls, its accounts, its keys, and that it never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import httpx
import pytest

from focalroute import Ensemble
from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import load_pool
from focalroute.sim import Fault, ModelStats, SimulatedModel, SimulatedPool, default_models, stream
from focalroute.sim.__main__ import main
from focalroute.sim.process import pool_toml
from tests.forked_pools import FROM_NOTHING
from tests.interruptible import heed_interrupts
from tests.loopback import until
from tests.sim.conftest import Client

ASKED = "What is 17 + 25?\n\nA. 32\nB. 42\n\nAnswer with the letter of one choice only."
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools start as they do for users."""
    monkeypatch.setattr(SimulatedPool, "_start_process", staticmethod(FROM_NOTHING))


def closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_accounts_add_up_exactly_under_concurrency(own: Client) -> None:
    prices = {"sure": (Decimal("0.1"), Decimal("0.1")), "wordy": (Decimal("0.1"), Decimal("0.5"))}

    def one(i: int) -> tuple[str, int, int]:
        model = ("sure", "wordy")[i % 2]
        text = questions[i].text
        usage = own.ask(text, ("openai", "together", "vllm")[i % 3], model=model, n=1 + i % 3)["usage"]
        return model, usage["prompt_tokens"], usage["completion_tokens"]

    questions = list(stream(60, seed=6))
    with ThreadPoolExecutor(8) as threads:
        bills = list(threads.map(one, range(60)))
    stats = own.pool.stats()
    for model, (price_in, price_out) in prices.items():
        mine = [(p, c) for name, p, c in bills if name == model]
        assert stats[model].calls == len(mine)
        assert stats[model].prompt_tokens == sum(p for p, _ in mine)
        assert stats[model].completion_tokens == sum(c for _, c in mine)
        assert stats[model].usd == sum((p * price_in + c * price_out) / 1_000_000 for p, c in mine)
        assert (stats[model].cancelled, stats[model].faults) == (0, 0)


def test_the_most_calls_under_way_are_counted(own: Client) -> None:
    own.pool.set("sure", latency_s=3.0)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: own.ask(ASKED), range(4)))
    assert own.pool.stats()["sure"].peak == 4


def test_a_new_price_holds_from_the_next_call(own: Client) -> None:
    own.pool.set("sure", input_usd_per_1m="1000", output_usd_per_1m=Decimal(0))
    usage = own.ask(ASKED)["usage"]
    assert own.pool.stats()["sure"].usd == Decimal(usage["prompt_tokens"]) / 1000


def test_a_reset_undoes_every_switch_and_counts_anew(own: Client) -> None:
    own.pool.set("sure", faults=Fault("status"), input_usd_per_1m=7)
    assert own.post(ASKED).status_code == 503
    own.pool.reset()
    assert own.pool.stats()["sure"] == ModelStats()
    usage = own.ask(ASKED)["usage"]
    assert own.pool.stats()["sure"].usd == Decimal(usage["total_tokens"]) / 10_000_000


def test_drift_changes_what_a_model_knows_and_can_be_undone(http: httpx.Client) -> None:
    model = SimulatedModel("m", skill=1.0, drifted={"arithmetic": 0.0})
    with SimulatedPool([model]) as pool:
        client = Client(pool, http)
        questions = list(stream(25, seed=7, topics=["arithmetic"]))

        def right() -> int:
            texts = [
                client.ask(q.text, model="m", temperature=0)["choices"][0]["message"]["content"] for q in questions
            ]
            return sum(text == f"The answer is {q.answer}." for text, q in zip(texts, questions, strict=True))

        assert right() >= 23
        pool.drift()
        assert right() < 20
        pool.drift(False)
        pool.set("m", drifted=False)
        assert right() >= 23


def test_the_same_pool_says_the_same_in_another_process(own: Client, client: Client) -> None:
    for question in stream(20, seed=9):
        said = [c.ask(question.text, model="wordy", n=3)["choices"] for c in (own, client)]
        assert said[0] == said[1]


def test_endpoints_are_ready_to_be_asked() -> None:
    models = default_models()
    with SimulatedPool(models, dialects={"tally-7b": "together", "quill-9b": "minimal"}) as pool:
        endpoints = {endpoint.name: endpoint for endpoint in pool.endpoints}
        assert list(endpoints) == [model.name for model in models]
        tally = endpoints["tally-7b"]
        assert (tally.dialect, tally.base_url) == ("together", f"http://127.0.0.1:{pool.port}/together/v1")
        assert endpoints["quill-9b"].dialect == "openai"
        assert str(endpoints["quill-9b"].base_url).endswith("/minimal/v1")
        assert endpoints["atlas-70b"].output_usd_per_1m == Decimal("0.88")
        assert all(endpoint.price for endpoint in endpoints.values())


def test_a_key_is_wanted_where_it_is_configured(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "s3cret")
    with SimulatedPool([SimulatedModel("locked"), SimulatedModel("open")], keys={"locked": "SIM_KEY"}) as pool:
        locked, open_ = pool.endpoints
        assert (locked.api_key_env, open_.api_key_env) == ("SIM_KEY", None)
        body = {"messages": [{"role": "user", "content": ASKED}]}

        def status(endpoint: Endpoint, key: str | None) -> int:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            url = f"{endpoint.base_url}/chat/completions"
            return http.post(url, json={"model": endpoint.model, **body}, headers=headers).status_code

        assert [status(locked, key) for key in (None, "wrong", "s3cret")] == [401, 401, 200]
        assert status(open_, None) == 200
        assert pool.stats()["locked"].calls == 1


def test_wrong_settings_are_config_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIM_UNSET", raising=False)
    one = [SimulatedModel("m")]
    with pytest.raises(ConfigError, match="empty"):
        SimulatedPool([])
    with pytest.raises(ConfigError, match="models: give SimulatedModels, got str"):
        SimulatedPool(["m"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="unique"):
        SimulatedPool(one * 2)
    with pytest.raises(ConfigError, match="gopher"):
        SimulatedPool(one, dialects="gopher")  # type: ignore[arg-type]
    for wrong in (["vllm"], None, 5, {"m": ["vllm"]}):
        with pytest.raises(ConfigError, match=r'dialects: give the text of each model by its name, such as {"m": '):
            SimulatedPool(one, dialects=wrong)  # type: ignore[arg-type]
    for wrong_keys in (["SIM_UNSET"], "SIM_UNSET", 5, {"m": None}):
        with pytest.raises(ConfigError, match="keys: give the text of each model by its name"):
            SimulatedPool(one, keys=wrong_keys)  # type: ignore[arg-type]
    for lone in (one[0], 5):
        with pytest.raises(ConfigError, match="models: give a list of SimulatedModels"):
            SimulatedPool(lone)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dialects.*nobody"):
        SimulatedPool(one, dialects={"nobody": "vllm"})
    with pytest.raises(ConfigError, match=r"keys.*nobody"):
        SimulatedPool(one, keys={"nobody": "SIM_UNSET"})
    with pytest.raises(ConfigError, match="SIM_UNSET"), SimulatedPool(one, keys={"m": "SIM_UNSET"}):
        pass
    with pytest.raises(ConfigError, match="not running"):
        _ = SimulatedPool(one).endpoints


def test_wrong_switches_are_config_errors_and_change_nothing(own: Client) -> None:
    with pytest.raises(ConfigError, match=r"nobody.*sure"):
        own.pool.set("nobody", drifted=True)
    with pytest.raises(ConfigError, match="latency_s"):
        own.pool.set("sure", latency_s=-1, input_usd_per_1m=5)
    for faults in ("reset", 5):
        with pytest.raises(ConfigError, match="faults: give Faults"):
            own.pool.set("sure", faults=faults)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model '5'"):
        own.pool.set(5, drifted=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="output_usd_per_1m"):
        own.pool.set("sure", output_usd_per_1m="cheap")
    url = f"http://127.0.0.1:{own.pool.port}/sim/model/sure"
    for body in (
        {"gremlins": 1},
        {"name": "other"},
        {"faults": [{"kind": "gremlin"}]},
        {"faults": [{"k": 1}]},
        {"faults": 5},
        [1],
    ):
        assert own.http.post(url, json=body).status_code == 400
    assert own.http.post(url, content=b"{").status_code == 400
    usage = own.ask(ASKED)["usage"]
    assert own.pool.stats()["sure"].usd == Decimal(usage["total_tokens"]) / 10_000_000


def test_the_server_ends_with_its_context() -> None:
    with SimulatedPool([SimulatedModel("m")]) as pool:
        port = pool.port
        assert not closed(port)
    assert closed(port)
    pool.close()


def test_the_server_ends_when_its_parent_is_killed() -> None:
    program = (
        "import os, signal, sys\nfrom focalroute.sim import Fault, ModelStats, SimulatedModel, SimulatedPool\n"
        "pool = SimulatedPool([SimulatedModel('m')]).__enter__()\nprint(pool.port, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert not closed(port)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        until(lambda: closed(port))


def test_a_pool_can_be_used_from_async_code() -> None:
    async def main() -> int:
        async with SimulatedPool([SimulatedModel("m")]) as pool, httpx.AsyncClient(trust_env=False) as client:
            url = f"{pool.endpoints[0].base_url}/models"
            return (await client.get(url)).status_code

    assert asyncio.run(main()) == 200


def test_by_hand_it_prints_a_pool_file_and_serves_it(tmp_path: Path, http: httpx.Client) -> None:
    command = [sys.executable, "-m", "focalroute.sim", "--dialect", "vllm"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=heed_interrupts) as server:
        assert server.stdout is not None
        lines: list[str] = []
        while sum(line.startswith("output_usd_per_1m") for line in lines) < len(default_models()):
            lines.append(server.stdout.readline())
            assert lines[-1], "it ended before it had printed its pool file"
        path = tmp_path / "pool.toml"
        path.write_text("".join(lines))
        endpoints = load_pool(path).endpoints
        assert [endpoint.name for endpoint in endpoints] == [model.name for model in default_models()]
        assert endpoints[0].dialect == "vllm"
        assert http.get(f"{endpoints[0].base_url}/models").status_code == 200
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(60) == 0
        finally:
            server.kill()  # or leaving the block would wait for ever


def test_by_hand_a_wrong_argument_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option, value, said in (
            ("--queries", "-3", "give a whole number of questions, got -3"),
            ("--port", "99999", "port must be 0-65535"),
            ("--port", port, "address already in use"),
        ):
            monkeypatch.setattr(sys, "argv", ["focalroute.sim", option, value])
            with pytest.raises(SystemExit, match="2"):
                main()
            assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_printed_pool_file_is_toml_with_exact_prices() -> None:
    endpoint = Endpoint("a", model="b", base_url="http://x/v1", input_usd_per_1m=Decimal("0.05"), output_usd_per_1m=1)
    (table,) = tomllib.loads(pool_toml([endpoint]), parse_float=Decimal)["endpoint"]
    assert table["input_usd_per_1m"] == Decimal("0.05")
    assert table["name"] == "a"


@pytest.mark.parametrize("text", ["O\udcc3 est 17 + 25?", "Tell me of the moons of Saturn, O\udcc3."])
def test_a_text_that_was_decoded_wrongly_is_answered(simulated_pool: SimulatedPool, text: str) -> None:
    """A shell without UTF-8 makes such texts; the service broke down."""
    with Ensemble(simulated_pool.endpoints, policy="plurality") as ensemble:
        assert ensemble.ask(text).degraded == ()
