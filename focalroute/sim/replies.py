"""What a simulated model says: a reply as tokens, each with its probability and that of the tokens it competed with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from focalroute.sim.models import SimulatedModel, sample, uniforms
from focalroute.sim.prompt import Prompt
from focalroute.sim.prose import Brief
from focalroute.sim.thinking import options
from focalroute.sim.writing import write

_TOKEN = re.compile(r" ?[A-Za-z]{1,9}| ?\d{1,3}|\s+|.", re.DOTALL)
_THOUGHT = " Let us work through this carefully step by step and check each part of it once more before we go on and"
_CERTAIN = 0.98  # the probability of a token without rivals: a real model is never quite sure

#: How the mass of a letter is spread over the tokens that spell it, and what is left goes to other tokens.
_SPELLINGS = ((lambda letter: letter, 0.94), (lambda letter: " " + letter, 0.03), (str.lower, 0.01))
_STRAY = (("The", 0.01), ("I", 0.004), ("**", 0.003), ("\n", 0.002), ("Answer", 0.001))


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    Attributes:
        p: its probability.
        rivals: every token that could have stood here with its probability, itself included, falling.
    """

    text: str
    p: float
    rivals: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """One sample; ``cut``: it ran into the token limit."""

    tokens: tuple[Token, ...]
    cut: bool

    @property
    def text(self) -> str:
        """The tokens joined."""
        return "".join(token.text for token in self.tokens)


def tokenise(text: str) -> list[str]:
    """Split into tokens of a realistic size; joined they give the text again.

    >>> tokenise('{"answer": "B"}')
    ['{', '"', 'answer', '"', ':', ' ', '"', 'B', '"', '}']
    """
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    """How many tokens a text has."""
    return len(_TOKEN.findall(text))


class Voice:
    """One model answering one prompt: its distribution is computed once, then sampled as often as asked.

    Args:
        model: who speaks.
        prompt: to what.
        allowed: the only replies the request admits, as (value the model chooses, text to send); None: unconstrained.
        drifted: whether the skills after the drift switch hold.
        room: the token limit; None: none.
        right: which of the allowed replies is right; None: the one that is the question's answer.
    """

    def __init__(
        self,
        model: SimulatedModel,
        prompt: Prompt,
        *,
        allowed: Sequence[tuple[str, str]] | None = None,
        drifted: bool = False,
        room: int | None = None,
        right: int | None = None,
    ) -> None:
        self._model, self._prompt, self._room, self._drifted = model, prompt, room, drifted
        self._constrained = allowed is not None
        self._options = options(model, prompt, allowed, drifted=drifted, right=right)
        self._spoken, self._p, self._right = self._options.spoken, self._options.p, self._options.right
        self._words = [tokenise(spoken) for spoken in self._spoken]

    def say(self, index: int, temperature: float, seed: object = None) -> Reply:
        """Sample number ``index``; the same arguments give the same reply."""
        key = f"{self._prompt.key}\x1f{self._options.seen}" if self._options.seen else self._prompt.key
        draws = uniforms("sample", self._model.seed, self._model.name, key, index, seed)
        if self._prompt.brief is not None and not self._constrained:
            tokens = _certain(tokenise(self._prose(self._prompt.brief, index, temperature, seed)))
        else:
            tokens = self._tokens(sample(self._p, draws[0], temperature), draws[1])
        room = len(tokens) if self._room is None else max(1, self._room)
        return Reply(tuple(tokens[:room]), cut=room < len(tokens))

    def _prose(self, brief: Brief, index: int, temperature: float, seed: object) -> str:
        drafts, drifted = self._prompt.drafts, self._drifted
        return write(self._model, brief, drafts, drifted=drifted, temperature=temperature, index=index, seed=seed)

    def _tokens(self, picked: int, u: float) -> list[Token]:
        prompt, model = self._prompt, self._model
        if self._constrained or len(self._spoken) == 1:
            return _spell(self._words, self._p, picked)
        wordy = model.verbosity > 0 and not prompt.terse
        if not prompt.letters:
            thought = self._thought(picked, u) if wordy else []
            return _certain(_stripped(thought)) + _spell(
                self._words if thought else _stripped_all(self._words), self._p, picked
            )
        if wordy and (self._room is None or self._room > 2 * model.verbosity + 8):
            answer = [[*tokenise(" The answer is"), " " + letter, "."] for letter in self._spoken]
            return _certain(_stripped(self._thought(picked, u))) + _spell(answer, self._p, picked)
        return [_letter(self._spoken, self._p, picked)]

    def _thought(self, picked: int, u: float) -> list[str]:
        """As many tokens of thinking aloud as this model spends on this question."""
        factor = 1.0 if picked == self._right or self._right is None else self._model.wrong_length
        length = round(self._model.verbosity * factor * (0.75 + 0.5 * u))
        return [*islice(cycle(tokenise(_THOUGHT)), length - 1), "."] if length > 1 else []


def _stripped(words: list[str]) -> list[str]:
    return [words[0].lstrip(), *words[1:]] if words else words


def _stripped_all(options: list[list[str]]) -> list[list[str]]:
    return [_stripped(words) for words in options]


def _certain(words: Sequence[str]) -> list[Token]:
    return [Token(word, _CERTAIN, ((word, _CERTAIN),)) for word in words]


def _spell(options: Sequence[Sequence[str]], p: Sequence[float], picked: int) -> list[Token]:
    """The picked option token by token: each token's probability is the mass of the options that share it so far."""
    tokens: list[Token] = []
    alive = list(range(len(options)))
    for at, word in enumerate(options[picked]):
        mass: dict[str, float] = {}
        for i in alive:
            following = options[i][at] if at < len(options[i]) else ""
            mass[following] = mass.get(following, 0.0) + p[i]
        total = sum(mass.values())
        rivals = sorted(((text, m / total) for text, m in mass.items() if text), key=lambda rival: -rival[1])
        tokens += [Token(word, mass[word] / total, tuple(rivals))] if len(rivals) > 1 else _certain([word])
        alive = [i for i in alive if at < len(options[i]) and options[i][at] == word]
    return tokens


def _letter(letters: Sequence[str], p: Sequence[float], picked: int) -> Token:
    """A letter alone: its mass is spread over its spellings, and a little of the whole goes to other tokens."""
    rivals = [
        (spell(letter), share * mass) for letter, mass in zip(letters, p, strict=True) for spell, share in _SPELLINGS
    ]
    rivals += _STRAY
    rivals.sort(key=lambda rival: -rival[1])
    return Token(letters[picked], _SPELLINGS[0][1] * p[picked], tuple(rivals))
