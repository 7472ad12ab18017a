"""Structured answers: read tolerantly, checked strictly, fused field by field where fields are closed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, field_serializer, field_validator, model_validator

from focalroute import Answer, BadLabel, ConfigError, Endpoint, Ensemble, PoolError
from focalroute.answers.structured import Structure, closed_fields, elect, structure_of
from focalroute.core.json_values import canonical
from focalroute.sim import Fault, SimulatedModel, SimulatedPool
from focalroute.sim.process import DialectName
from tests.loopback import Server, completion, json_reply, serving
from tests.policies import ask_all


class Place(BaseModel):
    country: Literal["FR", "DE"]
    street: str = ""


class Ticket(BaseModel):
    """A nested model with closed fields and open ones."""

    team: Literal["billing", "shipping"]
    urgent: bool
    place: Place | None = None
    summary: str
    amounts: list[float] = []


SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "note": {"type": "string"}},
    "required": ["colour", "note"],
    "additionalProperties": False,
}


def structure(wanted: Any) -> Structure:
    found = structure_of(wanted)
    assert found is not None
    return found


# -- what is closed ---------------------------------------------------------------------------------------------------


def test_the_closed_fields_of_a_model_are_found_through_references_and_options() -> None:
    assert structure(Ticket)._fields == (("team",), ("urgent",), ("place", "country"))


@pytest.mark.parametrize(
    ("schema", "fields"),
    [
        ({"enum": [1, 2]}, ((),)),
        ({"properties": {"a": {"const": 1}, "b": {"type": "number"}}}, (("a",),)),
        ({"properties": {"a": {"anyOf": [{"enum": [1]}, {"type": "null"}]}}}, (("a",),)),
        ({"properties": {"a": {"type": ["boolean", "null"]}}}, (("a",),)),
        ({"properties": {"a": {"oneOf": [{"enum": [1]}, {"type": "string"}]}}}, ()),
        ({"properties": {"a": {"allOf": [{"$ref": "#/$defs/x"}]}}, "$defs": {"x": {"enum": ["q"]}}}, (("a",),)),
        ({"properties": {"a": {"type": "array", "items": {"enum": [1]}}}}, ()),
        ({"properties": {"a": {"properties": {"b": {"properties": {"c": {"enum": [1]}}}}}}}, (("a", "b", "c"),)),
        ({"properties": {"next": {"$ref": "#"}, "a": {"enum": [1]}}}, (("next", "a"), ("a",))),
        ({"$ref": "https://example.org/schema"}, ()),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, ()),
        (True, ()),
    ],
)
def test_which_fields_are_closed(schema: Any, fields: Any) -> None:
    assert closed_fields(schema) == fields


# -- election ---------------------------------------------------------------------------------------------------------


def first(candidates: list[Any], masses: list[float], *fields: tuple[str, ...]) -> tuple[Any, int | None]:
    election = next(elect(candidates, masses, fields))
    return election.value, election.candidate


def test_each_closed_field_is_elected_by_itself_and_the_rest_comes_from_an_agreeing_member() -> None:
    candidates = [
        {"a": 1, "b": True, "note": "x"},
        {"a": 2, "b": True, "note": "y"},
        {"a": 2, "b": False, "note": "z"},
    ]
    assert first(candidates, [0.4, 0.25, 0.35], ("a",), ("b",)) == (candidates[1], 1)
    election = next(elect(candidates, [0.4, 0.25, 0.35], (("a",), ("b",))))
    assert election.shares == pytest.approx({"a": 0.6, "b": 0.65})


def test_a_combination_that_no_member_gave_takes_its_rest_from_the_member_that_agrees_most() -> None:
    candidates = [
        {"a": 1, "b": 1, "c": 2, "note": "x"},
        {"a": 1, "b": 2, "c": 1, "note": "y"},
        {"a": 2, "b": 1, "c": 1, "note": "z"},
    ]
    value, candidate = first(candidates, [0.3, 0.4, 0.3], ("a",), ("b",), ("c",))
    assert (value, candidate) == ({"a": 1, "b": 1, "c": 1, "note": "y"}, None)
    elections = list(elect(candidates, [0.3, 0.4, 0.3], (("a",), ("b",), ("c",))))
    assert (elections[-1].value, elections[-1].candidate) == (candidates[1], 1)
    assert candidates[1]["b"] == 2  # the candidates stay as they are


def test_a_missing_field_is_a_value_too() -> None:
    candidates = [{"note": "x"}, {"a": 1, "note": "y"}, {"note": "z"}]
    assert first(candidates, [0.3, 0.4, 0.3], ("a",)) == (candidates[0], 0)


def test_a_nested_field_without_a_place_is_not_forced_in() -> None:
    """The elected part has an object, the likeliest who agrees most has none."""
    candidates: list[Any] = [
        {"p": None, "a": 1, "b": 1},
        {"p": {"k": 1}, "a": 2, "b": 1},
        {"p": {"k": 1}, "a": 1, "b": 2},
    ]
    elections = list(elect(candidates, [0.34, 0.33, 0.33], (("p", "k"), ("a",), ("b",))))
    assert all(election.value in (*candidates, {"p": {"k": 1}, "a": 1, "b": 1}) for election in elections)


VALUES = st.sampled_from([1, 2, True, "x", None])
OBJECTS = st.fixed_dictionaries({}, optional={"a": VALUES, "b": VALUES, "p": st.fixed_dictionaries({"k": VALUES})})


@given(st.lists(st.tuples(OBJECTS, st.floats(0.01, 1)), min_size=1, max_size=6))
def test_the_elected_value_of_every_field_has_the_most_mass(votes: list[tuple[dict[str, Any], float]]) -> None:
    """By brute force over the candidates' values; the last resort is always a whole candidate."""
    candidates, masses = [value for value, _ in votes], [mass for _, mass in votes]
    fields = (("a",), ("b",))
    elections = list(elect(candidates, masses, fields))
    for (name,) in fields:
        mass: dict[str, float] = {}
        for value, weight in votes:
            key = canonical(value[name]) if name in value else "absent"
            mass[key] = mass.get(key, 0) + weight
        assert elections[0].shares[name] == pytest.approx(max(mass.values()))
    assert elections[-1].candidate is not None
    assert elections[-1].value == candidates[elections[-1].candidate]


