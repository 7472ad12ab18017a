"""``focalroute batch``: asks a file of questions and writes a file of answers; an interrupted run can be resumed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from focalroute.cli import JsonOption, PolicyOption, PoolOption, StoreOption, given, resumable
from focalroute.core.dollars import Dollars, dollars
from focalroute.core.errors import ConfigError, FocalrouteError, PoolError, locating
from focalroute.core.files import hold_file, naming, refusing
from focalroute.core.progress import progress_bar
from focalroute.core.receipts import error_text

if TYPE_CHECKING:
    from focalroute.core.config import Budget
    from focalroute.core.receipts import Answer


_COST = re.compile(r"\d{1,20}(\.\d{1,60})?")


def batch(
    questions: Annotated[
        Path,
        typer.Argument(
            help="A .jsonl or .jsonl.gz file, each line a question as JSON: a text, or an object of ask's arguments."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The .jsonl file of answers to write.")],
    pool: PoolOption = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions at a time.")] = 16,
    max_usd: Annotated[str | None, typer.Option(help="The most the whole file may cost, USD.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Ask only questions without an answer in the file.")] = False,
    store: StoreOption = None,
    policy: PolicyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a pool a file of questions; write each answer, with its question's index, as it comes.

    Exit code 1 if a question failed; --resume asks it again.
    """
    from focalroute.core.dollars import parse_usd
    from focalroute.core.pool import find_pool, load_pool
    from focalroute.serving.concurrency import check_concurrency

    check_concurrency(concurrency)
    pool = pool or find_pool()
    lines = _read(questions)
    with _Answers(out, [line.digest for line in lines], resume=resume) as answers:
        settings = given(store=store, policy=policy)
        before, tag = len(answers.done), f"batch-{secrets.token_hex(8)}"
        if max_usd is not None:
            left = parse_usd(max_usd, "max_usd") - answers.usd
            if left <= 0:
                raise ConfigError(f"max_usd: {out} has already cost {dollars(answers.usd)}; allow more")
            settings["budget"] = _with_limit(load_pool(pool).budget, tag, left)
        to_ask = [line for line in lines if line.index not in answers.done]
        with resumable(), progress_bar("asking", len(to_ask), shown=not as_json) as advance:
            failed = asyncio.run(_ask(pool, settings, to_ask, answers, advance, concurrency=concurrency, tag=tag))
    result = {"out": str(out), "before": before, "asked": len(to_ask), "failed": len(failed)}
    usd = None if answers.unpriced else answers.usd
    if as_json:
        print(json.dumps({**result, "usd": usd}, default=str))
    else:
        earlier = f" ({before} from before)" if before else ""
        print(f"{len(to_ask) - len(failed)} answered, {len(failed)} failed, {dollars(usd)} in all; {out}{earlier}")
        for message in sorted(set(failed))[:3]:
            print(f"  {message}")
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Line:
    index: int
    arguments: Mapping[str, Any]
    digest: str


