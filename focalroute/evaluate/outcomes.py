"""Reads an outcome log: a pool's answers to past queries, one JSON object for each query, in order of arrival.

A breach of the format is a `ConfigError` with file, line number and field; a log is read whole or not at all.
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
_MOST_TEXT, _MOST_GAIN = 64 * 2**20, 100  # the most that a gzip file may unpack to: bytes, or times its size
_MOST_CHOICES = 1000  # as in serving
_MOST_PARTS = 200_000  # objects and lists in a line, as each takes many times the memory of its text
_ROUNDING = 1e-3  # how far below 1 the sum of rounded probabilities may be
_ROUNDED = 0.00501  # how much too large each probability may be, rounded to two digits


@dataclass(frozen=True, slots=True)
class Output:
    """One endpoint's output.

    Attributes:
        answer: index into the choices, or free-form text; None: the reply was not usable, or only ``score`` is known.
        probabilities: probability of each choice, with a sum of at most 1 (normalised to 1 if only rounded); None: not
            recorded.
        score: quality in [0, 1]; used if the query has no label.
        cost_usd: the cost of the call, float64 USD; None: price x tokens.
        error: why the call failed; None if it did not. What is learned of an endpoint leaves its failed calls out.
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
        task: a topic name; no policy sees it unless asked for.
        messages: OpenAI messages; a ``prompt`` is a single user message; empty if the log has no text.
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
    """Return a digest of a question that is the same in any log; without text, one of its id and answers."""
    if query.messages:
        asked = json.dumps([query.messages, query.choices], sort_keys=True, default=dict)
    else:
        asked = repr((query.id, sorted(query.outputs.items())))
    return blake2b(asked.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def read_log(
    path: str | Path,
    *,
    bad_rows: list[str] | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> tuple[LoggedQuery, ...]:
    """Read a whole log (``.jsonl``, or ``.gz`` of it).

    Args:
        path: the file.
        bad_rows: collects the errors of lines that break the format, which are then left out; None: the first such line
            is an error.
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
        except ConfigError as breach:
            if bad_rows is None:
                raise
            bad_rows.append(str(breach))
            continue
        seen.add(query.id)
        queries.append(query)
    if not queries:
        raise ConfigError(bad_rows[0] if bad_rows else f"{path}: holds no query")
    return tuple(queries)


def object_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of JSON objects, one a line, with their numbers; blank ones are left out.

    Raises:
        ConfigError: the file is a table, begins a list, cannot be read, or is too large.
    """
    if path.suffix in _TABLES:
        raise ConfigError(
            f"{path}: give JSON, one object a line, as pandas' to_json(orient='records', lines=True) writes a table"
        )
    first = True
    for number, line in numbered_lines(path):
        text = line.strip()
        if first and text.startswith("["):
            raise ConfigError(f"{path}:{number}: begins a list; give one object a line, as jq -c '.[]' writes it")
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
        most = max(_MOST_TEXT, _MOST_GAIN * path.stat().st_size)
        with _open(path) as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                length += len(line)
                if len(line) > LONGEST_LINE:
                    raise ConfigError(f"{path}:{number}: is longer than {LONGEST_LINE} bytes; shorten or drop it")
                if path.suffix == ".gz" and length > most:
                    raise ConfigError(
                        f"{path}:{number}: the file unpacks to over {_MOST_GAIN} times its size; unpack it first"
                    )
                yield number, line.decode("utf-8-sig")  # drops Windows' byte order mark
    except UnicodeDecodeError:
        raise ConfigError(f"{path}:{number}: is not UTF-8 text; save it as that, or as .gz of it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}:{number + 1}: damaged gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    return path.open("rb")


def _constant(name: str) -> None:
    """Read pandas' NaN, which is not JSON, as null."""
    if name != "NaN":
        raise ConfigError(f"{name} is not a JSON number; give null")


def _number(text: str) -> float | int:
    """Read 36.0 as 36: pandas writes the whole numbers of a column so if some are missing."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary, and refuse a key given twice, which would silently lose a value."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ConfigError(f"{next(name for name, count in counts.items() if count > 1)[:200]}: is given twice")
    return made


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the file; ``outputs`` are checked one by one."""

    id: _Name
    task: _Name | None = None
    prompt: StrictStr | None = None
    messages: tuple[Mapping[str, Any], ...] | None = None
    choices: Annotated[tuple[_Name, ...], Field(min_length=2, max_length=_MOST_CHOICES)] | None = None
    label: _Answer = None
    outputs: Mapping[str, Any] | None = None


_TOKENS = "; give it, or cost_usd"
_WHY_NEEDED = {
    "answer": "; give null where the reply holds none",
    "score": ", and the query has no label; give one of them, or leave such lines out (--skip-bad-rows)",
    "prompt_tokens": _TOKENS,
    "completion_tokens": _TOKENS,
}
_TEXTS = ("label", "answer")  # may be empty
_FIELDS = {field.name for field in fields(_Line)}
_OUTPUT_FIELDS = {field.name for field in fields(Output)}
#: Other names for fields that a line may lack, by the name here: those with a query's text, and those of an output.
_TEXT_SYNONYMS = {"prompt": ("question", "query", "text", "input", "content"), "messages": ()}
_LABEL_SYNONYMS = {"label": ("answer", "gold", "target", "reference", "ground_truth")}
_OUTPUT_SYNONYMS = {
    "answer": ("choice", "prediction"),
    "score": ("reward", "correct"),
    "cost_usd": ("cost", "total_cost", "price", "usd"),
}
_LIKENESS = 0.85  # of a misspelt name to the right one; prompt_id is less alike
_MOST_NAMED = 200  # characters of names in an error
_LINES, _OUTPUTS = TypeAdapter(_Line), TypeAdapter(Output)


def _query(line: str, number: int) -> LoggedQuery:
    if line.count("{") + line.count("[") > _MOST_PARTS:
        raise ConfigError(f"has more than {_MOST_PARTS} objects and lists")
    try:
        found = json.loads(line, parse_constant=_constant, parse_float=_number, object_pairs_hook=_unique)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not valid JSON: {error}; write each object in one line") from None
    if isinstance(found, dict) and found.get("outputs") is None:
        named = ", ".join(found)[:_MOST_NAMED] or "nothing"
        raise ConfigError(
            f"outputs: give an object, endpoint name -> output, as docs/evaluating.md shows; the line has {named}"
        )
    row = _checked(_LINES, found, "")
    if row.prompt is None and row.messages is None:
        _check_names(found, _TEXT_SYNONYMS, _FIELDS)
    given = {name: one for name, one in (row.outputs or {}).items() if one is not None}
    if row.label is None and any(isinstance(one, dict) and one.get("score") is None for one in given.values()):
        _check_names(found, _LABEL_SYNONYMS, _FIELDS)
    _check_answer("label", row.label, row.choices)
    outputs = {name: _output(f"outputs.{name}", one, row) for name, one in given.items()}
    choices = row.choices
    if choices is not None and row.label is None and outputs:
        choices = _choices_to_back(choices, outputs)
    return LoggedQuery(row.id, row.task, _messages(row), choices, row.label, outputs, number)


def _choices_to_back(choices: tuple[str, ...], outputs: Mapping[str, Output]) -> tuple[str, ...] | None:
    """The choices of a query without a label; None if no output says which it backs, so that only scores are known."""
    if all(one.answer is None and one.probabilities is None for one in outputs.values()):
        return None
    for name, one in outputs.items():
        if one.answer is None and one.score:
            raise ConfigError(f"outputs.{name}.answer: is missing, but the score is not 0; give both, or no choices")
    return choices


def _is_left_out(name: str, value: object) -> bool:
    return value is None or (value == "" and name not in _TEXTS)


def _checked(kind: TypeAdapter[_T], value: object, field: str) -> _T:
    """Validate an object of this kind; null fields, and empty texts but labels and answers, count as left out."""
    if not isinstance(value, dict):
        raise ConfigError(f"{field}: is not a JSON object".removeprefix(": "))
    try:
        return kind.validate_python({name: one for name, one in value.items() if not _is_left_out(name, one)})
    except ValidationError as error:
        place, problem = first_problem(error)
        raise ConfigError(f"{'.'.join(filter(None, (field, place)))}: {advice(problem)}") from None


def _check_names(
    found: Mapping[str, Any], synonyms: Mapping[str, Sequence[str]], known: Collection[str], within: str = ""
) -> None:
    """Refuse an object that seems to have a field which it lacks under another name, as that would be ignored."""
    others = {name.lower(): name for name, value in found.items() if value is not None and name not in known}
    missing = [meant for meant in synonyms if others and found.get(meant) is None]
    for meant in missing:
        near = [name for name in synonyms[meant] if name in others] or get_close_matches(meant, others, 1, _LIKENESS)
        if near:
            raise ConfigError(f"{within}{others[near[0]]}: unknown field; did you mean {meant!r}?")


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
    output = _checked(_OUTPUTS, found, field)
    _check_answer(f"{field}.answer", output.answer, row.choices)
    if output.error is None:
        needed = ["score"] if row.label is None else ["answer"]
        if output.cost_usd is None:
            needed += ["prompt_tokens", "completion_tokens"]
        for name in needed:
            no_answer = name == "answer" and name in found  # there is none in the reply
            if _is_left_out(name, found.get(name)) and not no_answer:
                _check_names(found, _OUTPUT_SYNONYMS, _OUTPUT_FIELDS, f"{field}.")
                raise ConfigError(f"{field}.{name}: is missing{_WHY_NEEDED.get(name, '')}")
    if output.probabilities is None:
        return output
    if len(output.probabilities) != len(row.choices or ()):
        raise ConfigError(f"{field}.probabilities: give one probability for each choice")
    total = sum(output.probabilities)
    if total > 1 + _ROUNDED * len(output.probabilities):
        raise ConfigError(f"{field}.probabilities: add up to {total:.6g}, more than 1; divide them by that")
    if total < 1 - _ROUNDING:
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
