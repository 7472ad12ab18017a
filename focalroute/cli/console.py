"""``focalroute ask`` and ``focalroute chat``."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from focalroute.cli import (
    JsonOption,
    ParamOption,
    PolicyOption,
    PoolOption,
    StoreOption,
    SystemOption,
    given,
    printable,
)
from focalroute.core.dollars import dollars
from focalroute.core.errors import ConfigError, FocalrouteError

if TYPE_CHECKING:
    from focalroute.answers import AnswerKind
    from focalroute.core.receipts import Answer, Call
    from focalroute.serving.sync import Ensemble

_HELP = """\
/feedback good | bad   rate the last answer; the policies learn from it
/new                   start a new conversation
/cost                  show the cost so far
/help                  this list
/quit                  leave (so does the end of the input)"""
_REWARDS = {"good": 1.0, "bad": -1.0}


def ask(
    query: Annotated[str, typer.Argument(help="The question.")],
    pool: PoolOption = None,
    choices: Annotated[str | None, typer.Option(help="The closed set of answers, separated by commas.")] = None,
    answer: Annotated[
        str | None, typer.Option(help="Kind of a free-form answer: number, short, yes-no, date, math or text.")
    ] = None,
    samples: Annotated[int | None, typer.Option(help="Replies to draw from each endpoint in one call.")] = None,
    system: SystemOption = None,
    param: ParamOption = None,
    store: StoreOption = None,
    policy: PolicyOption = None,
    max_usd: Annotated[str | None, typer.Option(help="Cap for this question, USD.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print each endpoint asked, round by round, with its reply.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Ask a pool one question and print the fused answer with its cost."""
    from focalroute.serving.sync import Ensemble

    offered = None if choices is None else [choice.strip() for choice in choices.split(",")]
    with Ensemble(pool, **given(store=store, policy=policy)) as ensemble:
        kind = cast("AnswerKind | None", answer)
        fused = ensemble.ask(
            query, system=system, choices=offered, answer=kind, samples=samples, max_usd=max_usd, params=_params(param)
        )
    if as_json:
        print(json.dumps(fused.to_dict(), indent=2))
        return
    print(_reply_text(str(fused.value)))
    _note(_summary(fused))
    if verbose:
        for call in fused.receipt.calls:
            said, cost = _said(fused, call), dollars(call.cost)
            _note(f"  round {call.round}: {call.endpoint}: {said}, {cost}, {call.latency_s:.2f} s")
    for shortfall in fused.degraded:
        _note(f"note: {shortfall}")


def chat(
    pool: PoolOption = None,
    system: SystemOption = None,
    param: ParamOption = None,
    store: StoreOption = None,
    policy: PolicyOption = None,
    max_usd: Annotated[str | None, typer.Option(help="Cap for each question, USD.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print answers and receipts as JSON, one a line.")] = False,
) -> None:
    """Chat with a pool: answers are streamed, with their cost; /help lists the commands.

    Questions are read from standard input, one a line, so it also works in a pipe. Exit code 1 if one had no answer.
    """
    from focalroute.serving.sync import Ensemble

    interactive = _prepare_input()
    with Ensemble(pool, **given(store=store, policy=policy)) as ensemble:
        conversation = _Chat(ensemble, max_usd, as_json, system, _params(param))
        if interactive:
            _note(f"{len(ensemble.endpoints)} endpoints. /feedback good | bad after an answer, /help, /quit.")
        prompt = "> " if interactive and sys.stdout.isatty() and not as_json else ""
        while (line := _next_line(prompt)) is not None and conversation.take(line.strip()):
            pass
    if not conversation.all_answered:
        raise typer.Exit(1)


def _prepare_input() -> bool:
    """Prepare standard input for reading lines; return whether it is a terminal."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not sys.stdin.isatty():
        return False
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - if present, input lines can be edited
    return True


def _next_line(prompt: str) -> str | None:
    """Read a line; None at the end of the input or on Ctrl-C."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        return None


