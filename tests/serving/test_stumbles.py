"""Mistakes of users of other libraries: each works, or one line says what to type and no endpoint is asked."""

from __future__ import annotations

import asyncio
import copy
import enum
import math
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from aiohttp import web
from pydantic import BaseModel

from focalroute import (
    Answer,
    AsyncEnsemble,
    BadLabel,
    Budget,
    BudgetExceeded,
    ConfigError,
    Endpoint,
    Ensemble,
    FeedbackError,
    PoolError,
)
from focalroute.sim import SimulatedPool
from focalroute.sim.process import pool_toml
from tests.conftest import StartPool
from tests.loopback import Server, completion, json_reply, serving, sse

QUESTION = "What is 17 + 25?"
ADD = {"type": "function", "function": {"name": "add"}}
KEY = "sk-typed0KEY1never2to3be4seen"
#: As a user writes them who runs no type checker.
endpoint_class: Any = Endpoint
budget_class: Any = Budget
ensemble_class: Any = Ensemble


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


class Person(BaseModel):
    name: str
    age: int


class Opaque:
    """pydantic knows nothing of it."""


@dataclass
class Town:
    name: str


@pytest.fixture
def pool(start_pool: StartPool) -> SimulatedPool:
    return start_pool()


@pytest.fixture
def ensemble(pool: SimulatedPool) -> Any:
    with Ensemble(pool.endpoints, policy="plurality") as made:
        yield made


