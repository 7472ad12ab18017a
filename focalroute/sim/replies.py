"""The replies of a simulated model: its possible replies with their probabilities, and a sample as tokens.

If the prompt shows an answer to a plain question, probability moves to that answer (`focalroute.sim.models.swayed`). In
a two-hop question, X is drawn by the skill at the first hop, then the result from that X by the skill at the second.
The reply states X. An X shown in the prompt moves probability in the first hop, and a result in the second, if it is
among the answers for the model's own X.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from focalroute.sim.families import Options
from focalroute.sim.models import SimulatedModel, distribution, sample, swayed, uniforms
from focalroute.sim.prompt import Prompt, same
from focalroute.sim.prose import Brief
from focalroute.sim.questions import TWO_HOPS, FoundQuestion, alternatives, find, hops

_GREETING = "Hello! I am a simulated model. How can I help you?"
_FREE_CHOICES = 4  # possible answers without choices
_HOP_CHOICES = 3  # possible answers in each part, such as a hop
_STATED = re.compile(r"\banswer is:? +(.+?)[.\s]*$", re.IGNORECASE)
_STATED_X = re.compile(r"\bX is (\S+?)[.,;]?(?=\s|$)")
_LETTER = re.compile(r"\(?([A-Z])(?:[).:]|$)")


def options(
    model: SimulatedModel,
    prompt: Prompt,
    allowed: Sequence[tuple[str, str]] | None,
    *,
    drifted: bool,
    right: int | None = None,
) -> Options:
    """Return this model's possible replies.

    Args:
        allowed: the only replies that the request allows, as (value the model chooses, text to send); None: any.
        drifted: whether the skills after the drift switch apply.
        right: index of the right one of the allowed replies; None: the one that is the question's answer.
    """
    found = prompt.found
    behind = dict(zip(prompt.letters, prompt.texts, strict=True))
    if allowed is not None:
        spoken, texts = [text for _, text in allowed], [behind.get(value, value) for value, _ in allowed]
    elif prompt.letters:
        spoken, texts = list(prompt.letters), list(prompt.texts)
    elif found and found.family and found.family.options:
        return found.family.options(model, found.question, prompt.earlier, drifted)
    elif found and found.topic == TWO_HOPS.topic:
        return two_hops(model, found.question, prompt.earlier, drifted)
    elif found:
        texts = list(alternatives(found, _FREE_CHOICES))
        spoken = [model.ending.replace("{}", text) for text in texts]
    else:
        return Options((prompt.reply_with or _GREETING,), distribution(model, prompt.key, None, [""], None), None, "")
    if right is None and found is not None:
        right = _at(texts, found.answer)
    skill = found.topic if found else None
    p = distribution(model, prompt.key, skill, texts, right, drifted=drifted) if texts else ()
    shown = _shown(prompt.earlier, prompt.letters, texts)
    seen = "" if shown is None else texts[shown]
    return Options(tuple(spoken), swayed(model, p, shown, right), right, seen_answer(seen, prompt.earlier))


def two_hops(model: SimulatedModel, question: str, earlier: str | None, drifted: bool) -> Options:
    """Return this model's possible replies to a question of two hops."""
    first = find(hops(question, "0")[0])
    x_shown = _STATED_X.search(earlier or "")
    y_shown = _STATED.search(earlier or "")
    xs, px = hop_options(model, first, x_shown and x_shown[1], drifted)
    spoken, p = [], []
    for x, mass in zip(xs, px, strict=True):
        ys, py = hop_options(model, find(hops(question, x)[1]), y_shown and y_shown[1], drifted)
        spoken += [f" X is {x}. The answer is {y}." for y in ys]
        p += [mass * share for share in py]
    seen = " ".join(match[1] for match in (x_shown, y_shown) if match)
    return Options(tuple(spoken), tuple(p), 0, seen_answer(seen, earlier))


def seen_answer(seen: str, earlier: str | None) -> str:
    """Return the part found in an earlier answer; "?" if nothing was found in it."""
    if earlier is not None:
        return seen or "?"
    return seen