# -- reading ----------------------------------------------------------------------------------------------------------

GOOD = '{"colour": "red", "note": "n"}'
FORM = '{"colour":"red","note":"n"}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Here you are:\n```json\n{GOOD}\n```\nAnything else?",
        f"Not this: ```json\n{{}}\n``` but this: ```json\n{GOOD}\n```",
        f"The answer is {GOOD}.",
        f'<think>{{"colour": "blue", "note": "m"}}</think>{GOOD}',
        f"{GOOD} {GOOD}",
        f"The {{colour}} is in [brackets]: {GOOD}\n\nThe {{note}} is short.",
        f'{{"colour": "green"}} is not allowed. {GOOD} is.',
        '{"colour": "red", "note": "n",}',
        '{"colour": "red", /* as\n asked */ "note": "n", /* all */\n}',
        'So:\n```json\n{\n  "colour": "red", // as asked\n  "note": "n", // it\'s short\n}\n```',
        "{'colour': 'red', \"note\": 'n',}",
    ],
)
def test_fences_and_words_around_it_do_not_matter(text: str) -> None:
    assert structure(SCHEMA)(text) == FORM


def test_strings_that_look_like_comments_or_last_commas_are_kept() -> None:
    assert structure(SCHEMA)('{"colour": "red", "note": "//a \\",}",}') == r'{"colour":"red","note":"//a \",}"}'