# -- an argument of ask that is not there ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"temprature": 0}, "did you mean 'temperature'?"),
        ({"max_token": 5}, "did you mean 'max_tokens'?"),
        ({"timeout": 5}, "did you mean 'deadline_s'?"),
        ({"deadline": 5}, "did you mean 'deadline_s'?"),
        ({"budget": 1}, "did you mean 'max_usd'?"),
        ({"max_cost": 1}, "did you mean 'max_usd'?"),
        ({"n": 3}, "did you mean 'samples'?"),
        ({"choice": ["a", "b"]}, "did you mean 'choices'?"),
        ({"options": ["a", "b"]}, "did you mean 'choices'?"),
        ({"response_model": Person}, "did you mean 'answer'?"),
        ({"schema": Person}, "did you mean 'answer'?"),
        ({"system_prompt": "x"}, "did you mean 'system'?"),
        ({"extra_params": {}}, "did you mean 'params'?"),
        ({"functions": []}, "did you mean 'tools'?"),
        ({"model": "gpt-4o"}, "the policy chooses the endpoints"),
        ({"policy": "cascade"}, "it is a setting of the Ensemble"),
        ({"cost_weight": 0.1}, "it is a setting of the Ensemble"),
        ({"top_k": 5}, 'give it in params, such as params={"top_k": 5}'),
        ({"modalities": ["text"]}, "give it in params"),  # not: did you mean 'deadline_s'?
        ({"provider": {"sort": "price"}}, "give it in params"),
        ({"fallbacks": ["gpt-4o"]}, "the policy chooses the endpoints"),
        ({"num_retries": 2}, "attempts is a setting of the Ensemble"),
        ({"endpoints": ["a"]}, "the policy chooses the endpoints"),
        ({"history": []}, "did you mean 'messages'?"),
        ({"images": ["a.png"]}, 'give it in messages, as {"type": "image_url"'),
        ({"max_calls": 3}, "max_rounds is a setting of the Ensemble"),  # not: did you mean 'max_usd'?
        ({"api_key": "x"}, "it is a setting of an Endpoint"),
        ({"stream": True}, "call stream() instead of ask()"),
        ({"qqq": 1}, "use one of answer, choices, "),
        ({"response_format": Person}, "give answer=Model instead"),
        ({"temperature": 0, "params": {"temperature": 1}}, "temperature: is also in params"),
        ({"system": ""}, "system: give the instruction as text"),
        ({"messages": [{"role": "user", "content": "?"}]}, "query: give either the question as text or messages="),
        ({"answer": "nubmer"}, "did you mean 'number'?"),
        ({"answer": "integer"}, "did you mean 'number'?"),
        ({"answer": "boolean"}, "did you mean 'yes-no'?"),
        ({"answer": "json"}, "give a pydantic model or a JSON schema"),
        ({"answer": Colour, "choices": ["a", "b"]}, "not both"),
        ({"choices": "a,b"}, 'give a list such as ["Jupiter"'),
        ({"choices": ["a", None]}, "choices: give strings, numbers"),
        ({"choices": [1, "1"]}, "choices: must be distinct"),
        ({"choices": {"a": "32", "b": "42"}}, 'give a list such as ["Jupiter"'),
        ({"max_workers": 3}, "ask_many() takes concurrency="),
        ({"task": 5}, "task: give a topic's name as text"),
        ({"deadline_s": 0}, "deadline_s: give seconds, more than 0 and at most 86,400"),
        ({"deadline_s": math.nan}, "deadline_s: give seconds"),
        ({"deadline_s": "5"}, "deadline_s: give seconds"),
        ({"max_usd": "five"}, "max_usd: give a positive amount of USD"),
        ({"tools": [print]}, 'tools: give a list of {"type": "function"'),
        ({"tools": {"type": "function"}}, 'tools: give a list of {"type": "function"'),
        ({"tools": [{"type": "function"}]}, "tools: number 1: function.name: give the function's name, as in {"),
        ({"tools": [{"type": "function", "name": "add"}]}, "tools: number 1: function.name"),
        ({"tools": [{"name": "add", "input_schema": {}}]}, "tools: number 1: function.name"),
        ({"params": {"tools": [ADD, {"function": {"name": ""}}]}}, "tools: number 2: function.name"),
        ({"tools": [{"type": "function", "function": {"name": "add", "parameters": [1]}}]}, "function.parameters"),
        ({"answer": Opaque}, "answer: Opaque has no JSON schema (Unable to generate"),
    ],
    ids=str,
)
def test_an_unknown_argument_is_named_before_any_endpoint_is_asked(
    pool: SimulatedPool, ensemble: Ensemble, typed: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        ensemble.ask(QUESTION, **typed)
    if "stream" not in typed:
        with pytest.raises(ConfigError, match=re.escape(says)):
            ensemble.stream(QUESTION, **typed)
    assert not any(stats.calls for stats in ensemble.stats().endpoints.values())


def test_an_ask_of_nothing_says_what_it_takes(ensemble: Ensemble) -> None:
    with pytest.raises(ConfigError, match="query: give either the question as text or messages="):
        ensemble.ask()
    with pytest.raises(ConfigError, match=r"query: give a string, or a list of messages"):
        ensemble.ask({"role": "user", "content": QUESTION})  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="the messages already begin with one"):
        ensemble.ask([{"role": "system", "content": "a"}, {"role": "user", "content": "?"}], system="b")
    with pytest.raises(ConfigError, match=r"query: is a list of questions; give them to ask_many\(\)"):
        ensemble.ask(["What is 2 + 2?", "What is 3 + 3?"])  # type: ignore[list-item]
    for wrong in ({"role": "tool", "content": {"sum": 42}}, {"role": "user", "content": ""}, {"content": "42"}):
        with pytest.raises(
            ConfigError, match="query: message 2: give a role, and content that is text or a list of parts"
        ):
            ensemble.ask([{"role": "user", "content": QUESTION}, wrong])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda e, a: e.ask(QUESTION, ["32", "42"]), "ask: give all but the question by keyword, such as choices="),
        (lambda e, a: e.stream(QUESTION, "number"), "stream: give all but the question by keyword"),
        (lambda e, a: e.feedback(a, "42"), 'feedback: give it by keyword, such as label="42"'),
        (lambda e, a: e.feedback(a, True), "or reward=True"),
        (lambda e, a: e.feedback(a, correct=True), "feedback: correct: unknown argument; did you mean 'reward'?"),
        (lambda e, a: e.feedback(a, lable="42"), "did you mean 'label'?"),
        (lambda e, a: e.feedback(a, user="alice", reward=1), "did you mean 'source'?"),
        (lambda e, a: e.feedback(answer_id=a.id, reward=1), "give the answer, or its id, as the first argument"),
        (lambda e, a: e.feedback(reward=1), "feedback: missing a required argument: 'answer'"),
        (lambda e, a: e.ask_many([{"question": "?"}]), "queries[0]: unknown key 'question'; did you mean 'query'?"),
        (lambda e, a: e.ask_many([{"query": "?", "choises": "ab"}]), "did you mean 'choices'?"),
        (lambda e, a: e.ask_many("?"), "queries: give a list of queries, not a single one"),
        (lambda e, a: e.ask_many(3), "queries: give a list, or another iterable, got int"),
        (lambda e, a: e.ask_many(["?"], prompt="?"), "did you mean 'queries'?"),
        (lambda e, a: e.ask_many(["?"], concurrency=True), "concurrency: give a whole number from 1 to"),
    ],
)
def test_an_argument_in_another_place_or_by_another_name_is_an_error_that_says_how(
    ensemble: Any, call: Callable[..., object], says: str
) -> None:
    answer = ensemble.ask(QUESTION, choices=["32", "42"])
    with pytest.raises(ConfigError, match=re.escape(says)):
        call(ensemble, answer)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("choices", "an Answer has no 'choices'; use .candidates, .choice (its index) or .message"),
        ("content", "use .text"),
        ("parsed", "use .value"),
        ("cost_usd", "use .cost"),
        ("model", "use .receipt.calls"),
        ("model_dump", "use .to_dict()"),
        ("txt", "'Answer' object has no attribute 'txt'"),
    ],
)
def test_a_part_of_an_answer_by_another_clients_name_says_ours(ensemble: Any, name: str, says: str) -> None:
    answer = ensemble.ask(QUESTION, choices=["32", "42"])
    with pytest.raises(AttributeError, match=re.escape(says)):
        getattr(answer, name)
    assert not hasattr(answer, name)
    assert copy.deepcopy(answer) == pickle.loads(pickle.dumps(answer)) == answer