def hop_options(
    model: SimulatedModel, found: FoundQuestion | None, shown: str | None, drifted: bool
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """A model's possible answers to one part of a question, the right one first, and their probabilities."""
    if found is None:
        return ("0",), (1.0,)
    texts = alternatives(found, _HOP_CHOICES)
    p = distribution(model, found.question, found.topic, texts, 0, drifted=drifted)
    return texts, swayed(model, p, None if shown is None else _at(texts, shown), 0)


def _shown(earlier: str | None, letters: Sequence[str], texts: Sequence[str]) -> int | None:
    """The index of the earlier answer among the choices, by its words or its letter; None: not found."""
    if earlier is None:
        return None
    stated = _STATED.search(earlier)
    answer = (stated[1] if stated else earlier).strip()
    lettered = _LETTER.match(answer)
    if lettered and lettered[1] in letters:
        return letters.index(lettered[1])
    return _at(texts, answer)


def _at(texts: Sequence[str], answer: str) -> int | None:
    return next((i for i, text in enumerate(texts) if same(text, answer)), None)


def write(
    model: SimulatedModel,
    brief: Brief,
    drafts: Sequence[str] = (),
    *,
    drifted: bool = False,
    temperature: float = 1.0,
    index: int = 0,
    seed: object = None,
) -> str:
    """The model's reply to a request for prose; the same arguments give the same reply.

    Args:
        drafts: other models' replies shown in the prompt. Each point is decided by plurality of the drafts and the
            model's own option; ties go to its own, else to the first.
        drifted: whether the skills after the drift switch apply.
        temperature: of the draws; 0: always the most probable option.
        index: number of the sample.
        seed: the request's seed.
    """
    others = [brief.said(draft) for draft in drafts]
    sentences = []
    for number, point in enumerate(brief.points):
        topic = f"{number} {brief.request}"
        draws = uniforms("prose", model.seed, model.name, topic, index, seed)
        p = distribution(model, topic, brief.axis, point.options, point.right, drifted=drifted)
        own = sample(p, draws[0], temperature)
        votes = Counter([own, *(option for draft in others if (option := draft[number]) is not None)])
        picked, _ = votes.most_common(1)[0]  # ties go to the first, which is its own
        sentences.append(point.wordings[int(draws[1] * len(point.wordings))].format(point.options[picked]))
    return " ".join(sentences)


_TOKEN = re.compile(r" ?[A-Za-z]{1,9}| ?\d{1,3}|\s+|.", re.DOTALL)
_THOUGHT = " Let us work through this carefully step by step and check each part of it once more before we go on and"
_CERTAIN = 0.98  # the probability of a token without rivals, as a real model is never quite sure

#: How a letter's probability is spread over the tokens that spell it; the rest goes to other tokens.
_SPELLINGS = ((lambda letter: letter, 0.94), (lambda letter: " " + letter, 0.03), (str.lower, 0.01))
_STRAY = (("The", 0.01), ("I", 0.004), ("**", 0.003), ("\n", 0.002), ("Answer", 0.001))


@dataclass(frozen=True, slots=True)
class SimulatedToken:
    """One generated token.

    Attributes:
        p: its probability.
        rivals: every possible token in its place, this one included, with its probability; most probable first.
    """

    text: str
    p: float
    rivals: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """One sample; ``cut``: it hit the token limit; ``thought``: the thinking before it."""

    tokens: tuple[SimulatedToken, ...]
    cut: bool
    thought: tuple[SimulatedToken, ...] = ()

    @property
    def text(self) -> str:
        """The tokens joined."""
        return "".join(token.text for token in self.tokens)


def tokenise(text: str) -> list[str]:
    """Split a text into tokens of realistic size, which join to the same text.

    >>> tokenise('{"answer": "B"}')
    ['{', '"', 'answer', '"', ':', ' ', '"', 'B', '"', '}']
    """
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    """The number of tokens in a text."""
    return len(_TOKEN.findall(text))


def think(length: int) -> tuple[SimulatedToken, ...]:
    """Return this many tokens of thinking."""
    return tuple(_certain(list(islice(cycle(tokenise(_THOUGHT)), length))))


class Voice:
    """Samples replies of one model to one prompt; the distribution is computed once.

    Args:
        allowed: see `options`.
        drifted: whether the skills after the drift switch apply.
        room: the token limit; None: no limit.
        right: see `options`.
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

    def say(self, index: int, temperature: float, seed: object = None) -> SimulatedReply:
        """Draw sample number ``index``; the same arguments give the same reply."""
        key = f"{self._prompt.key}\x1f{self._options.seen}" if self._options.seen else self._prompt.key
        draws = uniforms("sample", self._model.seed, self._model.name, key, index, seed)
        if self._prompt.brief is not None and not self._constrained:
            tokens = _certain(tokenise(self._prose(self._prompt.brief, index, temperature, seed)))
        else:
            tokens = self._tokens(sample(self._p, draws[0], temperature), draws[1])
        room = len(tokens) if self._room is None else max(1, self._room)
        return SimulatedReply(tuple(tokens[:room]), cut=room < len(tokens))

    def _prose(self, brief: Brief, index: int, temperature: float, seed: object) -> str:
        drafts, drifted = self._prompt.drafts, self._drifted
        return write(self._model, brief, drafts, drifted=drifted, temperature=temperature, index=index, seed=seed)

    def _tokens(self, picked: int, u: float) -> list[SimulatedToken]:
        prompt, model = self._prompt, self._model
        if self._constrained or len(self._spoken) == 1:
            return _spell(self._words, self._p, picked)
        wordy = model.verbosity > 0 and not prompt.terse
        if not prompt.letters:
            thought = self._thought(picked, u) if wordy else []
            options = self._words if thought else list(map(_stripped, self._words))
            return _certain(_stripped(thought)) + _spell(options, self._p, picked)
        if wordy and (self._room is None or self._room > 2 * model.verbosity + 8):
            answer = [[*tokenise(" The answer is"), " " + letter, "."] for letter in self._spoken]
            return _certain(_stripped(self._thought(picked, u))) + _spell(answer, self._p, picked)
        return [_letter(self._spoken, self._p, picked)]

    def _thought(self, picked: int, u: float) -> list[str]:
        """The tokens of reasoning in the text before the answer."""
        factor = 1.0 if picked == self._right or self._right is None else self._model.wrong_length
        length = round(self._model.verbosity * factor * (0.75 + 0.5 * u))
        return [*islice(cycle(tokenise(_THOUGHT)), length - 1), "."] if length > 1 else []


def _stripped(words: list[str]) -> list[str]:
    return [*(word.lstrip() for word in words[:1]), *words[1:]]


def _certain(words: Sequence[str]) -> list[SimulatedToken]:
    return [SimulatedToken(word, _CERTAIN, ((word, _CERTAIN),)) for word in words]


def _spell(options: Sequence[Sequence[str]], p: Sequence[float], picked: int) -> list[SimulatedToken]:
    """The picked option as tokens, each with its probability given the text before it."""
    tokens: list[SimulatedToken] = []
    alive = list(range(len(options)))
    for at, word in enumerate(options[picked]):
        mass: dict[str, float] = {}
        for i in alive:
            following = options[i][at] if at < len(options[i]) else ""
            mass[following] = mass.get(following, 0.0) + p[i]
        total = sum(mass.values())
        rivals = sorted(((text, m / total) for text, m in mass.items() if text), key=lambda rival: -rival[1])
        if len(rivals) > 1:
            tokens.append(SimulatedToken(word, mass[word] / total, tuple(rivals)))
        else:
            tokens += _certain([word])
        alive = [i for i in alive if at < len(options[i]) and options[i][at] == word]
    return tokens


def _letter(letters: Sequence[str], p: Sequence[float], picked: int) -> SimulatedToken:
    """A single letter as a token: its mass is spread over its spellings, and a little goes to other tokens."""
    rivals = [
        (spell(letter), share * mass) for letter, mass in zip(letters, p, strict=True) for spell, share in _SPELLINGS
    ]
    rivals += _STRAY
    rivals.sort(key=lambda rival: -rival[1])
    return SimulatedToken(letters[picked], _SPELLINGS[0][1] * p[picked], tuple(rivals))