def test_a_dict_as_python_writes_it_is_read() -> None:
    """A member was asked again for it."""
    wanted = structure({"type": "object", "required": ["sure", "why", "by"]})
    form = r"""{"by":null,"sure":true,"why":"it's \"so\""}"""
    assert wanted(r"""{'sure': True, 'why': 'it\'s "so"', 'by': None}""") == form
    assert wanted(r"""{'sure': True, 'why': 'it\'s \"so\"', 'by': None}""") == form
    assert wanted("{'sure': True, 'why': 'it's so', 'by': None}") is None


def test_strings_may_hold_line_breaks_and_tabs_as_models_write_them() -> None:
    """A member was asked again for it."""
    assert structure(SCHEMA)('{"colour": "red", "note": "one\n\ttwo"}') == r'{"colour":"red","note":"one\n\ttwo"}'


@pytest.mark.parametrize(
    "text",
    [
        "", "red", "{", '{"colour": "green", "note": "n"}', '{"colour": "red"}', f"[{GOOD}]",
        f'{GOOD} or {GOOD.replace("red", "blue")}',
        '{"colour": "red", "note": NaN}', "[" * 200_000, '{"colour": "red", "note": "' + "x" * 300_000 + '"}',
        "```json\n" * 20_000, '{"a": [' * 30_000, "{} [" * 60_000, '{"a": 1} ' * 20_000,
        '\\"' * 100_000, "//" * 100_000, "/* " * 80_000, ", " * 100_000, ",//" * 60_000, ",//\n" * 60_000,
        ",/* " * 60_000, '"' * 200_001,
        "{'a': " * 60_000, "'" * 200_001, "\\'" * 100_000,
    ],
)  # fmt: skip
def test_an_invalid_object_is_not_an_answer(text: str) -> None:
    assert structure(SCHEMA)(text) is None


def test_a_model_reads_what_pydantic_reads_and_gives_its_own_instance() -> None:
    ticket = structure(Ticket)
    form = ticket('{"team": "billing", "urgent": "true", "summary": "s", "amounts": [1, 2.0]}')
    assert form == '{"amounts":[1,2],"place":null,"summary":"s","team":"billing","urgent":true}'
    assert ticket.value(form) == Ticket(team="billing", urgent=True, summary="s", amounts=[1, 2])
    assert ticket('{"team": "billing"}') is None


def test_the_value_of_a_model_that_writes_other_names_than_it_reads_is_kept_unchanged() -> None:
    class Odd(BaseModel):
        inner: Literal["x"] = Field(validation_alias="reads", serialization_alias="writes")

    odd = structure(Odd)
    form = odd('{"reads": "x"}')
    assert form == '{"reads":"x"}'
    assert odd.value(form).inner == "x"


class Reads(BaseModel):
    why: str = Field("", validation_alias=AliasChoices("because", "reason"))


class Thinks(BaseModel):
    thought: str = Field("", exclude=True)
    done: bool


class Doubles(BaseModel):
    size: int

    @field_validator("size")
    @classmethod
    def doubled(cls, size: int) -> int:
        return 2 * size


@pytest.mark.parametrize(
    ("model", "said", "value"),
    [
        (Reads, '{"because":"it rains"}', Reads.model_validate({"reason": "it rains"})),
        (Doubles, '{"size":2}', Doubles(size=2)),
        (Thinks, '{"done":true,"thought":"so"}', Thinks(thought="so", done=True)),
    ],
)
def test_values_that_a_model_would_read_differently_are_kept_unchanged(
    service: Service, server: Server, model: Any, said: str, value: BaseModel
) -> None:
    """The name that it wrote was ignored in reading, so that the default was the answer; a validator was run twice."""
    with Ensemble(endpoints(service, server, said, said), policy="plurality") as ensemble:
        answer = ensemble.ask("Why?", answer=model)
        assert answer.value == value
        with pytest.raises(BadLabel, match="with the names that it reads"):
            ensemble.feedback(answer, label=value)
        ensemble.feedback(answer, label=json.loads(said))
        assert all(one.accuracy > 0.5 for one in ensemble.stats().endpoints.values())