def test_a_failure_that_several_members_share_is_reported_once() -> None:
    pool = [Endpoint(name, model=name, base_url="http://127.0.0.1:9/v1") for name in "abc"]
    with Ensemble(pool, policy="plurality") as ensemble, pytest.raises(PoolError) as raised:
        ensemble.ask(QUESTION)
    told = str(raised.value)
    assert told.count("could not reach the service") == 1
    assert re.search(r"\(([abc]), \1 at 127.0.0.1:9: connection: could not reach .*; likewise [abc], [abc]\)$", told)


# -- a setting that is not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda e: ensemble_class(e, polcy="mean"), "Ensemble: polcy: unknown key; did you mean 'policy'?"),
        (lambda e: ensemble_class(model_list=e), "did you mean 'endpoints'?"),
        (lambda e: ensemble_class(e, routing_strategy="simple-shuffle"), "did you mean 'policy'?"),
        (lambda e: ensemble_class(e, num_retries=2), "did you mean 'attempts'?"),
        (lambda e: ensemble_class(e, fallbacks=[]), "where an endpoint fails, another of the pool is asked"),
        (lambda e: ensemble_class(e, api_key="x"), "api_key: unknown key; give it to each Endpoint"),
        (lambda e: ensemble_class(e, strong_model="x"), "give both as endpoints, each with its price"),
        (lambda e: ensemble_class(e, timeout=5), "did you mean 'deadline_s'?"),
        (lambda e: ensemble_class(e, max_retries=5), "did you mean 'attempts'?"),
        (lambda e: ensemble_class(e, temperature=0), "give it to ask()"),
        (lambda e: ensemble_class(e, usd_total=5), "give budget=Budget(usd_total=...)"),
        (lambda e: ensemble_class(e, budget=5), "give a Budget, such as Budget(usd_total=20), got int"),
        (lambda e: ensemble_class(*e[:2]), "give settings by keyword"),
        (lambda e: ensemble_class(e[0]), "endpoints: give a list of Endpoint objects or a pool file, got Endpoint"),
        (lambda e: ensemble_class(["gpt-4o"]), 'got str; write Endpoint("name", model="...", base_url="...")'),
        (lambda e: ensemble_class([{"name": "a"}]), 'got dict; write Endpoint("name"'),
        (lambda e: ensemble_class(["openai/gpt-5-mini"]), "got str; write Endpoint('openai/gpt-5-mini')"),
        (lambda e: ensemble_class(e, store="postgresql://h/x"), "postgresql: is not known; give a file, or redis://"),
        (lambda e: ensemble_class(e, store="redis:/h"), "store: redis: is not known; give a file, or redis://"),
        (lambda e: ensemble_class(e, store=True), "store: give a file or a redis:// address, got bool"),
        (lambda e: ensemble_class(e, policy=5), "policy: give a folder or a policy's name, got int"),
        (lambda e: ensemble_class(e, policy=""), "policy: is empty; give a folder or a policy's name, or leave it out"),
        (lambda e: ensemble_class("nowhere.toml"), "nowhere.toml: cannot be read: No such file"),
        (
            lambda e: ensemble_class("openai/gpt-5-mini"),
            "a pool of one endpoint is [Endpoint('openai/gpt-5-mini')], and focalroute init writes a pool file",
        ),
        (lambda e: endpoint_class("a", model="m", expected_accuracy=84), "share from 0 to 1, such as 0.84 for 84 %"),
        (lambda e: ensemble_class(), "FOCALROUTE_POOL is not set, and there is no pool.toml here"),
        (lambda e: ensemble_class(e, policy="majority"), "did you mean 'plurality'?"),
        (lambda e: ensemble_class(e, policy="all"), "did you mean 'plurality'?"),
        (lambda e: ensemble_class(e, policy="cheapest"), "did you mean 'cascade'?"),
        (lambda e: ensemble_class(e, policy="best"), "did you mean 'best-single'?"),
        (lambda e: ensemble_class(e, policy="rl-focal"), "is replayed only, by `focalroute eval"),
        (lambda e: ensemble_class(e, policy="der"), "has to be trained: `focalroute eval --live"),
        (lambda e: ensemble_class(e, policy="policy"), 'For a new folder give "./policy"'),
        (lambda e: endpoint_class("a", model="m", url="http://h/v1"), "url: unknown key; did you mean 'base_url'?"),
        (lambda e: endpoint_class("a", model="m", order=1), "order: unknown key; leave it out"),
        (lambda e: endpoint_class("a", model="m", api_key="os.environ/K"), "api_key: names an environment variable"),
        (lambda e: endpoint_class("hosted_vllm/m"), "service: unknown 'hosted_vllm'; did you mean 'vllm'?"),
        (lambda e: endpoint_class("a", model="m", api_base="http://h/v1"), "did you mean 'base_url'?"),
        (
            lambda e: endpoint_class("a", model="m", temperature=0),
            'give it in params, such as params={"temperature": 0',
        ),
        (lambda e: endpoint_class("a", model="m", timeout=5), "did you mean 'timeout_s'?"),
        (lambda e: endpoint_class("a", model="m", provider="openai"), "did you mean 'service'?"),
        (lambda e: endpoint_class("a", model="m", context_window=8192), "did you mean 'context_tokens'?"),
        (
            lambda e: endpoint_class("a", model="m", base_url="http://h/v1/chat/completions"),
            "is the address of a call; end it before that: http://h/v1",
        ),
        (lambda e: endpoint_class("a", model="m", api_key_env=KEY), "never the key itself"),
        (lambda e: endpoint_class("a", model="m", api_key="two\nlines"), "name its variable in api_key_env"),
        (lambda e: endpoint_class("a", "m"), "Endpoint: give settings by keyword"),
        (lambda e: endpoint_class("a", model="m", verify=None), "verify: give True, False, a file or folder"),
        (lambda e: budget_class(5), "Budget: give settings by keyword"),
        (lambda e: budget_class(max_usd=5), "did you mean 'max_usd_per_ask'?"),
        (lambda e: budget_class(usd_per_day=5), "did you mean 'usd_per_period'?"),
    ],
)
def test_a_setting_that_is_not_there_is_named(
    pool: SimulatedPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[..., object],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOCALROUTE_POOL", raising=False)
    with pytest.raises(ConfigError, match=re.escape(says)):
        make(pool.endpoints)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('baseurl = "http://h/v1"', "did you mean 'base_url'?"),
        (f'api_key = "{KEY}"', "api_key: a pool file cannot hold one; give base_url, and the key's variable in"),
        ('[ensemble]\npolcy = "mean"', "did you mean 'policy'?"),
        ("[budget]\nusd_per_day = 5", "did you mean 'usd_per_period'?"),
        ("price = 3", "unknown key 'price'; give input_usd_per_1m and output_usd_per_1m"),
    ],
)
def test_a_key_of_a_pool_file_that_is_not_there_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(f'[[endpoint]]\nname = "a"\nmodel = "m"\n{line}\n')
    with pytest.raises(ConfigError, match=re.escape(says)) as raised:
        Ensemble(path)
    assert KEY not in str(raised.value)


