"""Several samples of a free-form answer: asked for in one call, counted, fused, paid; over real HTTP."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from focalroute import Answer, Budget, BudgetExceeded, ConfigError, Endpoint, Ensemble, PoolError
from focalroute.answers import normal_form
from focalroute.core.errors import CallFailed
from focalroute.core.records import Query, Reply, Usage
from focalroute.endpoints.capabilities import NONE, Capabilities
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.wire import decode
from focalroute.observe.ask_view import AskView
from focalroute.observe.layout import MEMBER, slices
from focalroute.observe.observer import Observer
from focalroute.policy.bundle import cold
from focalroute.policy.decider import posterior
from focalroute.policy.fallback import Guarded
from focalroute.serving.query import make_query
from focalroute.sim import SimulatedModel, SimulatedPool, stream
from tests.loopback import Server, completion, json_reply, serving, until_checked
from tests.policies import ask_all

ABLE = Capabilities(logprobs=True, top_logprobs=20, n=True, structured_choice=True, stream_usage=True)
SAMPLING = Capabilities(logprobs=False, top_logprobs=0, n=True, structured_choice=False, stream_usage=False)
QUESTION = "What is 17 + 25?"
NAMES = ("a", "b", "c", "d")
USAGE = {"prompt_tokens": 200, "completion_tokens": 100, "total_tokens": 300}


def several(*texts: str, **fields: Any) -> dict[str, Any]:
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for i, text in enumerate(texts)
    ]
    return completion(choices=choices, **fields)


def asked(samples: int | None = 5, answer: Any = "number", **more: Any) -> Query:
    return make_query(QUESTION, answer=answer, samples=samples, **more)


# -- asking and reading ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [0, -1, True, 2.0, "5", 129])
def test_a_number_of_samples_is_checked(samples: Any) -> None:
    with pytest.raises(ConfigError, match="samples: give a whole number from 1 to 128"):
        make_query(QUESTION, samples=samples)


def test_one_request_draws_all_samples_if_the_endpoint_supports_that() -> None:
    drawn = plan(asked(), ABLE)
    assert (drawn.method, drawn.request.n, drawn.request.top_logprobs) == ("samples", 5, None)
    assert drawn.request.temperature is not None
    assert 0 < drawn.request.temperature < 1
    single = plan(asked(None), ABLE)
    for one in (plan(asked(), NONE), plan(asked(1), ABLE)):
        assert (one.method, one.request.n, one.request.temperature) == ("text", 1, None)
        assert one.request == single.request


def test_for_a_closed_question_samples_are_drawn_only_in_place_of_log_probabilities() -> None:
    def request(samples: int | None, able: Capabilities) -> tuple[str, int]:
        made = plan(make_query("?", choices=["x", "y"], samples=samples), able, samples=10)
        return made.method, made.request.n

    assert request(None, SAMPLING) == ("samples", 10)
    assert request(3, SAMPLING) == ("samples", 3)
    assert request(1, SAMPLING) == ("parsed", 1)
    assert request(3, ABLE) == ("logprobs", 1)


def test_the_most_frequent_answer_is_the_reading_and_each_has_its_share() -> None:
    texts = ("Hm, 41.", "I say 42.", "none", "42.0", "The answer is 41, I think.")
    reading = plan(asked(), ABLE).read(decode(several(*texts)))
    assert reading.shares == (("Hm, 41.", 0.4), ("I say 42.", 0.4))
    assert (reading.text, reading.method, reading.samples) == ("Hm, 41.", "samples", 5)
    assert (reading.choice, reading.probabilities) == (None, None)
    more = plan(asked(), ABLE).read(decode(several("41", "42", "42")))
    assert more.text == "42"
    assert more.shares == (("42", 2 / 3), ("41", 1 / 3))


def test_no_more_samples_are_counted_than_were_asked_for_and_one_is_a_plain_reply() -> None:
    assert plan(asked(2), ABLE).read(decode(several("1", "2", "2"))).shares == (("1", 0.5), ("2", 0.5))
    single = plan(asked(), ABLE).read(decode(several("1")))
    assert (single.shares, single.samples, single.method) == (None, 1, "text")


def test_samples_without_any_answer_are_a_failure_with_its_usage() -> None:
    with pytest.raises(CallFailed, match="holds no answer of the kind") as caught:
        plan(asked(), ABLE).read(decode(several("none", "nothing", usage=USAGE)))
    assert caught.value.usage == Usage(200, 100)


def test_a_callers_function_may_fail_on_some_of_them() -> None:
    drawn = plan(asked(answer=lambda text: text[2]), ABLE)
    assert drawn.read(decode(several("x", "abc", "abd", "acc"))).shares == (("abc", 0.5), ("abd", 0.25))
    with pytest.raises(CallFailed, match="the callable failed on a reply"):
        drawn.read(decode(several("x", "y")))


# -- what the Fusion sees ----------------------------------------------------------------------------------------------


def begun(query: Query | None = None) -> AskView:
    return Observer(NAMES, [0.1] * 4).begin(query or asked())


def sampled(name: str, *shares: tuple[str, float], samples: int = 5) -> Reply:
    return Reply(name, text=shares[0][0], shares=shares, samples=samples, method="samples", usage=Usage(9, 50))


def column(sight: AskView, name: str) -> list[list[float]]:
    found: list[list[float]] = sight.evidence().members[:, :, slices(MEMBER)[name].start].astype(float).tolist()
    return found


def near(*rows: Sequence[float]) -> Any:
    return [pytest.approx(list(row), abs=1e-6) for row in rows]


def test_every_sampled_answer_is_a_candidate_with_its_mass() -> None:
    sight = begun()
    sight.add(sampled("b", ("so 7", 0.6), ("8", 0.2)), 1)
    sight.add(Reply("a", text="9"), 1)
    sight.add(sampled("c", ("8.0", 1.0)), 2)
    assert sight.candidates == ["so 7", "8", "9"]
    assert sight.backs == {1: 0, 0: 2, 2: 1}
    assert column(sight, "vote") == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert column(sight, "probability") == near([0, 0.6, 0], [0, 0.2, 1], [1, 0, 0])
    unseen, full = math.log(0.1) / 8, math.log(7)  # half a sample; a vote's weight as one of eight at accuracy 1/2
    assert column(sight, "log_probability") == near(
        [0, math.log(0.6) / 8, unseen], [0, math.log(0.2) / 8, 0], [0, unseen, unseen]
    )
    assert column(sight, "evidence") == near([0, 0.6 * full, 0], [0, 0.2 * full, full], [full, 0, 0])
    assert sight.members()["b"].completion_tokens == 10  # of one sample


def test_single_replies_look_the_same_with_and_without_sampling() -> None:
    replies = [Reply("a", text="7", usage=Usage(3, 4)), Reply("b", text="8"), Reply("d", text="7.0")]
    plain, wanted = begun(asked(None)), begun(asked(5))
    for sight in (plain, wanted):
        for i, reply in enumerate(replies):
            sight.add(reply, 1 + i)
    assert np.array_equal(plain.evidence().members, wanted.evidence().members)
    assert np.array_equal(plain.evidence().candidates, wanted.evidence().candidates)


def test_the_order_of_arrival_changes_only_the_order_of_candidates() -> None:
    replies = [sampled("a", ("1", 0.6), ("2", 0.4)), sampled("b", ("3", 1.0), samples=2), Reply("c", text="2")]
    one, other = begun(), begun()
    for reply in replies:
        one.add(reply, 1)
    for reply in reversed(replies):
        other.add(reply, 1)
    moved = [other.candidates.index(text) for text in one.candidates]
    assert np.array_equal(one.evidence().members, other.evidence().members[moved])


def test_supposed_replies_do_not_change_the_view_of_an_ask() -> None:
    sight = begun()
    sight.add(sampled("b", ("7", 0.6), ("8", 0.4)), 1)
    before = sight.evidence().members
    supposed = sight.supposing([(0, 2), (2, 1)], 1, sure=True)
    assert supposed.members.shape[:2] == (3, 3)
    assert np.array_equal(sight.evidence().members, before)
    assert len(sight.candidates) == 2


def test_the_shipped_fusion_counts_samples_as_parts_of_a_vote() -> None:
    """It has never seen any: it takes them as what they are, less sure where a member wavers."""
    policy = Guarded(cold(), NAMES)

    def q(*replies: Reply) -> dict[str, float]:
        sight = begun()
        for reply in replies:
            sight.add(reply, 1)
        masses = posterior(policy.fusion_logits(sight.evidence()).tolist())
        return dict(zip(sight.candidates, masses, strict=True))

    sure, wavering = q(sampled("a", ("7", 0.8), ("8", 0.2))), q(sampled("a", ("7", 0.6), ("8", 0.4)))
    assert sure["7"] > wavering["7"] > 0.5
    both = q(sampled("a", ("7", 0.6), ("8", 0.4)), sampled("b", ("8", 1.0)))
    assert both["8"] > 0.5
    assert q(Reply("a", text="7"), Reply("b", text="7"), sampled("c", ("8", 1.0)))["7"] > 0.5


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[SimulatedPool]:
    models = [
        SimulatedModel("one", skill=0.6, verbosity=6),
        SimulatedModel("two", skill=0.75),
        SimulatedModel("single", skill=0.9),
    ]
    with SimulatedPool(models, dialects={"single": "minimal"}) as running:
        yield running


SETTINGS: dict[str, Any] = {"explore": False, "max_rounds": 1, "seed": 0}


def test_samples_are_counted_and_billed_and_an_endpoint_without_them_gives_one(
    pool: SimulatedPool, tmp_path: Path
) -> None:
    with Ensemble(pool.endpoints, policy=ask_all(tmp_path), **SETTINGS) as ensemble:
        ensemble.ask(QUESTION, answer="number", samples=5)  # finds out what they can do
        until_checked(ensemble)
        before = pool.stats()
        answer = ensemble.ask("What is 18 * 7?", answer="number", samples=5)
        ensemble.feedback(answer, label="The answer is 126.")
        right = {name: stats.accuracy for name, stats in ensemble.stats().endpoints.items()}
    replies, calls = {r.endpoint: r for r in answer.replies}, {c.endpoint: c for c in answer.receipt.calls}
    assert {name: call.method for name, call in calls.items()} == {"one": "samples", "two": "samples", "single": "text"}
    assert replies["single"].shares is None
    for name in ("one", "two"):
        shares = replies[name].shares
        assert shares is not None
        assert replies[name].samples == 5
        assert math.fsum(share for _, share in shares) <= 1 + 1e-9
        assert all((share * 5) == pytest.approx(round(share * 5)) for _, share in shares)
        assert replies[name].text == shares[0][0]
        candidate = calls[name].candidate
        assert candidate is not None
        assert normal_form(answer.candidates[candidate], "number") == normal_form(shares[0][0], "number")
    for name, after in pool.stats().items():
        usage = replies[name].usage
        assert usage is not None
        assert usage.completion_tokens == after.completion_tokens - before[name].completion_tokens
        assert replies[name].cost == after.usd - before[name].usd
        assert after.calls - before[name].calls == 1
    assert answer.cost == sum((reply.cost or Decimal(0) for reply in answer.replies), Decimal(0))
    known = {name for name, reply in replies.items() if normal_form(reply.text or "", "number") == "126"}
    assert 0 < len(known) < 3
    assert min(right[name] for name in known) > max(right[name] for name in right.keys() - known)


def test_samples_vary_and_their_counts_follow_the_models_own_probabilities(pool: SimulatedPool) -> None:
    """Of 128 samples the most frequent answer is right about as often as a model of that skill is."""
    endpoint = next(e for e in pool.endpoints if e.name == "two")
    with Ensemble([endpoint], **SETTINGS) as ensemble:
        answers = [
            ensemble.ask(question.text, answer="number", samples=128, params={"temperature": 1})
            for question in stream(12, seed=3, topics=["arithmetic", "sequences"])
        ]
    sizes = Counter(len(answer.candidates) for answer in answers)
    assert max(sizes) > 1
    for answer in answers:
        shares = answer.replies[0].shares or ()
        assert 0 < answer.confidence < max(answer.probabilities)  # perhaps no sample is right
        assert [share for _, share in shares] == sorted((share for _, share in shares), reverse=True)


def test_a_budget_reserves_every_sample(tmp_path: Path) -> None:
    """128 samples of 100 tokens at 1 USD a million: 0.0128; the reserve for one would be a hundredth of it."""

    async def reply(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(several(*["42"] * body.get("n", 1), usage=USAGE))

    with serving(reply) as server:
        endpoints = [able("only", server, output_usd_per_1m=1, input_usd_per_1m=1)]
        params = {"max_tokens": 100}
        with Ensemble(endpoints, budget=Budget(max_usd_per_ask="0.01"), **SETTINGS) as ensemble:
            assert ensemble.ask("?", answer="number", params=params).value == 42
            assert ensemble.ask("?", answer="number", samples=8, params=params).value == 42
            with pytest.raises(BudgetExceeded):
                ensemble.ask("?", answer="number", samples=128, params=params)
        assert [r.body.get("n", 1) for r in server.received] == [1, 8]


def able(name: str, server: Server, **settings: Any) -> Endpoint:
    """An endpoint that needs no probe and gives samples."""
    said: dict[str, Any] = {"logprobs": False, "top_logprobs": 0, "n": True, "structured_choice": False}
    return Endpoint(name, base_url=server.url, model=name, stream_usage=False, **said, **settings)


def test_a_provider_parameter_of_the_callers_wins(tmp_path: Path) -> None:
    async def reply(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(several(*["42"] * body["n"]))

    with serving(reply) as server, Ensemble([able("only", server)], **SETTINGS) as ensemble:
        ensemble.ask("?", answer="number", samples=3, params={"temperature": 1.5, "top_p": 0.9})
        body = server.received[0].body
    assert (body["n"], body["temperature"], body["top_p"]) == (3, 1.5, 0.9)


def test_a_member_whose_mass_could_still_turn_the_answer_is_waited_for(
    tmp_path: Path, impatient: Callable[[], None]
) -> None:
    """Two agree whole-heartedly: the third is given up. Two that waver: it is waited for."""
    says = {"a": ["42"] * 5, "b": ["42"] * 5}

    async def reply(request: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] == "c":
            await asyncio.Event().wait()
        return json_reply(several(*says[body["model"]]))

    with serving(reply) as server:
        endpoints = [able(name, server, input_usd_per_1m=1, output_usd_per_1m=1) for name in "abc"]
        settings = {**SETTINGS, "policy": ask_all(tmp_path), "early_stop": True}
        with Ensemble(endpoints, **settings) as ensemble:
            settled = ensemble.ask("?", answer="number", samples=5, deadline_s=60)
            says["b"] = ["43", "43", "43", "42", "42"]
            impatient()
            waited = ensemble.ask("?", answer="number", samples=5, deadline_s=20)
    assert failed(settled) == {"c": "cancelled"}
    assert failed(waited) == {"c": "timeout"}


def failed(answer: Answer) -> dict[str, str]:
    return {reply.endpoint: reply.error.kind for reply in answer.replies if reply.error}


def test_samples_without_any_answer_are_not_a_reply() -> None:
    async def reply(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(several("no idea", "who knows", usage=USAGE))

    with serving(reply) as server, Ensemble([able("only", server)], attempts=1, **SETTINGS) as ensemble:
        with pytest.raises(PoolError, match="unusable") as caught:
            ensemble.ask("?", answer="number", samples=2)
        (failure,) = caught.value.replies
        assert failure.usage == Usage(200, 100)


@pytest.mark.parametrize(
    ("kind", "texts", "label"),
    [
        ("number", ("72 clips", "#### 72", "\\boxed{71}"), "7.2e1"),
        ("short", ("**Paris**", "The answer is Paris.", "Rome"), "the Paris"),
        ("yes-no", ("True.", "Yes, it is.", "no"), "yes"),
        ("date", ("3 March 2024", "March 3rd, 2024", "4 March 2024"), "2024-03-03"),
        ("math", ("$(x-1)(x+1)$", "\\boxed{x^2-1}", "$x^2+1$"), "-1+x^2"),
        ("text", ("One  two", "One two", "two"), " One two "),
    ],
)
def test_every_kind_is_counted_and_a_label_of_it_goes_through_the_same_form(
    kind: str, texts: tuple[str, ...], label: str
) -> None:
    async def reply(_: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(several(*texts))

    with serving(reply) as server, Ensemble([able("only", server)], **SETTINGS) as ensemble:
        answer = ensemble.ask("?", answer=kind, samples=3)
        ensemble.feedback(answer, label=label)
        right = ensemble.stats().endpoints["only"].accuracy
    assert answer.replies[0].shares == ((texts[0], 2 / 3), (texts[2], 1 / 3))
    assert len(answer.candidates) == 2
    assert str(answer.value) == (texts[0] if kind == "text" else normal_form(label, kind))
    assert right > 0.5
