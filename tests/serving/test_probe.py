"""Probes of endpoints that were not asked, over real HTTP: they teach, stay within every limit, and disturb nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from examples.shipped_policy.training import cold_fusion
from focalroute import Answer, AsyncEnsemble, Budget, ConfigError, Endpoint, Ensemble
from focalroute.learn.export import decider_model, fusion_model
from focalroute.policy.publish import publish
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.by_hand import linear_decider
from tests.loopback import Server, completion, json_reply, serving, until
from tests.policies import ask_the_cheapest

USAGE = {"prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 300}
CALL = Decimal("0.0003")  # what one costs


class Service:
    """Answers as each model is told to: "other" only while it is not held, and with ``status``."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.status = 200
        self.calls = {"asked": 0, "other": 0}

    async def handle(self, _: web.Request, body: Any) -> web.StreamResponse:
        self.calls[body["model"]] += 1
        if body["model"] == "asked":
            return json_reply(completion("42", usage=USAGE))
        await asyncio.to_thread(self.free.wait)
        return json_reply(completion("The answer is 43", usage=USAGE), self.status)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    with serving(service.handle) as running:
        yield running
        service.free.set()


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> dict[str, Any]:
    """Two endpoints at one price, of which the policy asks the first; every ask pays for a whole probe."""
    pool = [
        Endpoint(name, base_url=server.url, model=name, input_usd_per_1m=1, output_usd_per_1m=1)
        for name in ("asked", "other")
    ]
    return {
        "endpoints": pool, "policy": ask_the_cheapest(tmp_path / "policy"), "store": tmp_path / "s.db",
        "explore": False, "probe_share": 1.0, "attempts": 1, "learn_from_agreement": False,
    }  # fmt: skip


def seen(ensemble: Ensemble, name: str) -> int:
    return ensemble.stats().endpoints[name].seen


def begin(ensemble: Ensemble) -> None:
    """The first feedback, before which nobody is probed; it saves for one probe."""
    ensemble.feedback(ensemble.ask("?", answer="number"), label=42)


@pytest.mark.parametrize("when", ["before the reply", "after the reply", "elsewhere"])
@pytest.mark.parametrize("label", [43, 42])
def test_a_probe_teaches_with_the_answers_feedback(
    service: Service, settings: dict[str, Any], when: str, label: int
) -> None:
    """Whichever comes first, and whoever says it: another ensemble on the same store, too."""
    with Ensemble(**settings) as ensemble:
        begin(ensemble)
        assert service.calls["other"] == 0
        service.free.clear()
        answer = ensemble.ask("?", answer="number")
        until(lambda: service.calls["other"] == 1)
        if when == "before the reply":
            ensemble.feedback(answer, label=label)
            assert seen(ensemble, "other") == 0
        service.free.set()
        until(lambda: ensemble.stats().endpoints["other"].calls == 1)
        if when == "after the reply":
            ensemble.feedback(answer, label=label)
        elif when == "elsewhere":
            with Ensemble(**{**settings, "probe_share": 0.0}) as elsewhere:
                elsewhere.feedback(answer.id, label=label)
                assert seen(elsewhere, "other") == 1
        until(lambda: seen(ensemble, "other") == 1)
        stats = ensemble.stats().endpoints
        assert (stats["other"].accuracy > stats["asked"].accuracy) == (label == 43)
        assert seen(ensemble, "asked") == 2
    with Ensemble(**settings) as again:  # and it is still known after a restart
        assert seen(again, "other") == 1


def test_the_receipt_knows_nothing_of_it_and_the_ledger_does(service: Service, settings: dict[str, Any]) -> None:
    with Ensemble(**settings) as ensemble:
        begin(ensemble)
        answer = ensemble.ask("?", answer="number")
        until(lambda: ensemble.stats().endpoints["other"].calls == 1)
        assert answer.cost == answer.receipt.cost == CALL
        assert [call.endpoint for call in answer.receipt.calls] == ["asked"]
        stats = ensemble.stats()
        assert stats.cost == 3 * CALL
        assert stats.endpoints["other"].cost == CALL
        assert ensemble.ask("?", answer="number").receipt.rounds == 1


def test_over_time_probes_keep_to_their_share(service: Service, settings: dict[str, Any]) -> None:
    with Ensemble(**{**settings, "probe_share": 0.1}) as ensemble:
        begin(ensemble)
        for _ in range(65):
            ensemble.ask("?", answer="number")
        until(lambda: ensemble.stats().endpoints["other"].calls >= 6)
    assert service.calls == {"asked": 66, "other": 6}


def test_without_a_share_or_without_feedback_no_endpoint_is_probed(service: Service, settings: dict[str, Any]) -> None:
    with Ensemble(**{**settings, "probe_share": 0.0}) as ensemble:
        for _ in range(3):
            begin(ensemble)
    with Ensemble(**{**settings, "store": None}) as ensemble:
        for _ in range(3):
            ensemble.ask("?", answer="number")
    assert service.calls == {"asked": 6, "other": 0}