@dataclass(slots=True)
class _Chat:
    """A conversation and its state.

    Attributes:
        system: the system message, if there is one.
        params: parameters that are passed on to the endpoints.
        messages: the conversation so far, in OpenAI's form.
        last: the last answer.
        paid: cost of all answers in USD; None once the cost of one is unknown.
        all_answered: False once a question or feedback has failed.
    """

    ensemble: Ensemble
    max_usd: str | None
    as_json: bool
    system: str | None
    params: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    last: Answer | None = None
    paid: Decimal | None = Decimal(0)
    all_answered: bool = True

    def take(self, line: str) -> bool:
        """Run a command, or ask a question; return whether to go on."""
        command, _, rest = line.partition(" ")
        match command:
            case "":
                pass
            case "/quit" | "/exit":
                return False
            case "/feedback":
                self._feedback(rest.strip())
            case "/new":
                self.messages.clear()
                _note("a new conversation")
            case "/cost":
                _note(f"paid {dollars(self.paid)} so far")
            case "/help":
                _note(_HELP)
            case _ if command.startswith("/"):
                _note(f"{command}: is not a command; /help lists them")
            case _:
                self._ask(line)
        return True

    def _ask(self, line: str) -> None:
        asked = [*self.messages, {"role": "user", "content": line}]
        try:
            answer = self._stream(asked)
        except KeyboardInterrupt:
            _note("\ncancelled; the conversation is as before")
            return
        except FocalrouteError as error:
            self._report(error)
            return
        self.messages = [*asked, answer.message]
        self.last = answer
        self.paid = None if self.paid is None or answer.cost is None else self.paid + answer.cost
        if self.as_json:
            self._print_json({**answer.to_dict(), "total_cost_usd": self.paid})
        else:
            _note(f"{_summary(answer)}; paid {dollars(self.paid)} so far")

    def _stream(self, asked: list[dict[str, Any]]) -> Answer:
        stream = self.ensemble.stream(asked, system=self.system, max_usd=self.max_usd, params=self.params)
        with stream:
            for piece in stream:
                if not self.as_json:
                    sys.stdout.write(_reply_text(piece))
                    sys.stdout.flush()
            if not self.as_json:
                print(flush=True)
            return stream.answer

    def _feedback(self, word: str) -> None:
        if word not in _REWARDS:
            _note("/feedback: say good or bad")
            return
        if self.last is None:
            _note("/feedback: there is no answer yet")
            return
        try:
            self.ensemble.feedback(self.last, reward=_REWARDS[word])
        except FocalrouteError as error:
            self._report(error)
            return
        if self.as_json:
            self._print_json({"feedback": self.last.id, "reward": _REWARDS[word]})
        _note(f"noted: {word}")

    def _report(self, error: FocalrouteError) -> None:
        self.all_answered = False
        if self.as_json:
            self._print_json({"error": str(error)})
        _note(f"error: {error}")

    def _print_json(self, values: Mapping[str, Any]) -> None:
        print(json.dumps(values, separators=(",", ":"), default=str), flush=True)


def _params(given: list[str] | None) -> dict[str, Any]:
    """Parse NAME=VALUE parameters; a value that is not JSON is taken as text.

    Raises:
        ConfigError: a parameter is not of this form.
    """
    params: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"param: {text!r}: give NAME=VALUE, such as temperature=0")
        try:
            params[name] = json.loads(value)
        except ValueError:
            params[name] = value
    return params


def _said(answer: Answer, call: Call) -> str:
    if call.candidate is None:
        return "no answer" if call.error is None else f"{call.error.kind}: {_reply_text(call.error.message)}"
    return " ".join(_reply_text(answer.candidates[call.candidate]).split())


def _summary(answer: Answer) -> str:
    asked = ", ".join(call.endpoint for call in answer.receipt.calls)
    return f"confidence {answer.confidence:.2f}, cost {dollars(answer.cost)}, asked {asked}"


def _note(text: str) -> None:
    """Print to standard error, so that standard output has only answers."""
    print(text, file=sys.stderr, flush=True)


def _reply_text(text: str) -> str:
    return printable(text, keep="\n\t")