# -- what works --------------------------------------------------------------------------------------------------------


def test_openais_parameters_and_a_system_message_go_to_every_member() -> None:
    async def reply(request: web.Request, body: Any) -> web.StreamResponse:
        if body.get("stream"):
            return await sse(
                request, {"choices": [{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]}, "[DONE]"
            )
        return json_reply(completion("42"))

    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    with serving(reply) as server, Ensemble([endpoint(server)]) as ensemble:
        ensemble.ask(messages=[{"role": "user", "content": "?"}], system="Be brief.", temperature=0, max_tokens=5)
        ensemble.ask("?", seed=1, stop=["x"], tools=tools, top_p=None, prompt_cache_key="c", params={"top_k": 3})
        with ensemble.stream("?", temperature=0.5) as stream:
            assert "".join(stream)
    first, second, third = (received.body for received in server.received)
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert (first["temperature"], first["max_tokens"]) == (0, 5)
    assert (second["seed"], second["stop"], second["tools"], second["top_k"]) == (1, ["x"], tools, 3)
    assert second["prompt_cache_key"] == "c"
    assert "top_p" not in second
    assert third["temperature"] == 0.5


def endpoint(server: Server, **settings: Any) -> Endpoint:
    able: dict[str, Any] = {
        "logprobs": False,
        "top_logprobs": 0,
        "n": False,
        "structured_choice": False,
        "stream_usage": False,
    }
    return Endpoint("only", model="m", base_url=server.url, **able, **settings)


def test_an_iterator_is_read_once_for_all_queries(ensemble: Ensemble) -> None:
    """The first to read it left the others none."""
    answers = ensemble.ask_many([QUESTION, QUESTION], choices=map(str, [32, 42]))
    assert [one.candidates for one in answers if isinstance(one, Answer)] == [("32", "42")] * 2


def test_a_key_that_was_given_is_sent_and_written_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def reply(request: web.Request, body: Any) -> web.StreamResponse:
        if body["messages"][0]["content"] == "fail":
            return json_reply({"error": {"message": f"wrong key {KEY}"}}, status=401)
        return json_reply(completion("42"))

    with serving(reply) as server:
        only = endpoint(server, api_key=KEY)
        with Ensemble([only], store=tmp_path / "s.db") as ensemble:
            answer = ensemble.ask("?")
            with pytest.raises(Exception, match="every asked endpoint failed") as raised:
                ensemble.ask("fail")
            shown = [repr(only), repr(answer), answer.receipt.to_json(), str(raised.value), caplog.text]
            assert not any(KEY in text for text in shown)
        assert server.received[0].headers["Authorization"] == f"Bearer {KEY}"
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.iterdir())


