"""Makes an outcome log of the samples that lm-evaluation-harness writes for multiple-choice tasks.

Its files, ``samples_TASK_DATE.jsonl`` (written with ``--log_samples``; leaderboards publish them as details), have one
object for each question. ``filtered_resps`` has [log-likelihood, greedy] for each choice, and ``arguments`` has the
context and the choice. A choice's probability is the product of its tokens' probabilities, normalised over the choices,
as in RL-Focal (arXiv 2502.04492).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from focalroute.core.errors import ConfigError
from focalroute.core.files import refusing
from focalroute.evaluate.dataset import json_objects
from focalroute.evaluate.outcomes import read_log
from focalroute.policy.decider import posterior

_FILE = re.compile(r"(?:samples_)?(?P<task>.+?)(?:_\d{4}-\d\d-\d\dT[\d:.-]+)?$")
_CHARACTERS_PER_TOKEN = 4  # roughly; the files have no token counts


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        questions: number of the log's lines.
        answered: model -> number of answers.
        right: model -> number of right answers.
        bad_rows: number of rows that were left out.
    """

    questions: int
    answered: Mapping[str, int]
    right: Mapping[str, int]
    bad_rows: int = 0


@dataclass(frozen=True, slots=True)
class _Sample:
    """One question as one model was asked it; prompts may differ between models, as chat templates do."""

    id: str
    task: str
    choices: tuple[str, ...]
    label: int
    digest: object = field(compare=False)
    prompt: str = field(compare=False)


#: A question as its first model was asked it, and model -> output.
_Question = tuple[_Sample, dict[str, Mapping[str, Any]]]


def import_samples(
    files: Mapping[str, Sequence[str | Path]], out: str | Path, *, skip_bad_rows: bool = False
) -> Imported:
    """Write an outcome log from models' files, with the questions in order of first occurrence.

    Rows with the same task (from the file's name) and ``doc_id`` are the same question. They must have the same choices
    and label. The log has the context that the first model saw. Prompt tokens are estimated as characters / 4, summed
    over the choices, as each choice takes a call of its own.

    Args:
        files: model (the endpoint's name) -> its files, one for each task.
        out: the log, ``.jsonl``, which must not exist yet. It is written whole or not at all.
        skip_bad_rows: whether to skip rows that break the format, or have other choices or another label than the same
            question of an earlier model. Else such a row is an error.

    Raises:
        ConfigError: a row is bad (the message names file and line), or no two models have a question in common.
    """
    target = Path(out)
    if target.suffix != ".jsonl":
        raise ConfigError(f"{target}: give the log a name that ends in .jsonl")
    if target.exists():
        raise ConfigError(f"{target}: already exists; give another name")
    if not any(files.values()):
        raise ConfigError("files: give at least one, as MODEL=FILE")
    questions, bad_rows = _read_files(files, skip_bad_rows=skip_bad_rows)
    if not questions:
        raise ConfigError(bad_rows[0] if bad_rows else "files: hold no question")
    if len(files) > 1 and all(len(outputs) == 1 for _, outputs in questions):
        raise ConfigError(
            "files: no two models have a question in common; name all files of a task alike, such as samples_TASK.jsonl"
        )
    lines = []
    answered, right = dict.fromkeys(files, 0), dict.fromkeys(files, 0)
    for sample, outputs in questions:
        columns = {name: getattr(sample, name) for name in ("id", "task", "prompt", "choices", "label")}
        lines.append({**columns, "outputs": outputs})
        for name, output in outputs.items():
            answered[name] += 1
            right[name] += output["answer"] == sample.label
    _write(target, lines)
    return Imported(len(questions), answered, right, len(bad_rows))


def _read_files(
    files: Mapping[str, Sequence[str | Path]], *, skip_bad_rows: bool
) -> tuple[Sequence[_Question], list[str]]:
    """Read all files; return the questions in order of first occurrence, and the errors of skipped rows."""
    found: dict[str, _Question] = {}
    bad_rows: list[str] = []
    rows = ((model, file, *row) for model, paths in files.items() for file in paths for row in json_objects(Path(file)))
    for model, file, where, row in rows:
        try:
            sample, output = _read_row(row, _task(Path(file)))
            first, outputs = found.setdefault(sample.id, (sample, {}))
            if model in outputs:
                raise ConfigError(f"doc_id: {sample.id!r} appears twice for {model}; give each question once")
            hashes = (sample.digest, first.digest)
            if sample != first or (None not in hashes and hashes[0] != hashes[1]):
                raise ConfigError(
                    "doc_id: another model's question with this id has other choices, label or doc_hash; give samples "
                    "of one version of the task"
                )
            outputs[model] = output
        except ConfigError as error:
            if not skip_bad_rows:
                raise ConfigError(f"{where}: {error}") from None
            bad_rows.append(f"{where}: {error}")
    return tuple(found.values()), bad_rows


