"""An ensemble on a Redis store, and a small version of the fleet benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from focalroute import Endpoint, Ensemble
from focalroute.cli.app import app
from focalroute.sim import SimulatedModel, SimulatedPool
from focalroute.store.redis.address import RedisAddress
from focalroute.store.redis.store import RedisStore
from tests.benchmarks.fleet import run
from tests.policies import ask_all
from tests.redis_server import RedisServer, place

QUESTION, CHOICES = "What is 17 + 25?", ["32", "42", "44", "52"]


def test_an_ensemble_asks_gets_feedback_and_learns_through_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    """Two of them: the answer of one is judged through the other, and both have heard of it."""
    where = place(redis_server.url)
    with (
        SimulatedPool([SimulatedModel("a", skill=0.999), SimulatedModel("b", skill=0.999)]) as pool,
        Ensemble(pool.endpoints, store=where, policy=tmp_path / "one", seed=0) as one,
        Ensemble(pool.endpoints, store=where, policy=tmp_path / "other", seed=1) as other,
    ):
        answer = one.ask(QUESTION, choices=CHOICES, tags=["team"])
        assert (answer.text, answer.durable) == ("42", True)
        other.feedback(answer.id, label="42")
        assert other.update().status == "insufficient"
        assert "another process learns" in one.update().reason
        store = RedisStore(where)
        assert [(kept.id, said[0].label is not None) for kept, said in store.recent(9)] == [(answer.id, True)]
        assert store.verify() == ()
        store.close()
    spent = CliRunner().invoke(app, ["ledger", "--store", where, "--by", "tag", "--csv"], catch_exceptions=False)
    assert spent.exit_code == 0
    assert "team,1," in spent.output


@pytest.mark.slow
def test_commands_that_read_a_store_take_a_redis_address(redis_server: RedisServer, tmp_path: Path) -> None:
    where, file, page = place(redis_server.url), tmp_path / "pool.toml", tmp_path / "page.html"
    other = str(ask_all(tmp_path / "ask all"))
    with SimulatedPool([SimulatedModel("a"), SimulatedModel("b")]) as pool:
        file.write_text("".join(map(_listed, pool.endpoints)))
        with Ensemble(pool.endpoints, store=where, seed=0) as ensemble:
            for number in range(60):
                ensemble.feedback(ensemble.ask(f"{QUESTION} ({number})", choices=CHOICES), label="42")
        for arguments in (
            ["report", "--store", where, "--out", str(page)],
            ["policy", "compare", "cold", other, "--store", where],
            ["pool", "measure", str(file), "--store", where],
            ["pool", "check", str(file), "--store", where, "--json"],
        ):
            said = CliRunner().invoke(app, arguments, catch_exceptions=False)
            assert said.exit_code == 0, said.output
    assert RedisAddress.of(where).name in page.read_text()
    assert {one["source"] for one in json.loads(said.output)} == {"store"}


def _listed(endpoint: Endpoint) -> str:
    listed = {"name": endpoint.name, "base_url": endpoint.base_url, "model": endpoint.model}
    prices = {"input_usd_per_1m": 1, "output_usd_per_1m": 1}
    return "[[endpoint]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in {**listed, **prices}.items())


@pytest.mark.slow
def test_a_small_fleet_loses_and_doubles_nothing() -> None:
    """Two workers, a learner killed once, Redis restarted once; it checks everything itself."""
    got = run(asks=160, workers=2, kills=1)
    got.check(versions=0, refused=0)  # too little to learn from, and chance whether the limit is met
    assert (got.lost, got.doubled) == (0, 0)