def _read(path: Path) -> list[_Line]:
    """Read and check all questions before any is asked.

    Raises:
        ConfigError: the file cannot be read or is empty, or a line is not a question.
    """
    from focalroute.core.spelling import did_you_mean
    from focalroute.evaluate.outcomes import numbered_lines
    from focalroute.serving.query import ARGUMENTS, INSTEAD, make_query

    found: list[_Line] = []
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        with locating(f"{path}:{number}"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError("is not JSON; write a text in quotes, or an object") from None
            arguments = {"query": value} if isinstance(value, str | list) else value
            if not isinstance(arguments, dict) or not {"query", "messages"} & set(arguments):
                raise ConfigError('query: required; write a text, or {"query": "...", ...}')
            if unknown := sorted(set(arguments) - set(ARGUMENTS)):
                meant = did_you_mean(unknown[0], ARGUMENTS, INSTEAD)
                raise ConfigError(f"{unknown[0]}: unknown key; {meant}")
            make_query(**arguments)
        found.append(_Line(len(found), arguments, hashlib.sha256(line.strip().encode()).hexdigest()[:16]))
    if not found:
        raise ConfigError(f"{path}: holds no question")
    return found


def _with_limit(budget: Budget | None, tag: str, usd: Decimal) -> Budget:
    """Return the pool file's budget with a limit for this run's tag added."""
    from focalroute.core.config import Budget

    budget = budget or Budget()
    return replace(budget, usd_per_tag={**budget.usd_per_tag, tag: usd})


class _Answers:
    """The file of answers: a line is written once its question is answered or has failed.

    Attributes:
        done: the indices of the answered questions.
        usd: known cost of all asks in USD, failed ones included; ``unpriced`` asks have an unknown cost.

    Raises:
        ConfigError: the file exists without ``resume``, answers other questions, or cannot be written now.
    """

    def __init__(self, path: Path, digests: list[str], *, resume: bool) -> None:
        if path.exists() and not path.is_file():  # such as /dev/null, which would be replaced
            raise ConfigError(f"{path}: is not a file; give another name")
        if path.exists() and not resume:
            raise ConfigError(f"{path}: already exists; give --resume to continue it, or another name")
        self._path, self._digests = path, digests
        self.done: set[int] = set()
        self.usd, self.unpriced = Decimal(0), 0
        self._failed_usd: dict[int, Decimal] = {}  # USD of failed asks, by question index
        self._failed: dict[int, bytes] = {}  # error lines of earlier runs, for questions not asked again yet
        with contextlib.ExitStack() as opened:
            with refusing(path, "written"):
                hold_file(opened.enter_context(path.open("ab")), path)
                kept = self._kept()
                beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
                self._file = opened.enter_context(beside.open("xb"))
                hold_file(self._file, path)
                self._file.writelines(kept)  # without failed questions, and a half-written last line
                self._file.flush()
                beside.replace(path)
            self._opened = opened.pop_all()

    def _kept(self) -> list[bytes]:
        """Return the lines with answers of an earlier run, and count them and its failed questions."""
        kept = []
        for line in self._path.read_bytes().splitlines(keepends=True):
            row = _row(line)
            if row is None:
                if line.endswith(b"\n"):
                    raise ConfigError(f"{self._path}: is not a file of answers; give another name")
                continue  # a process that died may have left half a line
            if row["question"] not in self._digests[row["index"] : row["index"] + 1]:
                raise ConfigError(f"{self._path}: answers another file of questions; give another name")
            self._count_failed(row["index"], Decimal(row.get("failed_usd", 0)))
            if "error" in row:
                self._failed[row["index"]] = line
            else:
                kept.append(line)
                self._count(row["index"], row["cost"])
        return kept

    def _count(self, index: int, cost: str | None) -> None:
        self.done.add(index)
        self._add(None if cost is None else Decimal(cost))

    def _count_failed(self, index: int, usd: Decimal | None) -> None:
        self._failed_usd[index] = self._failed_usd.get(index, Decimal(0)) + (usd or 0)
        self._add(usd)

    def _add(self, usd: Decimal | None) -> None:
        self.usd = Dollars(self.usd + (usd or 0))
        self.unpriced += usd is None

    def put(self, line: _Line, answer: Answer) -> None:
        fields = answer.to_dict()
        self._write(line, fields)
        self._count(line.index, fields["cost"])

    def put_failed(self, line: _Line, error: FocalrouteError, message: str) -> None:
        costs = [reply.cost for reply in error.replies] if isinstance(error, PoolError) else []
        self._count_failed(line.index, None if None in costs else sum(filter(None, costs), Decimal(0)))
        self._write(line, {"error": message})

    def _write(self, line: _Line, fields: Mapping[str, Any]) -> None:
        row = {"index": line.index, "question": line.digest, **fields}
        if failed_usd := self._failed_usd.get(line.index):
            row["failed_usd"] = f"{failed_usd:f}"
        with naming(self._path):
            self._file.write(json.dumps(row).encode() + b"\n")
            self._file.flush()
        self._failed.pop(line.index, None)

    def __enter__(self) -> _Answers:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        with naming(self._path):
            self._file.writelines(self._failed.values())  # their cost counts in the next run, too
            if failed and not self._file.tell():  # so that the corrected command can be run again
                self._path.unlink()
            self._opened.close()


def _row(line: bytes) -> dict[str, Any] | None:
    """Parse a line of a file of answers; None if it is not one."""
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
        if isinstance(row, dict) and type(row.get("index")) is int and row["index"] >= 0 and "question" in row:
            cost = "0" if "error" in row else row.get("cost", False)
            amounts = [row.get("failed_usd", "0"), "0" if cost is None else cost]
            if all(isinstance(amount, str) and _COST.fullmatch(amount) for amount in amounts):
                return row
    return None


async def _ask(
    pool: Path,
    settings: dict[str, Any],
    lines: list[_Line],
    answers: _Answers,
    advance: Callable[[int], object],
    *,
    concurrency: int,
    tag: str,
) -> list[str]:
    """Ask all questions; return the error messages of those that failed."""
    from focalroute.serving.concurrency import run_together
    from focalroute.serving.ensemble import AsyncEnsemble

    waiting, failed = iter(lines), list[str]()

    async def work() -> None:
        for line in waiting:
            try:
                tags = (*line.arguments.get("tags", ()), tag)
                answer: Answer = await ensemble.ask(**{**line.arguments, "tags": tags})
                answers.put(line, answer)
            except FocalrouteError as error:
                message = error_text(error).replace(f"usd_per_tag.{tag}", "max_usd")  # as the caller named it
                failed.append(message)
                answers.put_failed(line, error, message)
            advance(1)

    async with AsyncEnsemble.from_toml(pool, **settings) as ensemble:
        await run_together(work() for _ in range(concurrency))
    return failed
