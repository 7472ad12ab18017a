"""Reads an outcome log: a pool's answers to past queries, one JSON object for each query, in order of arrival.

A line that breaks the format raises a `ConfigError` that names file, line and field, unless bad rows are to be skipped.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar

from pydantic import Field, SkipValidation, StrictInt, StrictStr, TypeAdapter, ValidationError

from focalroute.core.errors import ConfigError, locating
from focalroute.core.spelling import advice, first_problem

_T = TypeVar("_T")
_Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
_Share = Annotated[_Amount, Field(le=1)]
# A larger number in a single row would outweigh the cost of all others, or be infinite in the networks' precision.
_Count = Annotated[StrictInt, Field(ge=0, le=10**9)]
_Usd = Annotated[_Amount, Field(le=10**6)]
_Seconds = Annotated[_Amount, Field(le=10**6)]
_Answer = Annotated[int | str | None, SkipValidation]  # see `_check_answer`
_Name = Annotated[str, Field(coerce_numbers_to_str=True)]

#: The longest line of a file, bytes.
LONGEST_LINE = 16 * 2**20

_TABLES = (".csv", ".tsv", ".parquet", ".arrow", ".xlsx")
# A gzip file may unpack to this many bytes, or to this many times its size if that is more.
_MOST_UNPACKED, _MOST_EXPANSION = 64 * 2**20, 100
_MOST_CHOICES = 1000  # as in serving
_MOST_PARTS = 200_000  # objects and lists in a line: in memory, each takes many times the size of its text
_ROUNDED_SUM = 1e-3  # a sum of probabilities that is less than this below 1 is taken for a rounded 1
_ROUNDED_EACH = 0.00501  # by how much a probability rounded to two digits may exceed its exact value


@dataclass(frozen=True, slots=True)
class Output:
    """One endpoint's output.

    Attributes:
        answer: index into the choices, or free-form text; None: the reply was not usable, or only ``score`` is known.
        probabilities: probability of each choice; None: not recorded. Their sum is at most 1, and exactly 1 where only
            rounding kept it from that.
        score: quality in [0, 1]; used if the query has no label.
        cost_usd: the cost of the call, float64 USD; None: computed as price x tokens.
        error: why the call failed; None if it did not. Failed calls do not count in an endpoint's accuracy.
    """

    answer: _Answer = None
    probabilities: tuple[_Amount, ...] | None = None
    score: _Share | None = None
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    cost_usd: _Usd | None = None
    latency_s: _Seconds | None = None
    error: StrictStr | None = None


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """One line of the log.

    Attributes:
        task: a topic name; policies see it only with ``show_task``.
        messages: OpenAI messages; a ``prompt`` becomes a single user message; empty if the log has no text.
        choices: the closed set of answers; None for a free-form question, and where only scores are known.
        label: the right answer: index into the choices, or text; None: only scores are known.
        outputs: endpoint name -> output, without endpoints that were not asked.
        line: line number in the file, from 1.
    """

    id: str
    task: str | None
    messages: tuple[Mapping[str, Any], ...]
    choices: tuple[str, ...] | None
    label: int | str | None
    outputs: Mapping[str, Output]
    line: int


def digest(query: LoggedQuery) -> str:
    """Return a digest of the question's text and choices, the same in any log; without text, of its id and answers."""
    if query.messages:
        content = json.dumps([query.messages, query.choices], sort_keys=True, default=dict)
    else:
        content = repr((query.id, sorted(query.outputs.items())))
    return blake2b(content.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def read_log(
    path: str | Path,
    *,
    bad_rows: list[str] | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> tuple[LoggedQuery, ...]:
    """Read a whole log (``.jsonl``, or ``.gz`` of it).

    Args:
        path: the file.
        bad_rows: a list that collects the errors of lines that break the format; these lines are skipped. None: the
            first such line raises its error.
        advance: called with the number of lines read.

    Raises:
        ConfigError: the log cannot be read, is empty, or a line breaks the format; the message names file, line and
            field.
    """
    path = Path(path)
    queries: list[LoggedQuery] = []
    seen: set[str] = set()
    for number, line in object_lines(path):
        advance(1)
        try:
            with locating(f"{path}:{number}"):
                query = _query(line, number)
                if query.id in seen:
                    raise ConfigError("id: is not unique in the file")
        except ConfigError as error:
            if bad_rows is None:
                raise
            bad_rows.append(str(error))
            continue
        seen.add(query.id)
        queries.append(query)
    if not queries:
        raise ConfigError(bad_rows[0] if bad_rows else f"{path}: holds no query")
    return tuple(queries)


def object_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a JSONL file with their numbers, without blank ones.

    Raises:
        ConfigError: the file is a table, begins a list, cannot be read, or is too large.
    """
    if path.suffix in _TABLES:
        raise ConfigError(
            f"{path}: is a table; give JSON with one object per line, as pandas' to_json(orient='records', lines=True) "
            "writes it"
        )
    first = True
    for number, line in numbered_lines(path):
        text = line.strip()
        if first and text.startswith("["):
            raise ConfigError(f"{path}:{number}: begins a list; give one object per line, as jq -c '.[]' writes it")
        if text:
            first = False
            yield number, line


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file, or of ``.gz`` of one, with their numbers.

    Raises:
        ConfigError: the file cannot be read, or is too large.
    """
    number = length = 0
    try:
        most = max(_MOST_UNPACKED, _MOST_EXPANSION * path.stat().st_size)
        with _open(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                length += len(line)
                if len(line) > LONGEST_LINE:
                    raise ConfigError(f"{path}:{number}: is longer than {LONGEST_LINE} bytes; shorten or drop it")
                if path.suffix == ".gz" and length > most:
                    raise ConfigError(
                        f"{path}:{number}: the file unpacks to over {_MOST_EXPANSION} times its size; unpack it first"
                    )
                yield number, line.decode("utf-8-sig")  # drops the byte order mark that Windows programs write
    except UnicodeDecodeError:
        raise ConfigError(f"{path}:{number}: is not UTF-8 text; save the file as UTF-8, or as .gz of it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}:{number + 1}: damaged gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    return path.open("rb")


def _parse_constant(name: str) -> None:
    """Read NaN, which pandas writes though it is not JSON, as null."""
    if name != "NaN":
        raise ConfigError(f"{name} is not a JSON number; give null")


def _parse_number(text: str) -> float | int:
    """Read 36.0 as the integer 36: pandas writes integers like that if the column has missing values."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary; raise if a key is given twice, as one of its values would silently be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ConfigError(f"{next(name for name, count in counts.items() if count > 1)[:200]}: is given twice")
    return made


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file, whose ``outputs`` are not checked yet."""

    id: _Name
    task: _Name | None = None
    prompt: StrictStr | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    choices: Annotated[tuple[_Name, ...], Field(min_length=2, max_length=_MOST_CHOICES)] | None = None
    label: _Answer = None
    outputs: Mapping[str, Any] | None = None


_TOKENS_ADVICE = "; give it, or cost_usd"
_ADVICE_IF_MISSING = {
    "answer": "; give null if the reply has none",
    "score": ", and the query has no label; give one of them, or leave such lines out (--skip-bad-rows)",
    "prompt_tokens": _TOKENS_ADVICE,
    "completion_tokens": _TOKENS_ADVICE,
}
_MAY_BE_EMPTY = ("label", "answer")
_FIELDS = {field.name for field in fields(_Line)}
_OUTPUT_FIELDS = {field.name for field in fields(Output)}
# Field -> other names for it, of which one is suggested if the field is missing.
_TEXT_SYNONYMS = {"prompt": ("question", "query", "text", "input", "content"), "messages": ()}
_LABEL_SYNONYMS = {"label": ("answer", "gold", "target", "reference", "ground_truth")}
_OUTPUT_SYNONYMS = {
    "answer": ("choice", "prediction"),
    "score": ("reward", "correct"),
    "cost_usd": ("cost", "total_cost", "price", "usd"),
}
_SIMILARITY = 0.85  # from which a name is taken for a misspelling; prompt_id is less similar to prompt
_MOST_LISTED = 200  # characters of field names in an error
_LINES, _OUTPUTS = TypeAdapter(_Line), TypeAdapter(Output)


def _query(line: str, number: int) -> LoggedQuery:
    """Parse and check one line."""
    if line.count("{") + line.count("[") > _MOST_PARTS:
        raise ConfigError(f"has more than {_MOST_PARTS} objects and lists")
    try:
        found = json.loads(
            line, parse_constant=_parse_constant, parse_float=_parse_number, object_pairs_hook=_unique_keys
        )
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid JSON: {error}; write each object in one line") from None
    if isinstance(found, dict) and found.get("outputs") is None:
        listed = ", ".join(found)[:_MOST_LISTED] or "nothing"
        raise ConfigError(
            f"outputs: give an object, endpoint name -> output, as docs/evaluating.md shows; the line has {listed}"
        )
    row = _validate(_LINES, found, "")
    if row.prompt is None and row.messages is None:
        _suggest_names(found, _TEXT_SYNONYMS, _FIELDS)
    given = {name: output for name, output in (row.outputs or {}).items() if output is not None}
    if row.label is None and any(isinstance(one, dict) and one.get("score") is None for one in given.values()):
        _suggest_names(found, _LABEL_SYNONYMS, _FIELDS)
    _check_answer("label", row.label, row.choices)
    outputs = {name: _output(f"outputs.{name}", output, row) for name, output in given.items()}
    choices = row.choices
    if choices is not None and row.label is None and outputs:
        choices = _choices_without_label(choices, outputs)
    return LoggedQuery(row.id, row.task, _messages(row), choices, row.label, outputs, number)


def _choices_without_label(choices: tuple[str, ...], outputs: Mapping[str, Output]) -> tuple[str, ...] | None:
    """Return the choices of a query without a label; None if no output chose one, so that only scores are known."""
    if all(output.answer is None and output.probabilities is None for output in outputs.values()):
        return None
    for name, output in outputs.items():
        if output.answer is None and output.score:
            raise ConfigError(f"outputs.{name}.answer: is missing, but the score is not 0; give both, or no choices")
    return choices


def _is_missing(name: str, value: object) -> bool:
    """Whether a field counts as missing: it is null, or an empty text other than a label or answer."""
    return value is None or (value == "" and name not in _MAY_BE_EMPTY)


def _validate(kind: TypeAdapter[_T], value: object, field: str) -> _T:
    """Validate an object, without the fields that count as missing; ``field`` is its name in errors."""
    if not isinstance(value, dict):
        raise ConfigError(f"{field}: is not a JSON object".removeprefix(": "))
    try:
        return kind.validate_python({name: one for name, one in value.items() if not _is_missing(name, one)})
    except ValidationError as error:
        place, problem = first_problem(error)
        raise ConfigError(f"{'.'.join(filter(None, (field, place)))}: {advice(problem)}") from None


def _suggest_names(
    found: Mapping[str, Any], synonyms: Mapping[str, Sequence[str]], known: Collection[str], within: str = ""
) -> None:
    """Raise an error if a missing field seems to be there under another name, which would be ignored.

    Args:
        synonyms: the fields that may be missing, with other names for each.
        known: the names of all fields.
        within: the place of the object in the line, with a final dot, for the message.
    """
    unknown = {name.lower(): name for name, value in found.items() if value is not None and name not in known}
    for field, others in synonyms.items():
        if found.get(field) is not None:
            continue
        similar = [name for name in others if name in unknown] or get_close_matches(field, unknown, 1, _SIMILARITY)
        if similar:
            raise ConfigError(f"{within}{unknown[similar[0]]}: unknown field; did you mean {field!r}?")


def _messages(row: _Line) -> tuple[Mapping[str, Any], ...]:
    if row.prompt is not None and row.messages is not None:
        raise ConfigError("prompt, messages: give one of them")
    if row.prompt is not None:
        return ({"role": "user", "content": row.prompt},)
    for message in row.messages or ():
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str | list | None):
            raise ConfigError('messages: give a list of OpenAI messages such as {"role": "user", "content": "..."}')
    return row.messages or ()


def _output(field: str, found: Any, row: _Line) -> Output:
    """Check one output of a line; ``field`` is its name in errors."""
    output = _validate(_OUTPUTS, found, field)
    _check_answer(f"{field}.answer", output.answer, row.choices)
    if output.error is None:
        needed = ["score"] if row.label is None else ["answer"]
        if output.cost_usd is None:
            needed += ["prompt_tokens", "completion_tokens"]
        for name in needed:
            no_answer = name == "answer" and name in found  # given as null: the reply has no answer
            if _is_missing(name, found.get(name)) and not no_answer:
                _suggest_names(found, _OUTPUT_SYNONYMS, _OUTPUT_FIELDS, f"{field}.")
                raise ConfigError(f"{field}.{name}: is missing{_ADVICE_IF_MISSING[name]}")
    if output.probabilities is None:
        return output
    if len(output.probabilities) != len(row.choices or ()):
        raise ConfigError(f"{field}.probabilities: give one probability for each choice")
    total = sum(output.probabilities)
    if total > 1 + _ROUNDED_EACH * len(output.probabilities):
        raise ConfigError(f"{field}.probabilities: add up to {total:.6g}, more than 1; divide them by that")
    if total < 1 - _ROUNDED_SUM:
        return output
    return replace(output, probabilities=tuple(p / total for p in output.probabilities))


def _check_answer(field: str, value: object, choices: Sequence[str] | None) -> None:
    """Check that an answer is an index into the choices, or a text if there are none."""
    if value is None:
        return
    if choices is None and not isinstance(value, str):
        raise ConfigError(f"{field}: give a string, not {value!r}")
    if choices is not None and not (type(value) is int and 0 <= value < len(choices)):
        raise ConfigError(f"{field}: give an index into the {len(choices)} choices, not {value!r}")
