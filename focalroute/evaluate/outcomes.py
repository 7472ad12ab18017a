"""Reads an outcome log: what a pool answered to past queries, one JSON object a line, in the order they came.

Whatever breaks the format is a `ConfigError` with file, line number and field; a log is read whole or not at all.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np

from focalroute.core.errors import ConfigError
from focalroute.core.records import F32

_T = TypeVar("_T")

_LONGEST_LINE = 16 * 2**20  # bytes
_MOST_TEXT, _MOST_GAIN = 64 * 2**20, 100  # a log may unpack to so many bytes, or to so many times its file
_MOST_CHOICES = 1000  # as in serving
_MOST_PARTS = 200_000  # objects and lists in a line, each of which takes many times its text
_ROUNDING = 1e-3  # how far below 1 probabilities may add up that were rounded
_ROUNDED = 0.00501  # by how much each may be too large: rounded to two digits


@dataclass(frozen=True, slots=True)
class Output:
    """One endpoint's output.

    Attributes:
        answer: index into the choices, or free-form text; None: it replied but nothing usable, or only ``score`` is
            known.
        probabilities: mass on each choice, adding up to at most 1 (rounded ones to 1); None where not recorded.
        score: quality in [0, 1]; used where the query has no label.
        cost_usd: what the call cost, float64 USD; None: price x tokens.
        error: why the call failed; None if it did not. A failed call is neither right nor wrong.
    """

    answer: int | str | None
    probabilities: tuple[float, ...] | None
    score: float | None
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    latency_s: float | None
    error: str | None

    def masses(self, candidate: int, width: int) -> F32:
        """Its mass on each of ``width`` candidates: its probabilities, else its vote; zeros without an answer.

        Args:
            candidate: the one it backs; -1: none.
            width: at least the number of candidates.
        """
        found = np.zeros(width, np.float32)
        if self.probabilities is not None and self.error is None:
            found[: len(self.probabilities)] = self.probabilities
        elif candidate >= 0:
            found[candidate] = 1
        return found


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """One line of the log.

    Attributes:
        task: a topic name; no policy sees it unless asked for.
        messages: OpenAI messages; of a ``prompt`` a single one of the user; none where the log holds no text.
        choices: the closed set of answers, None for a free-form question.
        label: the right answer: index into the choices, or text; None: only scores are known.
        outputs: endpoint name -> output; an endpoint that was not asked is absent.
        line: where it stands in the file, from 1.
    """

    id: str
    task: str | None
    messages: tuple[Mapping[str, Any], ...]
    choices: tuple[str, ...] | None
    label: int | str | None
    outputs: Mapping[str, Output]
    line: int


def digest(query: LoggedQuery) -> str:
    """Return a name of a question that is the same in any log; without text, by its id and answers."""
    if query.messages:
        asked = json.dumps([query.messages, query.choices], sort_keys=True, default=dict)
    else:
        asked = repr((query.id, sorted(query.outputs.items())))
    return blake2b(asked.encode(errors="surrogatepass"), digest_size=6).hexdigest()


class _Breach(Exception):
    """A field breaks the format."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}" if field else why)


def read_log(path: str | Path, *, answered: bool = True, bad_rows: list[str] | None = None) -> tuple[LoggedQuery, ...]:
    """Read a whole log (``.jsonl``, or ``.gz`` of it).

    Args:
        path: of the file.
        answered: whether every line must have outputs; if not, they may be left out.
        bad_rows: gets what is wrong with each line that breaks the format, which is then left out; None: the first such
            line is an error.

    Raises:
        ConfigError: it cannot be read, is empty, or a line breaks the format; the message names file, line and field.
    """
    path = Path(path)
    queries: list[LoggedQuery] = []
    seen: set[str] = set()
    for number, line in _lines(path):
        try:
            query = _query(line, number, answered=answered)
            if query.id in seen:
                raise _Breach("id", "is not unique in the file")
        except _Breach as breach:
            said = f"{path}:{number}: {breach}"
            if bad_rows is None:
                raise ConfigError(said) from None
            bad_rows.append(said)
            continue
        seen.add(query.id)
        queries.append(query)
    if not queries:
        raise ConfigError(bad_rows[0] if bad_rows else f"{path}: holds no query")
    return tuple(queries)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = length = 0
    try:
        most = max(_MOST_TEXT, _MOST_GAIN * path.stat().st_size)
        with _open(path) as file:
            while line := file.readline(_LONGEST_LINE + 1):
                number += 1
                length += len(line)
                if len(line) > _LONGEST_LINE:
                    raise ConfigError(f"{path}:{number}: is longer than {_LONGEST_LINE} bytes; shorten or drop it")
                if path.suffix == ".gz" and length > most:
                    raise ConfigError(
                        f"{path}:{number}: the log unpacks to over {_MOST_GAIN} times its size; check it, and unpack it"
                    )
                yield number, line.decode("utf-8-sig")  # Windows begins files with a mark
    except UnicodeDecodeError:
        raise ConfigError(f"{path}:{number}: is not UTF-8; save it as that") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}:{number + 1}: damaged gzip file: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _refuse(constant: str) -> NoReturn:
    raise _Breach("", f"{constant} is not a JSON number")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object's keys and values; a key given twice would silently lose a value."""
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _Breach(next(name for name, count in counts.items() if count > 1)[:200], "is given twice")
    return made