def test_a_pool_file_is_found_by_its_path_by_its_variable_or_here(
    pool: SimulatedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pool.toml").write_text(f'{pool_toml(pool.endpoints)}\n[ensemble]\npolicy = "mean"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOCALROUTE_POOL", raising=False)
    for made in (Ensemble(), Ensemble("pool.toml"), Ensemble(tmp_path / "pool.toml", policy="mean")):
        with made:
            assert made.stats().policy == "mean"
    (tmp_path / "pool.toml").rename(tmp_path / "other.toml")
    monkeypatch.setenv("FOCALROUTE_POOL", str(tmp_path / "other.toml"))
    with Ensemble(policy="plurality") as made:
        assert made.stats().policy == "plurality"


@pytest.mark.parametrize(
    ("answer", "reply", "value", "label"),
    [
        ("number", "It is 42.", 42, 42),
        ("number", "It is 0.5.", 0.5, Decimal("0.5")),
        (int, "It is 1,042.", 1042, 1042),
        ("number", f"It is {math.factorial(50)}.", math.factorial(50), math.factorial(50)),
        (int, f"It is {math.factorial(50)}.", math.factorial(50), math.factorial(50)),
        (float, "It is 3/4.", 0.75, 0.75),
        (Decimal, "It costs $0.10.", Decimal("0.1"), Decimal("0.10")),
        (Decimal, f"It is {'1' * 40}.5.", Decimal(f"{'1' * 40}.5"), Decimal(f"{'1' * 40}.5")),
        (bool, "Yes, it is.", True, True),
        (date, "On March 3rd, 2024.", date(2024, 3, 3), date(2024, 3, 3)),
        (str, "Hello.", "Hello.", "Hello."),
        (Person, '{"name": "Ann", "age": 5}', Person(name="Ann", age=5), {"name": "Ann", "age": 5}),
        (list[Person], '[{"name": "Ann", "age": 5}]', [Person(name="Ann", age=5)], [Person(name="Ann", age=5)]),
        (Town, '{"name": "Rome"}', Town("Rome"), Town("Rome")),
        (dict[str, int], '{"a": 1}', {"a": 1}, {"a": 1}),
        (Colour, "B", Colour.BLUE, Colour.BLUE),
        (Level, "A", Level.LOW, Level.LOW),
        (Literal[7, 8], "B", 8, 8),
    ],
    ids=str,
)
def test_the_answer_is_of_the_type_asked_for_and_so_may_its_label_be(
    answer: Any, reply: str, value: Any, label: Any
) -> None:
    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion(reply))

    with serving(say) as server, Ensemble([endpoint(server)]) as ensemble:
        given = ensemble.ask("?", answer=answer)
        assert (given.value, type(given.value)) == (value, type(value))
        ensemble.feedback(given, label=label)
        assert ensemble.stats().endpoints["only"].accuracy > 0.5


