"""Schemas of callers and values of providers are checked in bounded time, and rightly."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focalroute.answers.json_schema import MAX_DEPTH, MAX_NODES, validator
from focalroute.answers.structured import structure_of
from focalroute.core.errors import ConfigError
from tests.paired import assert_cpu_at_most

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
LONGEST = 40  # controls; none takes more than six without coverage; hostile inputs took seconds to hours


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    """Each level refers to the one below twice."""
    defs: dict[str, Any] = {"d0": {"type": "integer"}}
    for level in range(1, levels + 1):
        defs[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/d{levels}"}


HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "backtracking pattern": ({"pattern": "^(a+)+$"}, "a" * 26 + "!"),
    "doubling references": (doubling(30), "x"),
    "unique items": ({"uniqueItems": True}, [{"a": [n]} for n in range(20_000)]),
    "many alternatives of a long list": ({"anyOf": [{"type": "string"}] * 4000}, list(range(100_000))),
    "many lists of required names": ({"allOf": [{"required": [f"k{i}" for i in range(100)]}] * 40}, {"k0": 0}),
    "additional properties": (
        {"allOf": [{"additionalProperties": {"type": "integer"}}] * 1000},
        {f"k{i}": i for i in range(20_000)},
    ),
    "long enumerations": ({"allOf": [{"not": {"enum": list(range(50))}}] * 90}, "x" * 250_000),
    "recursion over a deep value": (
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}, "required": ["b"]}]},
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}}}}}}}}},
    ),
    "a schema that is itself": ({"allOf": [{"$ref": "#"}]}, 1),
    "a long chain of references": (
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(999)} | {"d999": True}, "$ref": "#/$defs/d0"},
        1,
    ),
    "a pattern whose program is large": ({"pattern": "(?:a?){1000}(?:a?){1000}(?:a?){1000}c"}, "a" * 600_000),
    "such a pattern for many names": (
        {"patternProperties": {"(?:a?){1000}(?:a?){1000}c": True}}, {"a" * 1000 + str(n): 1 for n in range(1000)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{n}": {"pattern": rf"\pL{{{300 - n % 100}}}"} for n in range(1500)}},
        {"properties": {f"p{n}": {"pattern": rf"(a{{1,{1000 - n}}}|b{{1,999}})c"} for n in range(1000)}},
        {"patternProperties": {rf"\pL{{{20 - n % 10}}}x{n}": True for n in range(1500)}},
    ],
    ids=["large ones", "slow ones", "of names"],
)
def test_patterns_that_take_long_to_compile_are_refused(schema: dict[str, Any]) -> None:
    """60 kB of them held the event loop for minutes, and took a gigabyte."""

    def refuse() -> None:
        with pytest.raises(ConfigError):
            validator(schema)

    assert_cpu_at_most(LONGEST / 3, refuse)


@pytest.mark.parametrize("case", HOSTILE)
def test_no_schema_and_no_value_takes_long(case: str) -> None:
    schema, value = HOSTILE[case]
    assert_cpu_at_most(LONGEST, lambda: validator(schema)(value))


@pytest.mark.parametrize("leaf", [{"type": "boolean"}, {"type": "integer"}])
@pytest.mark.parametrize("join", ["anyOf", "properties"])
def test_references_that_unfold_without_end_make_no_structured_answer(join: str, leaf: dict[str, Any]) -> None:
    """Thirty levels, each of which refers to the one below twice."""
    defs: dict[str, Any] = {"d0": leaf}
    for level in range(1, 31):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {join: [below, below] if join == "anyOf" else {"a": below, "b": below}}

    def read() -> None:
        with suppress(ConfigError):
            structure_of({"$defs": defs, "properties": {"x": {"$ref": "#/$defs/d30"}}})

    assert_cpu_at_most(LONGEST, read)


@pytest.mark.parametrize("types", [[{}], [[]], ["string", {"a": 1}]])
def test_types_that_are_not_names_are_refused(types: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"\$\.properties\.a\.type"):
        structure_of({"properties": {"a": {"type": types}}})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (nested(MAX_DEPTH), "deeper than"),
        ({"enum": list(range(MAX_NODES + 1))}, "more than"),
        ({"anyOf": [True] * (MAX_NODES + 1)}, "more than"),
        ({"pattern": "(?=a)b"}, r"\$\.pattern: .*look-around"),
        ({"pattern": "(a"}, r"\$\.pattern"),
        ({"pattern": "(a{1000}){1000}"}, r"\$\.pattern"),
        ({"pattern": "a" * 10_001}, r"\$\.pattern: .*at most 10000 characters"),
        ({"patternProperties": {"(?!a)": True}}, r"\$\.patternProperties"),
        ({"properties": {"a": {"type": "strin"}}}, r"\$\.properties\.a\.type"),
        ({"properties": []}, r"\$\.properties"),
        ({"items": 3}, r"\$\.items"),
        ({"anyOf": []}, r"\$\.anyOf"),
        ({"minLength": -1}, r"\$\.minLength"),
        ({"multipleOf": 0}, r"\$\.multipleOf"),
        ({"required": "a"}, r"\$\.required"),
        ({"dependentRequired": {"a": "b"}}, r"\$\.dependentRequired"),
        ({"$ref": "https://example.com/schema"}, r"\$\.\$ref: refer to a part of the same schema"),
        ({"$ref": "#"}, r"\$\.\$ref: # refers to itself"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "itself"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, r"\$\.properties\.a\.\$ref: there is no #/\$defs/a in it"),
        ({"$ref": "#/anyOf/1", "anyOf": [True]}, "there is no #/anyOf/1 in it"),
        (
            {"$ref": "#/components/a", "components": {"a": {"pattern": "(?=a)"}}},
            "#/components/a.pattern: give a regular",
        ),
        ({"items": {"$ref": "#/x"}, "x": {"allOf": [{"$ref": "#/y"}]}, "y": 5}, "wrong at #/y: give an object"),
        ({"unevaluatedProperties": False}, "not supported"),
        ({"items": [{}]}, r"\$\.items: .*prefixItems"),
        ({"$schema": []}, r"\$\.\$schema: give a text"),
        ({"$schema": "http://[draft"}, r"\$\.\$schema: give the address of a draft"),
        ({"$id": 5}, r"\$\.\$id: give a text"),
        ({"items": {"$schema": DRAFT_7}}, r"uses \$schema at \$\.items"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_cannot_be_checked_is_refused_with_its_place(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validator(schema)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"pattern": "^a+$"}, "aaa", "aab"),
        ({"uniqueItems": True}, [1, "1", [1], {"a": 1}], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]),
        ({"uniqueItems": True}, [1, True, "True"], [1, 1.0]),
        ({"patternProperties": {"^n": {"type": "integer"}}}, {"n": 1, "x": "y"}, {"n": "1"}),
        ({"properties": {"a": True}, "additionalProperties": False}, {"a": 1}, {"b": 1}),
        ({"patternProperties": {"^n": True}, "additionalProperties": {"type": "null"}}, {"n": 1, "x": None}, {"x": 1}),
        ({"$defs": {"t": {"type": "integer"}}, "items": {"$ref": "#/$defs/t"}}, [1, 2], [1, "2"]),
        ({"$ref": "#/anyOf/0", "anyOf": [{"type": "integer"}, {"const": "a"}]}, 1, "a"),
        ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, {"a": {"a": {}}}, {"a": {"b": 1}}),
        ({"items": {"$id": "b", "$ref": "#/$defs/t", "$defs": {"t": {"type": "integer"}}}}, [1], ["a"]),
        ({"$ref": "#nowhere"}, None, 1),
        ({"pattern": "a"}, "a", "\ud800"),
        ({"multipleOf": 0.5}, 1.5, 10**400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_our_keywords_check_what_json_schema_defines(schema: dict[str, Any], right: Any, wrong: Any) -> None:
    misfits = validator(schema)
    assert misfits(wrong)
    if right is not None:
        assert not misfits(right)


LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab"])
VALUES = st.recursive(LEAVES, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from("abn"), part))
SCHEMAS = st.recursive(
    st.sampled_from(
        [True, False, {"type": "integer"}, {"type": ["string", "null"]}, {"enum": ["a", 1]}, {"const": {"a": 1}},
         {"minimum": 0}, {"maxLength": 1}, {"pattern": "^a"}, {"uniqueItems": True}, {"required": ["a"]},
         {"minItems": 2}, {"multipleOf": 2}]
    ),
    lambda part: st.builds(lambda a, b: {"anyOf": [a, b]}, part, part)
    | st.builds(lambda a, b: {"allOf": [a, b]}, part, part)
    | st.builds(lambda a, b: {"oneOf": [a, b]}, part, part)
    | st.builds(lambda a: {"not": a}, part)
    | st.builds(lambda a: {"items": a}, part)
    | st.builds(lambda a, b: {"properties": {"a": a}, "additionalProperties": b}, part, part)
    | st.builds(lambda a, b: {"patternProperties": {"^n": a}, "additionalProperties": b}, part, part),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150)
@given(schema=SCHEMAS, value=VALUES)
def test_on_small_inputs_it_agrees_with_jsonschema(schema: Any, value: Any) -> None:
    """The bounds and the own keywords change nothing where nothing is hostile."""
    assert bool(validator({"allOf": [schema]})(value)) != jsonschema.Draft202012Validator(schema).is_valid(value)
