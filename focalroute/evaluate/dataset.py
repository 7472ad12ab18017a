"""Reads labelled questions from JSONL, CSV, or a Hugging Face dataset if `datasets` is installed."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from focalroute.answers import AnswerKind, normal_form, normaliser
from focalroute.core.errors import ConfigError, locating
from focalroute.core.json_values import is_number
from focalroute.evaluate.outcomes import LONGEST_LINE, numbered_lines, object_lines
from focalroute.serving.query import make_query

#: The fields of a question, and the columns in which each is looked for, in order.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "prompt": ("prompt", "question", "query"),
    "messages": ("messages",),
    "choices": ("choices", "options"),
    "label": ("label", "answer", "answerKey"),
    "task": ("task", "subject", "category"),
}

_HUGGING_FACE = "hf:"


class _Cell(str):
    """A cell of a CSV file; CSV does not tell whether digits are a number or a text."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LabelledQuestion:
    """A question whose right answer is known.

    Attributes:
        messages: OpenAI chat messages.
        prompt: the text that ``messages`` were made from; None: messages were given.
        choices: the closed set of answers; None: a free-form question.
        label: the right answer: index into the choices, or text in normal form.
    """

    id: str
    messages: tuple[Mapping[str, Any], ...]
    prompt: str | None
    choices: tuple[str, ...] | None
    label: int | str
    task: str | None


def read_dataset(
    source: str | Path, *, columns: Mapping[str, str] | None = None, kind: AnswerKind | None = None
) -> tuple[LabelledQuestion, ...]:
    """Read a whole dataset.

    Args:
        source: a ``.jsonl`` or ``.csv`` file (or ``.gz`` of one), or ``hf:NAME[:CONFIG][:SPLIT]``.
        columns: field -> column, for columns not named as in `FIELDS`.
        kind: the kind of free-form answers; labels are converted to its normal form.

    Raises:
        ConfigError: the kind is unknown, the dataset cannot be read, or a row is invalid; the message names row and
            field.
    """
    normaliser(kind)  # raises for an unknown kind, even if every question has choices
    chosen = dict(columns or {})
    unknown = sorted(set(chosen) - set(FIELDS))
    if unknown:
        raise ConfigError(f"columns: unknown field {unknown[0]!r}; fields are {', '.join(FIELDS)}")
    names = {field: (chosen[field],) if field in chosen else usual for field, usual in FIELDS.items()}
    questions: list[LabelledQuestion] = []
    seen: set[str] = set()
    for where, row in _rows(source):
        with locating(where):
            question = _question(row, names, str(len(questions)), kind)
            if question.id in seen:
                raise ConfigError(f"id: {question.id!r} is not unique")
        seen.add(question.id)
        questions.append(question)
    if not questions:
        raise ConfigError(f"{source}: holds no question")
    return tuple(questions)