@pytest.mark.parametrize(("answer", "reply"), [(int, "It is 2.5."), (date, "In March 2024."), (bool, "It depends.")])
def test_a_reply_without_a_value_of_the_type_is_not_usable(answer: type, reply: str) -> None:
    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion(reply))

    with (
        serving(say) as server,
        Ensemble([endpoint(server)]) as ensemble,
        pytest.raises(Exception, match="the reply holds no answer of the kind asked for"),
    ):
        ensemble.ask("?", answer=answer)


@pytest.mark.parametrize("options", [{}, {"answer": int}, {"answer": Person}, {"choices": ["a", "b"]}], ids=str)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"content": "\n"}, r"^ask another model \(or without stop, if it is set\): .*unusable: the reply is empty"),
        (
            {"content": None, "reasoning_content": "It is b."},
            r"^check the service's reasoning parser, .*unusable: the reply holds thinking alone",
        ),
    ],
)
def test_an_empty_reply_is_named_as_such(options: Any, fields: Any, said: str) -> None:
    """To open text it was advised to ask without choices, answer and tools."""

    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        message = {"role": "assistant", **fields}
        return json_reply(completion(choices=[{"index": 0, "message": message, "finish_reason": "stop"}]))

    with serving(say) as server, Ensemble([endpoint(server)]) as ensemble, pytest.raises(PoolError, match=said):
        ensemble.ask("?", **options)


@pytest.mark.parametrize(
    "choices", [[32, 42], [True, False], Colour, list(Level), [date(2024, 1, 1), date(2025, 1, 1)]]
)
def test_choices_may_be_other_values_than_texts(ensemble: Ensemble, choices: Any) -> None:
    answer = ensemble.ask(QUESTION, choices=choices)
    assert answer.choice is not None
    assert answer.value is list(choices)[answer.choice]
    ensemble.feedback(answer, label=answer.value)
    assert ensemble.stats().endpoints["almanac-12b"].seen == 1


def test_a_structured_reply_that_is_not_valid_is_asked_for_once_more() -> None:
    replies = ["Ann is five.", '{"name": "Ann", "age": "five"}', '{"name": "Ann", "age": 5}']

    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion(replies.pop(0)))

    with serving(say) as server, Ensemble([endpoint(server)], attempts=1) as ensemble:
        with pytest.raises(Exception, match="not JSON that is valid against the schema"):
            ensemble.ask("Who?", answer=Person)
        replies.insert(0, '{"name": "Ann", "age": "five"}')
        answer = ensemble.ask("Who?", answer=Person)
        assert answer.value == Person(name="Ann", age=5)
        assert len(answer.receipt.calls) == 1
    *_, repair = (received.body["messages"] for received in server.received)
    assert [message["role"] for message in repair] == ["user", "assistant", "user"]
    assert "age: Input should be a valid integer" in repair[-1]["content"]