def test_references_are_never_fetched() -> None:
    """A schema refers to its own parts only."""

    async def handler(_: web.Request, __: Any) -> web.StreamResponse:
        return json_reply({"type": "object"})

    with serving(handler) as server:
        with pytest.raises(ConfigError, match="refer to a part of the same schema"):
            structure({"$ref": f"{server.url}/schema.json"})
        assert server.received == []


@pytest.mark.parametrize("wanted", [{"type": "nonsense"}, {"enum": 3}, {"properties": {"a": {1, 2}}}])
def test_a_wrong_schema_is_refused_at_the_door(wanted: Any) -> None:
    with pytest.raises(ConfigError, match="answer"):
        structure_of(wanted)


@pytest.mark.parametrize("around", [{"name": "sum"}, {"type": "json_schema", "json_schema": {}}])
def test_a_response_format_in_place_of_its_schema_is_refused(around: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match='is a response_format; give what is under its "schema" alone'):
        structure_of({**around, "schema": {"type": "object"}})


def test_without_jsonschema_a_schema_is_refused_and_a_model_works(tmp_path: Path) -> None:
    (tmp_path / "jsonschema.py").write_text("raise ImportError")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from pydantic import BaseModel
from focalroute.answers.structured import structure_of
class Wanted(BaseModel):
    a: bool
assert structure_of(Wanted)('{"a": true}') == '{"a":true}'
structure_of({"type": "object"})
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "pip install 'focalroute[schema]'" in done.stderr


def test_a_schema_is_sent_as_strict_only_if_it_is() -> None:
    """A model is made so, as OpenAI's own library does; a schema of the caller's is passed on as it is."""
    held = structure(Ticket).response_format["json_schema"]
    assert (held["name"], held["strict"]) == ("Ticket", True)
    assert held["schema"]["required"] == ["team", "urgent", "place", "summary", "amounts"]
    assert held["schema"]["$defs"]["Place"]["additionalProperties"] is False
    assert "default" not in json.dumps(held["schema"])
    assert structure(SCHEMA).response_format["json_schema"] == {"name": "answer", "strict": True, "schema": SCHEMA}
    loose = {"title": "odd name!", "type": "object", "properties": {"default": {"type": "string"}}}
    held = structure(loose).response_format["json_schema"]
    assert (held["name"], held["strict"], held["schema"]) == ("odd_name_", False, loose)


# -- over HTTP --------------------------------------------------------------------------------------------------------


class Service:
    """Each model's reply; models in ``refuses`` take no ``response_format``."""

    def __init__(self) -> None:
        self.says: dict[str, str] = {}
        self.refuses: set[str] = set()

    async def handle(self, _: web.Request, body: Any) -> web.StreamResponse:
        if body["model"] in self.refuses and "response_format" in body:
            return json_reply({"error": {"message": "Invalid schema", "code": "invalid_request_error"}}, 400)
        return json_reply(completion(self.says[body["model"]]))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[Server]:
    with serving(service.handle) as running:
        yield running


def endpoints(service: Service, server: Server, *says: str, held: bool = True) -> list[Endpoint]:
    service.says = {f"m{i}": text for i, text in enumerate(says)}
    return [
        Endpoint(
            name, base_url=server.url, model=name, logprobs=False, top_logprobs=0, n=False, structured_choice=held,
            stream_usage=False,
        )
        for name in service.says
    ]  # fmt: skip


def ticket(team: str, urgent: bool, summary: str, **more: Any) -> str:
    return json.dumps({"team": team, "urgent": urgent, "summary": summary, **more})


def ask(members: list[Endpoint], wanted: Any = Ticket, **options: Any) -> Answer:
    with Ensemble(members, policy="plurality") as ensemble:
        return ensemble.ask("Which team?", answer=wanted, **options)


