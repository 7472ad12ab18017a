"""``focalroute ask`` and ``focalroute chat``: what the command line calls."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from focalroute.core.errors import FocalrouteError
from focalroute.core.receipts import Answer
from focalroute.serving.sync import Ensemble

_HELP = """\
/feedback good | bad   say how good the last answer was; the policies learn from it
/new                   forget what was said so far
/cost                  what was paid so far
/help                  this list
/quit                  leave (so does the end of the input)"""
_REWARDS = {"good": 1.0, "bad": -1.0}


def ask_command(
    query: str,
    pool: Path,
    settings: Mapping[str, Any],
    *,
    choices: str | None = None,
    answer: str | None = None,
    samples: int | None = None,
    max_usd: str | None = None,
    as_json: bool = False,
) -> None:
    """Ask one question; print the answer on standard output, and what it cost on standard error.

    Args:
        settings: of the ensemble, over the pool file's.
        choices: separated by commas.

    Raises:
        FocalrouteError: as `focalroute.Ensemble.ask`.
    """
    offered = None if choices is None else [choice.strip() for choice in choices.split(",")]
    with Ensemble.from_toml(pool, **settings) as ensemble:
        fused = ensemble.ask(query, choices=offered, answer=answer, samples=samples, max_usd=max_usd)
    if as_json:
        print(json.dumps(_told(fused), indent=2))
        return
    print(_shown(fused.value))
    _note(_line(fused))
    for shortfall in fused.degraded:
        _note(f"note: {shortfall}")


def chat_command(pool: Path, settings: Mapping[str, Any], *, max_usd: str | None = None, as_json: bool = False) -> bool:
    """Talk with the pool, line by line from standard input; whether every question had an answer.

    Answers are said as they come. With ``as_json`` standard output has one JSON object a line: each answer as
    ``focalroute ask --json`` says it with the "total_cost_usd" so far, each feedback, and each error.

    Raises:
        ConfigError: the pool or a setting is wrong.
    """
    interactive = _prepared()
    with Ensemble.from_toml(pool, **settings) as ensemble:
        chat = _Chat(ensemble, max_usd, as_json)
        if interactive:
            _note(f"{len(ensemble.endpoints)} endpoints. /feedback good | bad after an answer, /help, /quit.")
        prompt = "> " if interactive and sys.stdout.isatty() and not as_json else ""
        while (line := _next_line(prompt)) is not None and chat.take(line.strip()):
            pass
    return chat.all_answered


def _prepared() -> bool:
    """Make standard input ready to be read by lines; whether somebody types them."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    if not sys.stdin.isatty():
        return False
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - where there is one, what is typed can be edited
    return True


def _next_line(prompt: str) -> str | None:
    """None: the end of the input, or Ctrl-C."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        return None


@dataclass(slots=True)
class _Chat:
    """A conversation under way.

    Attributes:
        messages: what was said, in OpenAI's form.
        last: the last answer.
        paid: USD of all answers; None once the cost of one is unknown.
    """

    ensemble: Ensemble
    max_usd: str | None
    as_json: bool
    messages: list[dict[str, Any]] = field(default_factory=list)
    last: Answer | None = None
    paid: Decimal | None = Decimal(0)
    all_answered: bool = True

    def take(self, line: str) -> bool:
        """Do what a line says; whether to go on."""
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
                _note(f"paid {_dollars(self.paid)} so far")
            case "/help":
                _note(_HELP)
            case _ if command.startswith("/"):
                _note(f"{command}: is no command; /help lists them")
            case _:
                self._ask(line)
        return True

    def _ask(self, line: str) -> None:
        asked = [*self.messages, {"role": "user", "content": line}]
        try:
            answer = self._stream(asked)
        except KeyboardInterrupt:
            _note("\ngiven up; the conversation is as before")
            return
        except FocalrouteError as error:
            self._failed(error)
            return
        self.messages = [*asked, answer.message]
        self.last = answer
        self.paid = None if self.paid is None or answer.cost is None else self.paid + answer.cost
        if self.as_json:
            total = None if self.paid is None else str(self.paid)
            self._say({**_told(answer), "total_cost_usd": total})
        else:
            _note(f"{_line(answer)}; paid {_dollars(self.paid)} so far")

    def _stream(self, asked: list[dict[str, Any]]) -> Answer:
        with self.ensemble.stream(asked, max_usd=self.max_usd) as stream:
            for piece in stream:
                if not self.as_json:
                    sys.stdout.write(_shown(piece))
                    sys.stdout.flush()
            if not self.as_json:
                print(flush=True)
            return stream.answer

    def _feedback(self, word: str) -> None:
        if self.last is None or word not in _REWARDS:
            _note("/feedback: say good or bad" if word not in _REWARDS else "/feedback: there is no answer yet")
            return
        try:
            self.ensemble.feedback(self.last, reward=_REWARDS[word])
        except FocalrouteError as error:
            self._failed(error)
            return
        if self.as_json:
            self._say({"feedback": self.last.id, "reward": _REWARDS[word]})
        _note(f"noted: {word}")

    def _failed(self, error: FocalrouteError) -> None:
        self.all_answered = False
        if self.as_json:
            self._say({"error": str(error)})
        _note(f"error: {error}")

    def _say(self, said: Mapping[str, Any]) -> None:
        print(json.dumps(said, separators=(",", ":")), flush=True)


def _told(answer: Answer) -> dict[str, Any]:
    """An answer as JSON has it."""
    said = ("id", "value", "text", "choice", "candidates", "probabilities", "confidence")
    return {name: getattr(answer, name) for name in said} | {"receipt": json.loads(answer.receipt.to_json())}


def _line(answer: Answer) -> str:
    asked = ", ".join(call.endpoint for call in answer.receipt.calls)
    return f"confidence {answer.confidence:.2f}, cost {_dollars(answer.cost)}, asked {asked}"


def _dollars(usd: Decimal | None) -> str:
    return "unknown" if usd is None else f"${usd:.6f}"


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(text: str) -> str:
    """A reply's text without the characters that would steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