def test_a_tool_is_called_as_its_schema_says() -> None:
    tool = {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    }
    arguments = ['{"a": 1}', '{"a": "one"}']

    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": arguments.pop(0)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        return json_reply(completion(choices=[{"index": 0, "message": message, "finish_reason": "tool_calls"}]))

    with serving(say) as server, Ensemble([endpoint(server)]) as ensemble:
        assert ensemble.ask("?", tools=[{"type": "function", "function": tool}]).tool_calls
        with pytest.raises(Exception, match="a tool with arguments that its schema does not allow"):
            ensemble.ask("?", tools=[{"type": "function", "function": tool}])


# -- feedback ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ({}, FeedbackError, "give exactly one of reward, label, label_index, preferred and score"),
        ({"reward": 1, "label": "1"}, FeedbackError, "give exactly one of"),
        ({"reward": 5}, FeedbackError, "must be a number in [-1, 1]"),
        ({"score": 4}, FeedbackError, "score: must be a number in [0, 1]; got 4"),
        ({"label": 0}, BadLabel, "give one of them, or its label_index"),
        ({"label_index": 3}, BadLabel, "label_index: must be a whole number from 0 to 2; got 3"),
        ({"reward": 1, "source": ""}, FeedbackError, "source: give a name of at most 200"),
        ({"reward": 1, "source": "x" * 201}, FeedbackError, "source: give a name of at most 200"),
        ({"reward": 1, "source": "\ud800"}, FeedbackError, "source: give a name of at most 200"),
        ({"preferred": "4"}, BadLabel, "preferred: is not among the candidates"),
    ],
    ids=str,
)
def test_feedback_that_cannot_be_taken_says_why(
    ensemble: Ensemble, said: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=re.escape(says)):
        ensemble.feedback(ensemble.ask(QUESTION, choices=["1", "2", "3"]), **said)


@pytest.mark.parametrize("answer", [None, "\ud800", {"id": "x"}], ids=ascii)
def test_feedback_needs_an_answer_or_an_id(ensemble: Ensemble, answer: Any) -> None:
    with pytest.raises(FeedbackError, match="give the Answer, or its id as text"):
        ensemble.feedback(answer, reward=1)


DIGITS = UUID("12345678123456781234567812345678")  # which as text is the JSON of a number, too


@pytest.mark.parametrize(
    ("kind", "said", "labels"),
    [
        (datetime, '"2026-01-31T00:00:00"', ["2026-01-31", '"2026-01-31"', datetime(2026, 1, 31)]),
        (datetime, "<think>?</think>\n2026-01-31T00:00:00", ["2026-01-31"]),  # the reply lacks JSON's quotes
        (time, '"10:30:00"', ["10:30", time(10, 30)]),
        (timedelta, '"PT1H"', ["PT1H", "01:00:00", timedelta(hours=1)]),
        (UUID, f'"{DIGITS}"', [str(DIGITS), DIGITS.hex, DIGITS]),
    ],
)
def test_the_label_of_a_moment_or_an_id_may_be_text(kind: Any, said: str, labels: list[Any]) -> None:
    """It was refused with a message that offered it."""

    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion(said))

    with serving(say) as server:
        for label in labels:
            with Ensemble([endpoint(server)]) as ensemble:
                answer = ensemble.ask("When?", answer=kind)
                with pytest.raises(BadLabel, match="ISO 8601"):
                    ensemble.feedback(answer, label="soon")
                ensemble.feedback(answer, label=label)
                assert ensemble.stats().endpoints["only"].accuracy > 0.5