def test_fields_are_fused_and_the_answer_is_an_instance_of_the_model(service: Service, server: Server) -> None:
    """Two say billing, two say urgent; only one says both, and its summary is given."""
    members = endpoints(
        service, server, ticket("billing", False, "a"), ticket("billing", True, "b"), ticket("shipping", True, "c")
    )
    answer = ask(members)
    assert answer.value == Ticket(team="billing", urgent=True, summary="b")
    assert json.loads(answer.text)["summary"] == "b"
    assert answer.text == answer.candidates[1]
    assert answer.shares == pytest.approx({"team": 2 / 3, "urgent": 2 / 3, "place.country": 1})
    assert answer.confidence < 2 / 3  # the least share, less the chance that none is right
    body = server.received[0].body
    assert body["response_format"]["json_schema"]["name"] == "Ticket"
    assert "schema" not in body["messages"][0]["content"]


def test_a_lone_member_is_as_sure_of_an_object_as_of_a_plain_answer(service: Service, server: Server) -> None:
    """Its fields have all the mass, and it is as right as an unknown endpoint usually is."""
    members = endpoints(service, server, ticket("billing", False, "a"))
    answer, word = ask(members), ask(members, "short")
    assert set(answer.shares.values()) == {1.0}
    assert answer.confidence == word.confidence < 0.7


