"""Structured answers: what they have to look like, how a reply is read and checked, and how several become one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from pydantic import BaseModel, ValidationError

from focalroute.answers.canonical_json import canonical, parsed
from focalroute.answers.closed_fields import Election, closed_fields, elect
from focalroute.answers.tool_calls import CALLS
from focalroute.core.errors import BadLabel, ConfigError

#: What a structured answer has to be: a pydantic model, or a JSON schema.
Wanted = type[BaseModel] | Mapping[str, Any]

_MAX_LENGTH = 2**18  # characters of a reply; a longer one is not read
_FENCED = re.compile(r"```[A-Za-z]*\s(.*?)```", re.DOTALL)
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class Structure:
    """What a structured answer has to be. Called with a reply's text it gives the normal form, or None.

    Attributes:
        schema: the JSON schema.
        digest: names it.
    """

    def __init__(self, schema: Mapping[str, Any], model: type[BaseModel] | None = None) -> None:
        self.schema = schema
        self.digest = blake2b(canonical(schema).encode(), digest_size=8).hexdigest()
        self._model = model
        self._fields = closed_fields(schema)
        self._valid = _validator(schema) if model is None else None

    def __call__(self, text: str) -> str | None:
        """The answer in a reply as JSON in one form; None if there is none, or none that is valid.

        Code fences around it and words before it do not matter, nor does reasoning in ``<think>`` tags.
        """
        forms = (self._form(value) for value in _values(text[-_MAX_LENGTH - 1 :]) if len(text) <= _MAX_LENGTH)
        return next((form for form in forms if form is not None), None)

    def _form(self, value: object) -> str | None:
        try:
            if self._model is None:
                return canonical(value) if self._valid is not None and self._valid(value) else None
            given = canonical(value)
            form = canonical(self._model.model_validate_json(given).model_dump(mode="json", by_alias=True))
        except ValueError:
            return None
        return form if self._takes(form) else given  # it may write other names than it reads

    def _takes(self, form: str) -> bool:
        try:
            self.value(form)
        except ValidationError:
            return False
        return True

    def value(self, form: str) -> Any:
        """The answer of a normal form: an instance of the model, or the plain value."""
        return parsed(form) if self._model is None else self._model.model_validate_json(form)

    def fuse(self, forms: Sequence[str], masses: Sequence[float]) -> tuple[str, Election]:
        """The normal form of what the candidates say together, field by field (see `elect`), and how it came to be.

        Args:
            forms: the candidates; tool calls among them have no say, but one must be none.
            masses: their posterior.
        """
        places = [i for i, form in enumerate(forms) if not form.startswith(CALLS)]
        values = [parsed(forms[i]) for i in places]
        for election in elect(values, [masses[i] for i in places], self._fields):
            if election.candidate is not None:
                place = places[election.candidate]
                return forms[place], Election(election.value, place, election.shares)
            form = self._form(election.value)
            if form is not None:
                return form, election
        raise AssertionError("the likeliest candidate is always elected")

    @functools.cached_property
    def response_format(self) -> dict[str, Any]:
        """The parameter that holds a reply to it. Of a model every field is required, as OpenAI's strict mode wants."""
        schema = dict(self.schema) if self._model is None else _strict(self.schema)
        name = _NAME.sub("_", str(self.schema.get("title") or "answer"))[:64] or "answer"
        strict = schema == _strict(schema)
        return {"type": "json_schema", "json_schema": {"name": name, "strict": strict, "schema": schema}}

    @functools.cached_property
    def instruction(self) -> str:
        """The same in words, for services that cannot be told so otherwise."""
        return f"Answer with JSON only, which must be valid against this JSON schema:\n{canonical(self.schema)}"


def structure_of(wanted: object) -> Structure | None:
    """What is wanted as a `Structure`; None if it is no structured answer.

    Raises:
        ConfigError: the schema is wrong, or nothing is installed to check answers with.
    """
    if isinstance(wanted, Structure):
        return wanted
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return _of_model(wanted)
    if isinstance(wanted, Mapping):
        try:
            return _of_schema(canonical(dict(wanted)))
        except ValueError as error:
            raise ConfigError(f"answer: the JSON schema {error}") from None
    return None


@functools.lru_cache(maxsize=256)
def _of_model(model: type[BaseModel]) -> Structure:
    try:
        return Structure(model.model_json_schema(), model)
    except Exception as error:
        raise ConfigError(f"answer: {model.__name__} has no JSON schema ({type(error).__name__})") from error


@functools.lru_cache(maxsize=256)
def _of_schema(schema: str) -> Structure:
    value = parsed(schema)
    return Structure(value if isinstance(value, Mapping) else {})


def _validator(schema: Mapping[str, Any]) -> Callable[[object], bool]:
    """Whether a value is valid; nothing is ever fetched from where a reference may point."""
    try:
        import jsonschema
        import referencing
    except ImportError:
        raise ConfigError(
            "answer: JSON schemas are checked by jsonschema; pip install 'focalroute[schema]', or give a pydantic model"
        ) from None
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"answer: is no JSON schema: {error.json_path}: {error.message[:200]}") from None
    validator = kind(schema, registry=referencing.Registry())

    def valid(value: object) -> bool:
        try:
            return bool(validator.is_valid(value))
        except RecursionError:
            return False

    return valid


def _values(text: str) -> Iterator[object]:
    """Every way to read JSON out of a text, the likeliest first."""
    text = text.rpartition("</think>")[2].strip()
    opened = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    span = text[min(opened, default=0) : max(text.rfind("}"), text.rfind("]")) + 1]
    for part in (text, *reversed(_FENCED.findall(text)), span):
        try:
            yield parsed(part)
        except ValueError:
            continue


def _strict(schema: Any) -> Any:
    """The schema with every field of every object required, none besides, and no defaults."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    strict = {name: _strict(part) for name, part in schema.items() if name != "default"}
    if isinstance(strict.get("properties"), Mapping):
        strict |= {
            "properties": {name: _strict(part) for name, part in schema["properties"].items()},  # one called "default"
            "required": list(schema["properties"]),
            "additionalProperties": False,
        }
    return strict


def checked_label(label: Any, value: object) -> Any:
    """The label; of an answer that is a model's instance, a plain value as one, so that it has all of its fields.

    Raises:
        BadLabel: it is not valid.
    """
    if not isinstance(value, BaseModel) or not isinstance(label, Mapping):
        return label
    try:
        return type(value).model_validate(label)
    except ValidationError as error:
        where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise BadLabel(f"label: is no valid {type(value).__name__} ({where})") from None


def label_form(label: object) -> str:
    """The normal form of a right answer: an instance of the model, a plain value, or its JSON.

    Raises:
        BadLabel: it cannot be written as JSON.
    """
    if isinstance(label, BaseModel):
        label = label.model_dump(mode="json", by_alias=True)
    try:
        return canonical(parsed(label) if isinstance(label, str) else label)
    except ValueError:
        raise BadLabel("label: give an instance of the model, a plain value, or its JSON") from None