@pytest.mark.parametrize("label", [42, "Ann", ["Ann", 5], '{"name": "Ann"}', {"name": "Ann", "age": "old"}], ids=str)
def test_a_label_that_is_not_an_instance_of_the_model_is_refused(label: Any) -> None:
    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion('{"name": "Ann", "age": 5}'))

    with serving(say) as server, Ensemble([endpoint(server)]) as ensemble:
        answer = ensemble.ask("Who?", answer=Person)
        with pytest.raises(BadLabel, match=r"valid Person; correct (name|age|it)|give an instance of the model"):
            ensemble.feedback(answer, label=label)
        ensemble.feedback(answer, label='{"name": "Ann", "age": 5}')
        assert ensemble.stats().endpoints["only"].accuracy > 0.5


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [Ensemble, AsyncEnsemble])
def test_an_ensemble_is_not_copied(pool: SimulatedPool, kind: Any, copied: Callable[[object], object]) -> None:
    made = kind(pool.endpoints)
    with pytest.raises(TypeError, match="cannot be pickled or copied; make one where it is needed"):
        copied(made)
    made.close() if kind is Ensemble else asyncio.run(made.aclose())


def accuracies(ensemble: Ensemble, answer: Answer) -> dict[int | None, float]:
    """The accuracy of the endpoints that gave each candidate."""
    stats = ensemble.stats().endpoints
    return {call.candidate: stats[call.endpoint].accuracy for call in reversed(answer.receipt.calls)}


def test_a_label_is_matched_by_its_value_and_an_index_is_said_to_be_one(ensemble: Ensemble) -> None:
    answer = ensemble.ask("Which?", choices=["1", "2", "3"])
    ensemble.feedback(answer, label=2)
    by_value = accuracies(ensemble, answer)
    ensemble.feedback(answer, label_index=1)
    assert accuracies(ensemble, answer) == by_value


def test_second_thoughts_replace_the_first_and_a_grade_lies_between(pool: SimulatedPool) -> None:
    seen = []
    with Ensemble(pool.endpoints[:1]) as ensemble:
        answer = ensemble.ask(QUESTION, choices=["1", "2"])
        for said in ({"reward": 1}, {"reward": -1}, {"score": 0.75}, {"reward": 0.5}, {"reward": True}):
            ensemble.feedback(answer, **said)
            (stats,) = ensemble.stats().endpoints.values()
            seen.append(stats.accuracy)
        assert stats.seen == 1
    assert seen[0] == seen[4] > seen[2] == seen[3] > seen[1]


def test_a_preference_tells_of_two_candidates_only() -> None:
    async def say(request: web.Request, body: Any) -> web.StreamResponse:
        return json_reply(completion({"a": "1", "b": "1", "c": "2", "d": "3"}[body["model"]]))

    able = {"logprobs": False, "n": False, "structured_choice": False}
    with serving(say) as server:
        pool = [Endpoint(name, model=name, base_url=server.url, **able) for name in "abcd"]  # type: ignore[arg-type]
        with Ensemble(pool, policy="plurality", learn_from_agreement=False) as ensemble:
            answer = ensemble.ask("?", choices=["1", "2", "3"])
            ensemble.feedback(answer, preferred="2")
            stats = ensemble.stats().endpoints
            assert [stats[name].seen for name in "abcd"] == [1, 1, 1, 0]
            assert stats["c"].accuracy > stats["a"].accuracy
            ensemble.feedback(answer, preferred=1)
            stats = ensemble.stats().endpoints
            assert stats["c"].accuracy < stats["a"].accuracy


def test_a_customer_who_signs_up_later_gets_a_limit(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints) as ensemble:
        ensemble.ask(QUESTION, tags=["ada"])
        ensemble.limit_tags({"ada": "0.0000001"})
        ensemble.ask(QUESTION)
        with pytest.raises(BudgetExceeded) as refused:
            ensemble.ask(QUESTION, tags=["ada"])
    assert refused.value.name == "usd_per_tag.ada"


def test_a_budget_that_is_too_small_says_what_was_spent_and_what_it_takes(pool: SimulatedPool) -> None:
    with Ensemble(pool.endpoints, budget=Budget(usd_total="0.0000001")) as ensemble:
        with pytest.raises(BudgetExceeded, match=r"\$0\.00 is spent .* has to reserve \$0\.\d") as raised:
            ensemble.ask(QUESTION)
        assert raised.value.needed is not None
        assert raised.value.needed > raised.value.limit
