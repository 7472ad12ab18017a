"""Readers of what callers and operators write: server requests, JSON schemas, amounts of money, policy folders."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from focalroute.answers.structured import structure_of
from focalroute.core.config import Budget
from focalroute.core.dollars import parse_usd
from focalroute.core.errors import ConfigError, PolicyError
from focalroute.endpoints.paid_call import why_unbounded
from focalroute.policy.bundle import versions
from focalroute.policy.sequential import load_served
from focalroute.policy.slot import PolicySlot
from focalroute.serving.openai_api.refusals import Refused
from focalroute.serving.openai_api.requests import parse_json, read_chat, read_feedback
from focalroute.serving.query import make_query
from tests.fuzzing import seeds

__all__ = ["AMOUNTS", "CHATS", "FEEDBACKS", "SCHEMAS", "amounts", "chat", "feedback", "policy_folder", "schema"]

_PARTS = [{"type": "text", "text": "Which?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
_CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
_TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
_ADDRESS = {
    "$defs": {"place": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "type": "object",
    "properties": {
        "place": {"$ref": "#/$defs/place"},
        "code": {"type": "string", "pattern": "^[A-Z]{2,9}$", "minLength": 2},
        "many": {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "maxItems": 3, "uniqueItems": True},
        "either": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 0}]},
    },
    "required": ["place"],
    "additionalProperties": False,
}
CHATS = (
    {"model": "focalroute", "messages": [{"role": "user", "content": "Which?"}], "temperature": 0.5, "stream": True},
    {
        "model": "focalroute",
        "messages": [{"role": "user", "content": _PARTS}, {"role": "assistant", "tool_calls": [_CALL]}],
        "tools": [_TOOL], "tool_choice": "auto", "max_tokens": 5, "logit_bias": {"5": 1.5}, "stop": ["a"], "n": 1,
    },
    {
        "model": "focalroute",
        "messages": [{"role": "user", "content": "Where?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _ADDRESS}},
        "focalroute": {"samples": 3, "combine": "choose", "task": "t", "tags": ["a"], "max_usd": 0.5, "deadline_s": 5},
    },
    {
        "model": "focalroute",
        "messages": [{"role": "user", "content": "Where?"}],
        "focalroute": {"choices": ["Rome", "Oslo"], "answer": None, "receipt": True, "max_usd": "0.01"},
    },
)  # fmt: skip
FEEDBACKS = ({"id": "chatcmpl-1", "reward": 0.5, "source": "user"}, {"id": "1", "label": {"place": "Rome"}})
SCHEMAS = (
    {"schema": _ADDRESS, "value": {"place": "Rome", "code": "AB", "many": [1, 2.5], "either": None}},
    {"schema": {"type": "object", "properties": {"a": {"enum": [1, "b"]}}}, "value": {"a": 1}},
    {
        "schema": {
            "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/s",
            "items": [{"$ref": "#"}, {"if": {"const": 1}, "then": False}], "dependentRequired": {"a": ["b"]},
        },
        "value": [[], 2],
    },
)  # fmt: skip
AMOUNTS = (
    {"usd_total": 5, "usd_per_period": {"day": 0.5}, "usd_per_tag": {"a": 1, "b": {"hour": "0.25"}}},
    {"max_usd_per_ask": "1e-3", "usd_total": "12.345678901234567890", "usd_per_tag": {"a": {"minute": 1e-24}}},
)


def chat(data: bytes) -> None:
    """As the server reads it, up to the query that is asked."""
    with suppress(Refused, ConfigError):
        read = read_chat(parse_json(data), None)
        given = {name: value for name, value in read.options.items() if name not in ("max_usd", "deadline_s")}
        query = make_query(read.query, **given)
        why_unbounded(query.params, query.messages)
        if read.options["max_usd"] is not None:
            assert parse_usd(read.options["max_usd"], "max_usd") > 0


def feedback(data: bytes) -> None:
    with suppress(Refused):
        assert read_feedback(parse_json(data)).id


def schema(data: bytes) -> None:
    """A schema, and a reply that may fit it."""
    with suppress(Refused, ConfigError):
        given = parse_json(data)
        if not isinstance(given, dict) or not isinstance(given.get("schema"), dict):
            return
        structure = structure_of(given["schema"])
        assert structure is not None
        form = structure(json.dumps(given.get("value")))
        assert form is None or structure(form) == form


def amounts(data: bytes) -> None:
    """Budgets, and each amount in them by itself."""
    with suppress(Refused):
        given = parse_json(data)
        if not isinstance(given, dict):
            return
        with suppress(ConfigError):
            Budget(**given)
        for amount in given.values():
            with suppress(ConfigError):
                assert 0 < parse_usd(amount, "usd") < 10**25


@contextmanager
def policy_folder() -> Iterator[Callable[[bytes], None]]:
    """A folder of two versions in which one thing is not what it should be; a slot over it always has a policy."""
    with tempfile.TemporaryDirectory() as name:
        sound, folder = Path(name) / "sound", Path(name) / "folder"
        seeds.bundle(sound)
        shutil.copytree(sound / "v000001", sound / "v000002")

        def read(data: bytes) -> None:
            shutil.copytree(sound, folder)
            try:
                _spoil(folder, data)
                with suppress(PolicyError):
                    versions(folder)
                    load_served(folder)
                slot = PolicySlot.open(folder)
                assert slot.current is not None
                slot.close()
            finally:
                shutil.rmtree(folder)

        yield read


def _spoil(folder: Path, data: bytes) -> None:
    """Put something into the place of a file, or beside the others, as the first two bytes say."""
    kind, place, content = data[0] % 5, data[1] % 6, data[2:]
    names = ["CURRENT", "v000001/manifest.json", "v000002/manifest.json", "v000001/decider.onnx", "v000001", "v000003"]
    path = folder / names[place]
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    makers: tuple[Callable[[], Any], ...] = (
        lambda: path.write_bytes(content),
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path.name),
        path.mkdir,
    )
    makers[kind]()