def _rows(source: str | Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every row with its place in the source."""
    if isinstance(source, str) and source.startswith(_HUGGING_FACE):
        return _hugging_face(source)
    path = Path(source)
    match path.name.removesuffix(".gz").rpartition("."):
        case _, ".", "jsonl":
            return json_objects(path)
        case _, ".", "csv":
            return _csv_rows(path)
    raise ConfigError(
        f"{source}: give a .jsonl file (an object a line), a .csv file, .gz of one, or hf:NAME for a Hugging Face "
        "dataset"
    )


def json_objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object of a ``.jsonl`` file (or ``.gz`` of one) with its place.

    Raises:
        ConfigError: it cannot be read, or a line is not an object.
    """
    for number, line in object_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number}: is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}:{number}: is not an object of named fields")
        yield f"{path}:{number}", row


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each row as column name -> cell, without empty cells; the first row has the column names."""
    reader = csv.DictReader(line for _, line in numbered_lines(path))
    limit_before = csv.field_size_limit(LONGEST_LINE)  # a setting of the whole process, restored below
    try:
        repeated = [name for name, count in Counter(reader.fieldnames or ()).items() if name and count > 1]
        if repeated:
            raise ConfigError(f"{path}: more than one column is called {repeated[0][:40]!r}; rename or drop them")
        for row in reader:
            if None in row:
                raise ConfigError(
                    f"{path}:{reader.line_num}: has more cells than the first row has names; quote cells with commas"
                )
            yield f"{path}:{reader.line_num}", {name: _Cell(cell) for name, cell in row.items() if cell}
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: is damaged: {error}") from None
    finally:
        csv.field_size_limit(limit_before)


def _hugging_face(source: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"{source}: needs the package datasets; pip install datasets") from None

    name, _, rest = source.removeprefix(_HUGGING_FACE).partition(":")
    config, _, split = rest.rpartition(":")
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(name, config or None, split=split or "test")
    except Exception as error:  # noqa: BLE001 - the library may raise anything for a wrong name or a network failure
        raise ConfigError(f"{source}: cannot be loaded: {error}") from None
    return ((f"{source}[{number}]", row) for number, row in enumerate(rows))


def _question(
    row: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], number: str, kind: AnswerKind | None
) -> LabelledQuestion:
    """Make a question of a row; ``names``: field -> columns to look in, ``number``: the id if the row has none."""

    def value(field: str) -> Any:
        return next((row[name] for name in names[field] if not _is_missing(row.get(name))), None)

    filled = ", ".join(name for name, cell in row.items() if not _is_missing(cell)) or "none"
    prompt, messages = value("prompt"), value("messages")
    if (prompt is None) == (messages is None):
        raise ConfigError(
            f"prompt, messages: give one; the filled columns are {filled}, and collect --column prompt=NAME uses "
            "another"
        )
    if prompt is not None and not isinstance(prompt, str):
        raise ConfigError("prompt: give a text")
    if isinstance(messages, str):
        messages = _from_json(
            messages, 'messages: give a list, in CSV as JSON such as [{"role": "user", "content": "..."}]'
        )
    choices, letters = _choices(value("choices"))
    label = value("label")
    if label is None:
        raise ConfigError(
            f"label: is missing; the filled columns are {filled}, and collect --column label=NAME uses another"
        )
    id_, task = value("id"), value("task")
    query = make_query(prompt, messages=messages, choices=choices, answer=kind if choices is None else None)
    return LabelledQuestion(
        id=number if id_ is None else str(id_),
        messages=query.messages,
        prompt=prompt,
        choices=choices,
        label=_text(label, kind) if choices is None else _index(label, choices, letters),
        task=None if task is None else str(task),
    )


def _is_missing(value: object) -> bool:
    """Whether a cell is empty: None, or pandas' nan."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _choices(value: Any) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return the choices and their letters.

    They are given as a list, as ``{"text": [...], "label": [...]}``, as ``{"A": ..., "B": ...}``, or as JSON of these.
    """
    if isinstance(value, str):
        value = _from_json(value, 'choices: give a list, in CSV as JSON such as ["red", "blue"]')
    letters: Any = ascii_uppercase  # as in MMLU-Pro
    if isinstance(value, Mapping):
        if "text" in value:  # as in ARC
            value, letters = value["text"], value.get("label", letters)
        else:  # as in MedQA
            value, letters = list(value.values()), list(value)
    if value is None:
        return None, ()
    if not isinstance(value, list | tuple) or not all(isinstance(choice, str) for choice in value):
        raise ConfigError("choices: give a list of texts")
    return tuple(value), tuple(str(letter) for letter in letters)[: len(value)]


def _from_json(text: str, problem: str) -> Any:
    """Parse a cell that holds a list or object as JSON; ``problem`` is the error message if it does not."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(problem) from None
    if not isinstance(found, list | Mapping):
        raise ConfigError(problem)
    return found


def _index(label: Any, choices: tuple[str, ...], letters: tuple[str, ...]) -> int:
    """Return the index of the right choice.

    A number is an index. A text is a choice, the letter of one, or an index in digits, in this order.
    """
    text = str(label)
    found = []
    if not is_number(label):
        found = [names.index(text) for names in (choices, letters) if names.count(text) == 1]
    digits = text.removesuffix(".0")  # pandas writes integers like that if the column has missing values
    if digits.isdecimal() and len(digits) < 5 and int(digits) < len(choices):
        if isinstance(label, _Cell) and found and found[0] != int(digits):
            raise ConfigError(f"label: {text!r} is one choice and the index of another; in JSONL a number is an index")
        found.append(int(digits))
    if not found:
        raise ConfigError(
            f"label: {text[:40]!r} is neither one of the {len(choices)} choices nor an index into them, from 0"
        )
    return found[0]


def _text(label: Any, kind: AnswerKind | None) -> str:
    """Return the normal form of a free-form question's label."""
    if not isinstance(label, str | int | float):
        raise ConfigError(f"label: give one text or number, not {str(label)[:40]}")
    form = normal_form(str(label), kind)
    if form is None:
        raise ConfigError("label: is not an answer of the kind given; correct the label or the kind")
    return form