def _task(path: Path) -> str:
    """Return the task that a file is named after."""
    found = _FILE.match(re.sub(r"\.jsonl?(\.gz)?$", "", path.name))
    return found["task"] if found else path.name


def _read_row(row: Mapping[str, Any], task: str) -> tuple[_Sample, Mapping[str, Any]]:
    """Check a row; return its question and the model's output in the log's format."""
    if row.get("doc_id") is None:
        raise ConfigError("doc_id: is missing; give the samples that lm-evaluation-harness wrote")
    likelihoods = _likelihoods(row.get("filtered_resps"))
    requests = _requests(row.get("arguments"))
    if len(requests) != len(likelihoods):
        raise ConfigError(
            f"arguments: has {len(requests)} requests, but filtered_resps has {len(likelihoods)} log-likelihoods; give "
            "one for each choice"
        )
    choices = tuple(text for _, text in requests)
    stripped = tuple(text.strip() for text in choices)
    if all(stripped) and len(set(stripped)) == len(stripped):
        choices = stripped
    if len(set(choices)) == 1 and len({context for context, _ in requests}) > 1:
        raise ConfigError("arguments: the choices are in the contexts, as WinoGrande's are; leave such tasks out")
    if len(set(choices)) < len(choices):
        raise ConfigError("arguments: two choices are the same; drop the question")
    label = _label(row.get("target"), choices)
    answer = max(range(len(likelihoods)), key=likelihoods.__getitem__)
    acc = row.get("acc")
    if isinstance(acc, int | float) and acc != (answer == label):
        raise ConfigError(
            f"target: acc is {acc:g}, but by this target it would be {answer == label:d}; leave out tasks with several "
            "right choices, or whose target is an index into other choices"
        )
    tokens = sum(math.ceil((len(context) + len(text)) / _CHARACTERS_PER_TOKEN) for context, text in requests)
    output = {
        "answer": answer,
        "probabilities": posterior(likelihoods),
        "prompt_tokens": tokens,
        "completion_tokens": 0,
    }
    return _Sample(f"{task}/{row['doc_id']}", task, choices, label, row.get("doc_hash"), requests[0][0]), output


def _likelihoods(responses: object) -> list[float]:
    """Return the log-likelihood of each choice; some versions of the harness write numbers, others texts."""
    if not isinstance(responses, list) or len(responses) < 2:
        raise ConfigError(
            "filtered_resps: give the log-likelihoods of at least two choices; generated replies become a log "
            "as docs/evaluating.md shows"
        )
    found = []
    for response in responses:
        pair = response if isinstance(response, list) else [response]
        try:
            value = float(pair[0])
        except (IndexError, TypeError, ValueError):
            raise ConfigError("filtered_resps: give [log-likelihood, greedy] for each choice") from None
        if math.isnan(value) or value > 1e-6:
            raise ConfigError(f"filtered_resps: {value} is not a log-likelihood")
        found.append(value)
    if max(found) == -math.inf:
        raise ConfigError("filtered_resps: every choice has log-likelihood -inf; drop the question")
    return found


def _requests(arguments: object) -> list[tuple[str, str]]:
    """Return each request as (context, choice).

    They are given as pairs, or as ``{"gen_args_0": {"arg_0": ..., "arg_1": ...}, ...}``.
    """
    if isinstance(arguments, Mapping):
        order = sorted(arguments, key=lambda name: int(re.sub(r"\D", "", name) or 0))
        arguments = [list(arguments[name].values()) for name in order if isinstance(arguments[name], Mapping)]
    pairs = [tuple(pair[:2]) for pair in arguments] if isinstance(arguments, list) else []
    if not pairs or not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs):
        raise ConfigError("arguments: give context and choice of every request")
    return [(str(context), str(text)) for context, text in pairs]


def _label(target: object, choices: tuple[str, ...]) -> int:
    """Return the index of the right choice: a number is an index, as in the harness; any other text is a choice."""
    text = str(target).strip()
    if text.isdecimal() and int(text) < len(choices):
        return int(text)
    if text in choices:
        return choices.index(text)
    raise ConfigError(f"target: {text[:40]!r} is neither an index nor one of the {len(choices)} choices")


def _write(target: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the log to a temporary file, check it, and only then give it its name."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with refusing(target, "written"), TemporaryDirectory(dir=target.parent) as folder:
        draft = Path(folder) / target.name
        draft.write_bytes(text.encode("utf-8", "replace"))  # like collect, writes a lone surrogate as a question mark
        read_log(draft)
        draft.replace(target)