def _query(line: str, number: int, *, answered: bool) -> LoggedQuery:
    if not line.strip():
        raise _Breach("", "is empty; drop the line")
    if line.count("{") + line.count("[") > _MOST_PARTS:
        raise _Breach("", f"has more than {_MOST_PARTS} objects and lists")
    try:
        row = json.loads(line, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _Breach("", f"not valid JSON: {error}; a line holds an object") from None
    if not isinstance(row, dict):
        raise _Breach("", "is not a JSON object")
    choices = _choices(row.get("choices"))
    label = _answer("label", row.get("label"), choices)
    outputs = row.get("outputs", None if answered else {})
    if not isinstance(outputs, dict):
        raise _Breach("outputs", "give an object, endpoint name -> output")
    return LoggedQuery(
        id=_required("id", row.get("id")),
        task=_optional(row, "task", "task", _text),
        messages=_messages(row),
        choices=choices,
        label=label,
        outputs={
            name: _output(f"outputs.{name}", output, choices, labelled=label is not None)
            for name, output in outputs.items()
        },
        line=number,
    )


def _messages(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    prompt = _optional(row, "prompt", "prompt", _text)
    messages = row.get("messages")
    if prompt is not None and messages is not None:
        raise _Breach("prompt, messages", "give one of them")
    if prompt is not None:
        return ({"role": "user", "content": prompt},)
    if messages is None:
        return ()
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise _Breach("messages", 'give a list of OpenAI messages such as {"role": "user", "content": "..."}')
    return tuple(messages)


def _is_message(message: object) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    return isinstance(message.get("content"), str | list | None)


def _choices(choices: object) -> tuple[str, ...] | None:
    if choices is None:
        return None
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
        raise _Breach("choices", "give a list of at least 2 strings")
    if len(choices) > _MOST_CHOICES:
        raise _Breach("choices", f"give at most {_MOST_CHOICES}, not {len(choices)}")
    return tuple(choices)


def _answer(field: str, value: object, choices: tuple[str, ...] | None) -> int | str | None:
    if value is None:
        return None
    if choices is None:
        return _text(field, value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(choices):
        raise _Breach(field, f"give an index into the {len(choices)} choices, not {value!r}")
    return value


def _output(field: str, output: object, choices: tuple[str, ...] | None, *, labelled: bool) -> Output:
    if not isinstance(output, dict):
        raise _Breach(field, "is not a JSON object")
    error = _optional(output, "error", f"{field}.error", _text)
    cost = _optional(output, "cost_usd", f"{field}.cost_usd", _amount)
    score = _optional(output, "score", f"{field}.score", _share)
    if error is None and labelled and "answer" not in output:
        raise _Breach(f"{field}.answer", "is missing; null where the reply holds no answer")
    if error is None and not labelled and score is None:
        raise _Breach(f"{field}.score", "is missing, and the query has no label")
    spared = error is not None or cost is not None  # nothing more is needed to know the cost
    return Output(
        answer=_answer(f"{field}.answer", output.get("answer"), choices),
        probabilities=_probabilities(f"{field}.probabilities", output.get("probabilities"), choices),
        score=score,
        prompt_tokens=_tokens(f"{field}.prompt_tokens", output.get("prompt_tokens"), spared=spared),
        completion_tokens=_tokens(f"{field}.completion_tokens", output.get("completion_tokens"), spared=spared),
        cost_usd=cost,
        latency_s=_optional(output, "latency_s", f"{field}.latency_s", _amount),
        error=error,
    )


def _probabilities(field: str, value: object, choices: tuple[str, ...] | None) -> tuple[float, ...] | None:
    if value is None:
        return None
    if choices is None or not isinstance(value, list) or len(value) != len(choices):
        raise _Breach(field, "give one probability for each choice")
    shares = tuple(_amount(field, p) for p in value)
    total = sum(shares)
    if total > 1 + _ROUNDED * len(shares):
        raise _Breach(field, f"add up to {total:.6g}, more than 1; divide them by that")
    return tuple(p / total for p in shares) if total >= 1 - _ROUNDING else shares


def _tokens(field: str, value: object, *, spared: bool) -> int:
    if value is None and spared:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _Breach(field, "give a number of tokens" if value is not None else "is missing")
    return value


def _optional(row: Mapping[str, Any], key: str, field: str, check: Callable[[str, object], _T]) -> _T | None:
    value = row.get(key)
    return None if value is None else check(field, value)


def _required(field: str, value: object) -> str:
    if value is None:
        raise _Breach(field, "is missing")
    return _text(field, value)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise _Breach(field, f"give a string, not {type(value).__name__}")
    return value


def _amount(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise _Breach(field, "give a number, at least 0")
    return float(value)


def _share(field: str, value: object) -> float:
    amount = _amount(field, value)
    if amount > 1:
        raise _Breach(field, "give a number in [0, 1]")
    return amount