def test_a_probe_stays_within_the_asks_cap_and_the_total(service: Service, settings: dict[str, Any]) -> None:
    """Every probe would fit its share; what it could cost at the most does not fit what the cap leaves."""
    for budget in (Budget(max_usd_per_ask="0.0014"), Budget(usd_total="0.0017")):
        with Ensemble(**{**settings, "store": None}, budget=budget) as ensemble:
            begin(ensemble)
            ensemble.ask("?", answer="number")
    assert service.calls == {"asked": 4, "other": 0}


def test_an_endpoint_that_fails_too_often_is_no_longer_probed(
    service: Service, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("focalroute.endpoints.breaker._FIRST_S", 600.0)
    service.status = 500
    with Ensemble(**settings) as ensemble:
        begin(ensemble)
        for n in range(1, 8):
            ensemble.ask("?", answer="number")
            until(lambda n=n: ensemble.stats().endpoints["other"].calls == min(n, 5))  # type: ignore[misc]
        assert ensemble.stats().endpoints["other"].breaker != "closed"
        assert seen(ensemble, "other") == 0
    assert service.calls["other"] == 5


def test_neither_the_answer_nor_closing_waits_for_a_probe(
    service: Service, server: Server, settings: dict[str, Any]
) -> None:
    """It is cancelled down to its socket, leaves no task, and what it may have consumed is in the ledger."""
    service.free.clear()

    async def run() -> Answer:
        async with AsyncEnsemble(**settings) as ensemble:
            first = await ensemble.ask("?", answer="number")
            await ensemble.feedback(first, label=42)
            answer = await ensemble.ask("?", answer="number")
            await asyncio.to_thread(until, lambda: service.calls["other"] == 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return answer

    answer = asyncio.run(run())
    assert answer.cost == CALL
    assert server.cut.wait(30)
    with Ensemble(**settings) as again:
        other = again.stats().endpoints["other"]
        assert (other.calls, other.unpriced, other.seen) == (1, 1, 0)


def test_a_callers_function_that_gives_no_text_for_a_probe_is_a_warning(
    service: Service, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def form(text: str) -> Any:
        return 43 if "43" in text else text

    with Ensemble(**settings) as ensemble:
        begin(ensemble)
        ensemble.ask("?", answer=form)
        until(lambda: ensemble.stats().endpoints["other"].calls == 1)
    assert "an exploration call failed: answer: the callable must give" in caplog.text


def test_the_share_is_checked() -> None:
    endpoint = Endpoint("a", base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(ConfigError, match="probe_share"):
        Ensemble([endpoint], probe_share=1.5)


def test_a_change_is_logged_once(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """In the log when it is found, not again when its outcomes are read after a restart; and in the statistics."""
    caplog.set_level("INFO", "focalroute")
    with Ensemble(**{**settings, "probe_share": 0.0}) as ensemble:
        for n in range(60):
            answer = ensemble.ask("?", answer="number")
            ensemble.feedback(answer, label=42 if n < 40 else 7)
        change = ensemble.stats().endpoints["asked"].change
    assert change is not None
    assert change.after < 0.7 < change.before
    assert change.at == pytest.approx(time.time(), abs=600)
    said = caplog.text.count("endpoint 'asked' changed: right ")
    assert said >= 1
    with Ensemble(**settings) as again:
        assert again.stats().endpoints["asked"].change == change
    assert caplog.text.count("endpoint 'asked' changed") == said


def narrow(root: Path) -> Path:
    """A policy that asks hardly more than the one that was right most often."""
    decider = linear_decider()
    decider.bias[:] -= 3
    publish(root, decider=decider_model(decider), fusion=fusion_model(cold_fusion()), names=(), parent=None)
    return root


@pytest.mark.slow
def test_a_newcomer_is_tried_and_then_asked_without_being_told(tmp_path: Path) -> None:
    models = [SimulatedModel(name, skill=skill) for name, skill in (("a", 0.5), ("b", 0.45), ("c", 0.4), ("new", 1.0))]
    policy, store = narrow(tmp_path / "policy"), tmp_path / "s.db"
    questions = list(stream(300, seed=2))
    with SimulatedPool(models) as pool:

        def asked(endpoints: list[Endpoint], of: slice, share: float) -> list[bool]:
            hit = []
            with Ensemble(endpoints, policy=policy, store=store, explore=False, seed=0, probe_share=share) as ensemble:
                for q in questions[of]:
                    answer = ensemble.ask(q.text, choices=q.choices)
                    ensemble.feedback(answer, label_index=q.label)
                    hit.append("new" in [call.endpoint for call in answer.receipt.calls])
            return hit

        asked(list(pool.endpoints[:3]), slice(0, 100), 0.0)
        assert all(asked(list(pool.endpoints), slice(100, 300), 0.5)[-20:])
