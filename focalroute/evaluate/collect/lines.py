"""The outcome log while it is being written: whole lines in the order of the questions, and what is there already."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

from focalroute.answers import AnswerKind, normal_form
from focalroute.core.errors import ConfigError
from focalroute.core.records import Reply
from focalroute.evaluate.collect.dataset import LabelledQuestion
from focalroute.evaluate.outcomes import LoggedQuery, read_log


def outputs_of(replies: Sequence[Reply], kind: AnswerKind | None) -> dict[str, Mapping[str, Any]]:
    """By endpoint, what the log says of its reply: the ``answer`` (the index of the choice, or the text in normal form;
    None: there is none in it), or the ``error`` of a call that came to nothing."""
    return {reply.endpoint: _output(reply, kind) for reply in replies}


def line_of(question: LabelledQuestion, outputs: Mapping[str, Mapping[str, Any]]) -> str:
    """One line of the log."""
    row: dict[str, Any] = {"id": question.id, "task": question.task, "choices": question.choices}
    row |= {"messages": question.messages} if question.prompt is None else {"prompt": question.prompt}
    row |= {"label": question.label, "outputs": outputs}
    return json.dumps({key: value for key, value in row.items() if value is not None}, ensure_ascii=False)


def _output(reply: Reply, kind: AnswerKind | None) -> Mapping[str, Any]:
    tokens = (0, 0) if reply.usage is None else (reply.usage.prompt_tokens, reply.usage.completion_tokens)
    output: dict[str, Any] = dict(zip(("prompt_tokens", "completion_tokens"), tokens, strict=True))
    output["latency_s"] = round(reply.latency_s, 4)
    if reply.cost is not None:
        output["cost_usd"] = float(reply.cost)
    if reply.error is not None and reply.error.kind != "unusable":  # a reply that holds no answer is one
        return {"error": f"{reply.error.kind}: {reply.error.message}", **output}
    if reply.probabilities is not None:
        output["probabilities"] = reply.probabilities
    return {"answer": _answer(reply, kind), **output}


def _answer(reply: Reply, kind: AnswerKind | None) -> int | str | None:
    if reply.error is not None:
        return None
    return reply.choice if reply.choice is not None else normal_form(reply.text or "", kind)


class LogFile:
    """Each line is written as soon as its question is answered, and put in the questions' order at the end.

    Args:
        path: a ``.jsonl`` file.
        questions: what is asked, in order.
        resume: go on with what is there; else nothing may be.

    Attributes:
        done: the ids of the questions whose lines are there.
        spent: USD that these cost when the log was opened, as far as it is known.

    Raises:
        ConfigError: it is there and not to be resumed, holds other questions, or cannot be written.
    """

    def __init__(self, path: Path, questions: Sequence[LabelledQuestion], *, resume: bool) -> None:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: give the log a name that ends in .jsonl")
        if path.exists() and not resume:
            raise ConfigError(f"{path}: is there already; resume it, or give another name")
        self._path = path
        self._order = {question.id: number for number, question in enumerate(questions)}
        with ExitStack() as opened:
            try:
                self._file = opened.enter_context(path.open("ab+"))
                self._file.truncate(self._whole())
                there = read_log(path) if self._file.seek(0, os.SEEK_END) else ()
            except OSError as error:
                raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
            self._must_be_of_them(there)
            opened.pop_all()  # it stays open
        self.done = {query.id for query in there}
        outputs = [output for query in there for output in query.outputs.values()]
        self.spent = sum((Decimal(str(output.cost_usd or 0)) for output in outputs), Decimal(0))

    def _whole(self) -> int:
        """Bytes up to the end of the last whole line: a process that died may have left half of one."""
        self._file.seek(0)
        return self._file.read().rfind(b"\n") + 1

    def _must_be_of_them(self, there: Sequence[LoggedQuery]) -> None:
        other = next((query for query in there if query.id not in self._order), None)
        if other is not None:
            raise ConfigError(
                f"{self._path}:{other.line}: id: {other.id!r} is not in the dataset; give the log another name"
            )

    def put(self, id_: str, line: str) -> None:
        """Write the line of a question."""
        self._file.write(line.encode("utf-8", "replace") + b"\n")
        self._file.flush()
        self.done.add(id_)

    def close(self) -> None:
        """Put the lines in order; at any moment the file holds all of them."""
        self._file.seek(0)
        lines = self._file.readlines()
        ordered = sorted(lines, key=lambda line: self._order[json.loads(line)["id"]])
        self._file.close()
        if lines != ordered:
            beside = self._path.with_name(self._path.name + ".sorted")
            beside.write_bytes(b"".join(ordered))
            beside.replace(self._path)