def test_a_combination_that_no_member_gave_is_checked_and_learned_from(
    service: Service, server: Server, tmp_path: Path
) -> None:
    parts = [{"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 2, "c": 1}, {"a": 2, "b": 1, "c": 1}]
    schema = {"type": "object", "properties": {name: {"enum": [1, 2]} for name in "abc"}}
    members = endpoints(service, server, *map(json.dumps, parts))
    right = {"a": 1, "b": 1, "c": 1}
    with Ensemble(members, policy="plurality", store=tmp_path / "s.db") as ensemble:
        answer = ensemble.ask("?", answer=schema)
        assert (answer.value, answer.text) == (right, '{"a":1,"b":1,"c":1}')
        assert len(answer.candidates) == len(answer.probabilities) == 3
        ensemble.feedback(answer, label=right)  # the answer was right, and no member was
        assert all(one.accuracy < 0.5 for one in ensemble.stats().endpoints.values())
        ensemble.feedback(answer.id, label={"c": 1.0, "b": 1, "a": 1}, source="another")
    with Ensemble(members, policy=ask_all(tmp_path / "policy"), explore=False) as ensemble:
        answer = ensemble.ask("?", answer=schema)
        kept = ensemble._async._store.answer(answer.id)
    assert answer.value == right
    assert kept is not None
    assert kept.trajectory is not None
    assert (kept.kind, kept.answered, kept.trajectory.fused) == ("structured", 3, -1)  # what was decided is learned


@pytest.mark.parametrize("says_no", [ValueError, RuntimeError])
def test_a_combination_that_is_not_valid_gives_way_to_the_likeliest_candidate(
    service: Service, server: Server, says_no: type[Exception]
) -> None:
    class Exclusive(BaseModel):
        a: bool
        b: bool
        c: bool

        @field_validator("c")
        @classmethod
        def at_most_two(cls, c: bool, info: Any) -> bool:
            if c and info.data["a"] and info.data["b"]:
                raise says_no
            return c

    said = [{"a": True, "b": True, "c": False}, {"a": True, "b": False, "c": True}, {"a": False, "b": True, "c": True}]
    answer = ask(endpoints(service, server, *map(json.dumps, said)), Exclusive)
    assert answer.value == Exclusive(a=True, b=True, c=False)
    assert answer.confidence < 1 / 3


def test_a_reply_that_is_not_valid_is_that_members_failure(service: Service, server: Server) -> None:
    members = endpoints(service, server, ticket("nobody", True, "a"), "I think billing.", ticket("billing", True, "c"))
    answer = ask(members)
    assert answer.value.team == "billing"
    assert [reply.error.kind if reply.error else "ok" for reply in answer.replies] == ["unusable", "unusable", "ok"]
    assert "valid against the schema" in str(answer.replies[0].error)
    with pytest.raises(PoolError, match="schema"):
        ask(endpoints(service, server, "no"))


class Order(BaseModel, extra="forbid"):
    """Has fields that a member gets wrong in many ways."""

    due: date
    counts: dict[str, int]
    places: list[Place]


def test_a_failure_names_the_fields_that_do_not_fit_in_no_word_of_the_reply(service: Service, server: Server) -> None:
    """A field's name is the schema's, while the keys of a mapping, and fields that do not exist, are the member's."""
    said = {"due": "soon", "counts": {"secret1": "x"}, "places": [{"country": "FR"}, {}], "secret2": 1}
    with pytest.raises(PoolError) as failed:
        ask(endpoints(service, server, json.dumps(said)), Order)
    told = (
        "$.due: date_from_datetime_parsing, $.counts.*: int_parsing, $.places.1.country: missing, $.*: extra_forbidden"
    )
    assert f"valid against the schema ({told})" in str(failed.value)
    with pytest.raises(PoolError, match=r"valid against the schema \(\$: list_type\)"):
        ask(endpoints(service, server, "{}"), list[Order])


def test_a_failure_by_a_json_schema_names_the_fields_and_the_keywords(service: Service, server: Server) -> None:
    """So do the words with which the member is asked once more."""
    part = {"type": "object", "required": ["size"], "properties": {"size": {}}}
    properties = {"team": {"enum": ["billing", "shipping"]}, "parts": {"items": part}}
    said = {"team": "secret1", "parts": [{}], "secret2": 1}
    with pytest.raises(PoolError) as failed:
        ask(endpoints(service, server, json.dumps(said)), {"properties": properties, "additionalProperties": False})
    told = "$.*: additionalProperties, $.parts.0.size: required, $.team: enum"
    assert f"valid against the schema ({told})" in str(failed.value)
    asked = server.received[-1].body["messages"][-1]["content"]
    assert "parts.0.size: is wrong by 'required'; team: is wrong by 'enum'" in asked
    with pytest.raises(PoolError, match=r"valid against the schema \(\$: type\)"):
        ask(endpoints(service, server, "[]"), {"type": "object"})


class Handwritten(BaseModel):
    """Its validators fail on what they do not expect, as people write them."""

    size: float
    sure: bool
    unsure: bool

    @model_validator(mode="before")
    @classmethod
    def in_metres(cls, given: Any) -> Any:
        return {**given, "size": given["size"]}


@pytest.mark.parametrize("hostile", ["{}", '{"size": 1e999, "sure": true, "unsure": false}', f"{'[' * 700}{']' * 700}"])
def test_no_reply_to_a_model_ends_the_ask(service: Service, server: Server, hostile: str) -> None:
    """A number beyond all floats, or a validator's own exception, was raised by ``ask``."""
    right = {"size": 1, "sure": False, "unsure": False}
    answer = ask(endpoints(service, server, hostile, json.dumps(right)), Handwritten)
    assert answer.value == Handwritten.model_validate(right)
    (failed, _) = answer.replies
    assert failed.error is not None
    assert failed.error.kind == "unusable"
    assert ("a validator of the model failed on a reply (KeyError)" in failed.error.message) is (hostile == "{}")
    assert ("raise ValueError" in failed.error.hint) is (hostile == "{}")


class Floor(BaseModel):
    rooms: set[int]
    flat: list[int] = [1]

    @field_serializer("flat", when_used="json")
    def doubled(self, flat: list[int]) -> list[int]:
        return flat * 2

    @field_validator("flat", mode="before")
    @classmethod
    def halved(cls, flat: list[int]) -> list[int]:
        return flat[: len(flat) // 2]


@pytest.mark.parametrize(
    ("wanted", "said", "label"),
    [
        (set[int], ("[0, 8, 16]", "[16, 8, 0]"), {8, 16, 0}),
        (dict[str, frozenset[int]], ('{"a": [0, 8]}', '{"a": [8, 0]}'), {"a": frozenset((8, 0))}),
        (Floor, ('{"rooms": [0, 8]}', '{"rooms": [8, 0]}'), Floor(rooms={8, 0})),
        (Floor, ('{"rooms": [0, 8]}', '{"rooms": [8, 0]}'), {"rooms": [8, 0]}),
        (Decimal | None, ('"12.50"', "12.5"), Decimal("12.500")),
        (
            list[Decimal],
            ('["1E+10", "100", "-0.0"]', '["1E+10", 100, "-0.00"]'),
            [Decimal("1E+10"), Decimal(100), Decimal("-0.0")],
        ),
        (list[Floor], ('[{"rooms": [0, 8]}]', '[{"rooms": [8, 0]}]'), [Floor(rooms={8, 0})]),
    ],
    ids=range(7),  # texts of sets differ: between what is compiled just now and what was compiled before, for one
)
def test_equal_values_are_one_candidate(service: Service, server: Server, wanted: Any, said: Any, label: Any) -> None:
    """A set had the order in which it was filled, one of texts an order of the process; 12.50 was not 12.5."""
    with Ensemble(endpoints(service, server, *said), policy="plurality") as ensemble:
        answer = ensemble.ask("Which rooms?", answer=wanted)
        assert len(answer.candidates) == 1
        assert wanted not in (Floor, list[Floor]) or '"flat":[1,1]' in answer.text
        ensemble.feedback(answer, label=label)
        assert all(one.accuracy > 0.5 for one in ensemble.stats().endpoints.values())


def test_a_type_that_cannot_be_hashed_is_read_too(service: Service, server: Server) -> None:
    assert ask(endpoints(service, server, "[5]"), Annotated[list[int], {"unit": "km"}]).value == [5]


def test_an_endpoint_without_schemas_gets_it_in_the_prompt(service: Service, server: Server) -> None:
    answer = ask(endpoints(service, server, f"```json\n{ticket('billing', True, 'a')}\n```", held=False))
    assert answer.value.summary == "a"
    body = server.received[0].body
    assert "response_format" not in body
    assert body["messages"][0]["content"].startswith("Which team?\n\nAnswer with JSON only")
    assert '"billing"' in body["messages"][0]["content"]


def test_an_endpoint_that_refuses_one_schema_gets_it_in_the_prompt_from_then_on(
    service: Service, server: Server
) -> None:
    service.refuses.add("m0")
    with Ensemble(endpoints(service, server, ticket("billing", True, "a"))) as ensemble:
        answers = [ensemble.ask("Which team?", answer=Ticket) for _ in range(2)]
    assert [answer.value.summary for answer in answers] == ["a", "a"]
    assert ["response_format" in call.body for call in server.received] == [True, False, False]
    assert answers[0].replies[0].attempts == 2


def test_the_refused_schemas_that_are_remembered_are_bounded(
    service: Service, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("focalroute.endpoints.member._MAX_UNSUPPORTED", 2)
    schemas = [{"type": "object", "properties": {name: {"type": "string"}}} for name in "abc"]
    service.refuses.add("m0")
    with Ensemble(endpoints(service, server, "{}")) as ensemble:
        for schema in (*schemas, schemas[2], schemas[0]):
            ensemble.ask("Which team?", answer=schema)
    assert ["response_format" in call.body for call in server.received] == [*[True, False] * 3, False, True, False]


def test_the_callers_own_response_format_is_not_replaced(service: Service, server: Server) -> None:
    own = {"type": "json_object"}
    ask(endpoints(service, server, ticket("billing", True, "a")), params={"response_format": own})
    assert server.received[0].body["response_format"] == own
    assert "JSON schema" in server.received[0].body["messages"][0]["content"]


def test_a_label_may_be_an_instance_a_value_or_json(service: Service, server: Server) -> None:
    right = Ticket(team="billing", urgent=True, summary="a")
    with Ensemble(endpoints(service, server, ticket("billing", True, "a"))) as ensemble:
        answer = ensemble.ask("Which team?", answer=Ticket)
        ensemble.feedback(answer, label=right)
        ensemble.feedback(answer, label={"team": "billing", "urgent": True, "summary": "a"}, source="b")
        ensemble.feedback(answer.id, label=right.model_dump_json(), source="c")
        with pytest.raises(BadLabel, match="team"):
            ensemble.feedback(answer, label={"team": "nobody", "urgent": True, "summary": "a"}, source="d")
        with pytest.raises(BadLabel, match="JSON"):
            ensemble.feedback(answer, label="{", source="e")
        assert ensemble.stats().endpoints["m0"].accuracy > 0.5


@dataclass
class Step:
    number: int
    parts: Sequence[str] = ()


class State(StrEnum):
    OPEN = "open"


def test_a_label_may_be_the_member_of_an_enum_of_texts_that_the_value_is(service: Service, server: Server) -> None:
    with Ensemble(endpoints(service, server, '"open"'), policy="plurality") as ensemble:
        answer = ensemble.ask("Is it open?", answer=State | None)
        assert answer.value is State.OPEN
        ensemble.feedback(answer, label=answer.value)


def test_a_label_of_a_dataclass_is_checked_likewise(service: Service, server: Server) -> None:
    with Ensemble(endpoints(service, server, '{"number": 1}')) as ensemble:
        answer = ensemble.ask("Which step?", answer=Step)
        labels: list[Any] = [Step(1), {"number": "1"}, '{"number": 1, "parts": []}']
        for number, label in enumerate(labels):
            ensemble.feedback(answer, label=label, source=str(number))
        with pytest.raises(BadLabel, match="is not a valid Step; correct number"):
            ensemble.feedback(answer, label={"parts": []})
        assert ensemble.stats().endpoints["m0"].accuracy > 0.5


def test_a_streamed_structured_answer_comes_in_one_piece(service: Service, server: Server) -> None:
    members = endpoints(service, server, ticket("billing", True, "a"))
    with Ensemble(members) as ensemble, ensemble.stream("Which team?", answer=Ticket) as stream:
        assert list(stream) == [stream.answer.text]
    assert stream.answer.value.team == "billing"


def test_choices_and_a_schema_do_not_go_together(service: Service, server: Server) -> None:
    with pytest.raises(ConfigError, match="not both"):
        ask(endpoints(service, server, "x"), choices=["a", "b"])


# -- simulated models -------------------------------------------------------------------------------------------------


class Sum(BaseModel):
    answer: int


def test_simulated_models_of_every_dialect_answer_with_a_schema() -> None:
    """Those that cannot be held to it read it in the prompt; one that says something else is left out."""
    speakers: dict[str, DialectName] = {
        "a": "openai", "b": "together", "c": "deepinfra", "d": "vllm", "e": "llamacpp", "f": "openrouter",
        "g": "minimal", "h": "openai",
    }  # fmt: skip
    models = [SimulatedModel(name, skill=1.0) for name in speakers]
    with SimulatedPool(models, dialects=speakers) as pool, Ensemble(pool.endpoints, policy="plurality") as ensemble:
        ensemble.ask("What is 17 + 26?", answer=Sum)  # finds out what each can do
        pool.set("h", faults=Fault("outside"))
        answer = ensemble.ask("What is 17 + 25?", answer=Sum)
    assert answer.value == Sum(answer=42)
    assert [reply.endpoint for reply in answer.replies if not reply.ok] == ["h"]
    assert {reply.endpoint for reply in answer.replies if "```" in (reply.text or "")} == {"g"}


def test_simulated_models_err_and_the_ensemble_less() -> None:
    models = [SimulatedModel(name, skill=0.7, seed=5) for name in "abcde"]
    right = {"single": 0, "fused": 0}
    with SimulatedPool(models) as pool, Ensemble(pool.endpoints, policy="plurality") as ensemble:
        for a in range(10, 40):
            answer = ensemble.ask(f"What is {a} + {a + 3}?", answer=Sum, params={"temperature": 0})
            right["fused"] += answer.value.answer == 2 * a + 3
            right["single"] += json.loads(answer.replies[0].text or "{}") == {"answer": 2 * a + 3}
    assert right["single"] < right["fused"]
