"""Reads replies to closed questions: which choice a reply names, and how probable each choice is.

The prompt has the choices as lettered lines. A letter that is the text of a choice is never used as a label, so that
"B" in a reply is unambiguous; choices that are all single letters, such as "(B)", are their own labels.

Probabilities come from the log-probabilities of tokens: those of the labels, or those of each whole choice. For whole
choices, each choice is appended to the question as its answer, and the likelihood of the appended text counts (Brown et
al. 2020, arXiv 2005.14165, section 2.4; RL-Focal, arXiv 2502.04492). That needs no letters, no order of the choices and
no reply to parse, but a prompt for every choice.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from typing import Any

from focalroute.answers.final import ANSWER_IN_OTHER_LANGUAGES, TAKEN_BACK, THINKING, without_end_tokens
from focalroute.answers.short import fold
from focalroute.answers.verdicts import NOUN_FOLLOWS
from focalroute.endpoints.wire.fields import Token

#: Characters that may surround an answer: spacing, markdown, quotes, brackets, punctuation.
DECORATION = (
    " \t\r\n\"'`*_()[]{}<>.,:;!$#\\“”\u2018\u2019"
    "\u3001\u3002\u300c\u300d\u300e\u300f\u3010\u3011\uff01\uff08\uff09\uff0c\uff1a\uff1b"  # Chinese and Japanese ones
)

_MAX_LENGTH = 20_000  # characters of a reply to a closed question; a longer one has no answer
_LONGEST_CHOICE = 1_000  # characters of a line that is compared with the choices' normal forms
_LAST_ALPHABETIC = "\u2fff"  # characters of Chinese, Japanese and Korean follow
_OPENING = (
    r"[\s\"'`*_()\[\]{}:=$\\“\u2018\uff1a\uff08\u300c\u3010\u2705\u2714\U0001f449\ufe0f-]*"
    r"(?:(?:text|(?:math|text)(?:bf|rm|it)|boxed)\{)*[\s\"'`*_(\[{]*(?:(?:option|choice|letter)\b[\s\"'`*_(]*)?"
)
_EXPLICIT = re.compile(
    r"(?:\b(?:answer(?:\s+(?:choice|option)|\s+to\s+\w+\s+question)?"
    r"|(?:correct|right|best|final|my|remaining|most\s+\w+)\s+(?:choice|option|letter))[\s\"'`*_]*"
    r"(?:\bis\b(?:\s+(?:therefore|thus|(?:most\s+)?\w+ly)\b)?|\b(?:would|should|must)(?:\s+have\s+to)?\s+be\b"
    r"|[:=\uff1a]|\s[-\u2013\u2014\u2192]\s)"
    rf"|{ANSWER_IN_OTHER_LANGUAGES}|\\boxed\{{|<(?:final_)?answer>|\"(?:choice|option|letter|label)\"\s*:)"
    rf"(?:\s+not\b[^\n.!?]{{1,80}}?\bbut\b)?{_OPENING}",
    re.IGNORECASE,
)
# "B is the correct answer"
_CONFIRMED = re.compile(
    r"(?<!\b[Ii]f )(?<!\b[Ww]hether )(?<!\bor )(?<!\band )\b(\w{1,2})\b[\"'`*_)\]]*\s+is\s+"
    r"(?:correct\b|right(?=[ *]*(?:[.,;!\n]|$))"
    r"|(?:the|our|my)\s+(?:(?:correct|right|best|final)\s+)?(?:answer|option|choice|one)\b)"
)
_CONCLUDES = re.compile(
    r"(?:\b(?:so|thus|hence|therefore|overall|but|it\s+is|it['\u2019]s|must\s+be|choose|select|pick|(?:go|answer)\s+with"
    rf"|(?:I|we)(?:['\u2019]d|\s+\w+)?\s+(?:say|think))\b|选|選),?{_OPENING}",
    re.IGNORECASE,
)
_ASIDE = re.compile(r'"[^"\n]*"|“[^“”\n]*”|^[ \t]*>.*$', re.MULTILINE)
# In any language a letter after a colon at a line's end is pointed at, as in "Antwort: B".
_POINTER = re.compile(
    r"\b(?:option|choice|letter|answer)[\s*(\"]+|[(\[]|\*\*|[\u2705\u2714\U0001f449]\ufe0f?[ *]*"
    r"|[:\uff1a][ *\uff08\u300c\u3010]*(?=[A-Za-z][^\w\n]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_WITHIN = re.compile(r"(?:[^\W_]|\d[.,])\Z")  # what comes before the "5" of "15" or "3.5"
_LINE_START = re.compile(r"^[\s*_#(\[\"'`]*", re.MULTILINE)
_AFTER_LEADING = re.compile(
    r"[\"'`*_]*(?:[.):,\]*\u2013\u2014\u3002\u3001\uff1a\uff09-]|\s*$|\s*\n"
    r"|\s+(?:is(?!\s+(?:not|incorrect|wrong|false)\b)|because|since|as|rather\s+than)\b|\s+\(not\b)"
)
# A word or words of a choice open a reply that goes on with something else.
_AFTER_LEADING_TEXT = re.compile(r"[\"'`*_)]*(?:[.,;!](?!\s*(?i:or|and|maybe|perhaps)\b)|\s*\n|\s+[\u2013\u2014-]\s)")
_WORD = re.compile(r"[A-Za-z]+|\d+")
_TO_LINE_END = re.compile(r"[\s\"'`*_)\]}.$]*(?:$|\n)")
_ALSO = re.compile(r"[\"'`*_)\]]*\s*(?:\bor\b|\band\b|[/,&\u3001])\s*[\"'`*_(\[]*", re.IGNORECASE)
_REFUTED = re.compile(
    r"[\"'`*_)\]]*\s+[*_]*(?:is|are|was)(?:n['\u2019]t|[*_]*\s+[*_]*(?:not|incorrect|wrong|false))(?![^\W_])",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"(?:(?<![^\W_])(?:(?:can)?not|never|neither|rather than|instead of)|n['\u2019]t)[*_]*"
    r"\s+[*_]*(?:the\s+)?((?:\w+\s+){0,2})[\"'`*_(\[\u201c\u2018]*$|(?<![^\W_])(?:no\s+|non[\s-])$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class NamedChoice:
    """The choice that a text names, and the part of the text that names it.

    Attributes:
        label: whether the choice was named by its label, not by its text.
    """

    choice: int
    start: int
    end: int
    label: bool


def labels_for(choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return a label for each choice; none is the text of another choice.

    >>> labels_for(("Jupiter", "Saturn")), labels_for(("A", "none")), labels_for(("(B)", "(A)"))
    (('A', 'B'), ('B', 'C'), ('B', 'A'))
    """
    bare = tuple(choice.strip(DECORATION) for choice in choices)
    folded = {choice.casefold() for choice in bare}
    if len(folded) == len(choices) and all(choice in string.ascii_letters and len(choice) == 1 for choice in bare):
        return bare
    letters = tuple(letter for letter in string.ascii_uppercase if letter.casefold() not in folded)
    if len(letters) >= len(choices):
        return letters[: len(choices)]
    return tuple(islice((str(i) for i in count(1) if str(i) not in folded), len(choices)))


@functools.lru_cache(maxsize=512)
def choice_parser(choices: tuple[str, ...]) -> ChoiceParser:
    """Return the parser for these choices, cached because several members get the same question."""
    return ChoiceParser(choices)


class ChoiceParser:
    """Finds the one choice that a reply names. A reply that names two is ambiguous.

    The first of these that is found counts:

    1. a reply, or its last paragraph, that is just a choice;
    2. the last "the answer is X", "Answer: X", ``\\boxed{X}`` or ``<answer>X`` outside quotations;
    3. "X is correct";
    4. a label or choice that opens the reply;
    5. the only choice that is mentioned and not ruled out;
    6. a conclusion that ends the reply, as in "so X".
    """

    def __init__(self, choices: tuple[str, ...]) -> None:
        self.choices = choices
        self.labels = labels_for(choices)
        self._by_label = {label.casefold(): i for i, label in enumerate(self.labels)}
        self._bare = [_folded(choice.strip(DECORATION)) for choice in choices]
        ambiguous = {bare for bare, times in Counter(self._bare).items() if not bare or times > 1}
        for i, choice in enumerate(choices):
            if self._bare[i] in ambiguous:
                self._bare[i] = _folded(choice.strip())
        self._longest_first = sorted(enumerate(self._bare), key=lambda item: -len(item[1]))
        forms = [fold(choice) for choice in choices]
        self._by_form = {form: i for i, form in enumerate(forms) if form is not None and forms.count(form) == 1}

    def find(self, text: str, *, cut: bool = False) -> NamedChoice | None:
        """Return the choice that ``text`` names; None if it names none, or several. Thinking in tags is ignored.

        Args:
            cut: whether the text was cut off. Then a choice that it only mentions does not count, as others might have
                followed; nor does one at its end that may be the beginning of another.
        """
        found = self._find(text, cut=cut)
        return None if cut and found is not None and self._may_go_on(text, found) else found

    def _may_go_on(self, text: str, found: NamedChoice) -> bool:
        """Whether a name at the end of the text may be the beginning of another, as 4 is of 42."""
        ending, names = _folded(text[found.start :]), self._by_label if found.label else self._bare
        return any(name.startswith(ending) and name != ending for name in names)

    def _find(self, text: str, *, cut: bool) -> NamedChoice | None:
        text = without_end_tokens(text)
        begin = _end_of_thinking(text)
        if begin is None:
            return None
        begin = max([begin, *(match.end() for match in TAKEN_BACK.finditer(text, begin))])
        start = begin + len(text[begin:]) - len(text[begin:].lstrip(DECORATION))
        end = len(text.rstrip(DECORATION))
        if end <= start:
            return self._only_decoration(text)
        if end - start > _MAX_LENGTH:
            return None
        whole = self._just_choice(text, start, end)
        if whole is not None:
            return whole
        found = None if cut else self._last_paragraph(text, start, end)
        found = found or self._last_explicit(text, begin, start) or self._confirmed(text, start)
        found = found or self._leading(text, start)
        if found is not None:
            return None if self._hesitates(text, found) else found
        return None if cut else self._only_mention(text, start) or self._conclusion(text, start, end)

    def _just_choice(self, text: str, start: int, end: int) -> NamedChoice | None:
        """Return the choice if this part of the text is one: its label, its text, or both."""
        named = self._named_at(text, start, loose=True)
        if named is not None and (named.end == end or self._repeats(text, named, end)):
            return named
        choice = self._by_form.get(fold(text[start:end]) or "") if end - start <= _LONGEST_CHOICE else None
        return None if choice is None else NamedChoice(choice, start, end, False)

    def _last_paragraph(self, text: str, start: int, end: int) -> NamedChoice | None:
        """Return the choice if the last paragraph is one, unless the line before it is a choice, too."""
        before, _, last = text[start:end].rpartition("\n")
        if not before or before.rstrip(" \t")[-1:] != "\n":
            return None
        line_before = before.rstrip(DECORATION).rpartition("\n")[2]
        if self._of_line(line_before, 0) is not None:
            return None
        return self._of_line(last, end - len(last))

    def _of_line(self, line: str, at: int) -> NamedChoice | None:
        """Return the choice if a line is one; ``at``: the index of the line in its text."""
        core = line.strip(DECORATION)
        named = self._just_choice(core, 0, len(core)) if core else None
        if named is None:
            return None
        at += line.index(core)
        return replace(named, start=named.start + at, end=named.end + at)

    def _only_decoration(self, text: str) -> NamedChoice | None:
        """Return a choice that consists of decoration only, such as "+" or "..."."""
        bare = text.strip()
        start = text.find(bare)
        hits = [i for i, choice in enumerate(self.choices) if bare and choice.strip() == bare]
        return NamedChoice(hits[0], start, start + len(bare), False) if hits else None

    def _named_at(self, text: str, at: int, *, loose: bool = False) -> NamedChoice | None:
        """Return the choice named at index ``at``, by its text or label.

        Args:
            loose: whether a label may be in lower case anywhere, not only at the end of a line.
        """
        for i, bare in self._longest_first:
            end = at + len(bare)
            if _folded(text[at:end]) == bare and bare not in self._by_label and not _continues(text, end):
                return NamedChoice(i, at, end, False)
        word = _WORD.match(text, at)
        choice = self._by_label.get(word.group().casefold()) if word else None
        if word is None or choice is None or _continues(text, word.end()):
            return None
        plain = loose or not word.group().islower() or _TO_LINE_END.match(text, word.end())
        return NamedChoice(choice, at, word.end(), True) if plain else None

    def _repeats(self, text: str, found: NamedChoice, end: int) -> bool:
        """Whether all that follows a label is the text of the same choice, as in "B) Saturn"."""
        rest = text[found.end : end]
        return found.label and _folded(rest.strip(DECORATION + "-\u2013\u2014")) == self._bare[found.choice]

    def _last_explicit(self, text: str, begin: int, start: int) -> NamedChoice | None:
        """Return the last "the answer is X" outside quotations."""
        quoted = text[:start].strip()[-1:] in ("“", '"')  # the whole reply is quoted
        asides = [] if quoted else [aside.span() for aside in _ASIDE.finditer(text, begin)]
        for match in reversed(list(_EXPLICIT.finditer(text, begin))):
            while asides and asides[-1][0] > match.start():
                asides.pop()
            named = self._named_at(text, match.end())
            if named and not (asides and named.end <= asides[-1][1]):
                return named
        return None

    def _confirmed(self, text: str, start: int) -> NamedChoice | None:
        """Return the only label that "is correct" or "is the answer"."""
        named = [self._named_at(text, match.start(1)) for match in _CONFIRMED.finditer(text, start)]
        labels = [found for found in named if found is not None and found.label]
        return labels[-1] if len({found.choice for found in labels}) == 1 else None

    def _hesitates(self, text: str, found: NamedChoice) -> bool:
        """Whether another choice follows at once, as in "A or C", or in "B) Jupiter" if B is not Jupiter."""
        also = _ALSO.match(text, found.end)
        named = self._named_at(text, also.end()) if also else None
        if named is None and found.label:
            after = found.end
            while after < len(text) and text[after] in DECORATION and text[after] != "\n":
                after += 1
            named = self._named_at(text, after) if after > found.end else None
        return named is not None and named.choice != found.choice

    def _leading(self, text: str, start: int) -> NamedChoice | None:
        """Return the choice that opens the reply.

        If other lines open with other choices, it must fill its line, and they must not fill theirs.
        """
        opening = list(self._opening_lines(text, start))
        if not opening or opening[0].start != start:
            return None
        first, others = opening[0], [found for found in opening if found.choice != opening[0].choice]
        lines = [found for found in (first, *others) if _TO_LINE_END.match(text, found.end)]
        return first if not others or lines == [first] else None

    def _opening_lines(self, text: str, start: int) -> Iterator[NamedChoice]:
        """Yield the choices that open lines, the first of which opens at ``start``."""
        for at in (start, *(line.end() for line in _LINE_START.finditer(text, start + 1))):
            named = self._named_at(text, at)
            if named and (_AFTER_LEADING if named.label else _AFTER_LEADING_TEXT).match(text, named.end):
                yield named

    def _only_mention(self, text: str, start: int) -> NamedChoice | None:
        """Return the only choice that is mentioned and not ruled out, as by "not X" or "X is wrong"."""
        labels = (*self._labels_pointed_at(text, start), *self._opening_lines(text, start))
        left, ruled_out = [], set()
        for found in (*self._texts_mentioned(text, start), *labels):
            if _REFUTED.match(text, found.end):
                ruled_out.add(found.choice)
            elif negation := _NOT.search(text, max(start, found.start - 40), found.start):
                if negation[1] or self._hesitates(text, found):  # "not sure whether X", "not X or Y"
                    return None
                ruled_out.add(found.choice)
            else:
                left.append(found)
        named = [found for found in left if found.choice not in ruled_out]
        return named[0] if len({found.choice for found in named}) == 1 else None

    def _conclusion(self, text: str, start: int, end: int) -> NamedChoice | None:
        """Return the choice that ends the reply as its conclusion."""
        for cue in list(_CONCLUDES.finditer(text, start, end))[-2:]:  # the words of a choice may hold the last one
            named = self._named_at(text, cue.end())
            negation = _NOT.search(text, max(start, cue.start() - 40), cue.start())
            if negation is not None and not negation[1]:  # "I would not choose X"
                continue
            if named is not None and not text[named.end : end].strip(DECORATION):
                return named
        return None

    def _labels_pointed_at(self, text: str, start: int) -> Iterator[NamedChoice]:
        for pointer in _POINTER.finditer(text, start):
            named = self._named_at(text, pointer.end())
            if named and named.label:
                yield named

    def _texts_mentioned(self, text: str, start: int) -> Iterator[NamedChoice]:
        """Yield choices mentioned by their text, longer ones first, so that "York" is not found in "New York"."""
        left = text
        for i, bare in self._longest_first:
            if not bare or bare in self._by_label:
                continue
            for match in re.finditer(re.escape(bare), left[start:], re.IGNORECASE):
                at, end = match.start() + start, match.end() + start
                within = _continues(left, end) or (bare[0].isalnum() and _WITHIN.search(left, max(0, at - 2), at))
                if not within and not (bare == "no" and NOUN_FOLLOWS.match(left, end)):
                    yield NamedChoice(i, at, end, False)
                    left = left[:at] + "\0" * (end - at) + left[end:]


def _end_of_thinking(text: str) -> int | None:
    """Return the index after the last thinking in tags, 0 if there is none; None if the last thinking has no end."""
    begin = 0
    for name in THINKING:
        tag = f"</{name}>"
        if tag in text:
            begin = max(begin, text.rfind(tag) + len(tag))
    return None if any(f"<{name}>" in text[begin:] for name in THINKING) else begin


def _folded(text: str) -> str:
    """Fold case like `str.casefold`, but keep the length: that would turn "ß" into two letters."""
    folded = text.casefold()
    if len(folded) == len(text):
        return folded
    return "".join([letter if len(letter.casefold()) > 1 else letter.casefold() for letter in text])


def _continues(text: str, end: int) -> bool:
    """Whether the word or number that ends at ``end`` goes on: "Bob" does not name "Bo", nor "3.5" the label "3"."""
    if end >= len(text) or not text[end - 1].isalnum():
        return False
    if text[end] > _LAST_ALPHABETIC and text[end - 1].isascii():  # "B" in Chinese, Japanese or Korean text
        return False
    return text[end].isalnum() or (text[end] in ".," and text[end - 1].isdigit() and text[end + 1 : end + 2].isdigit())


# -- probabilities -----------------------------------------------------------------------------------------------------

_MOST_ENDS = 4  # tokens: the end, and a blank or two before it


def drop_end_tokens(tokens: Sequence[Token], text: str) -> Sequence[Token]:
    """Drop the tokens after the reply's text: some services (vLLM) also list the token that ended it.

    >>> [token.text for token in drop_end_tokens([Token("B", 0.0, {}), Token("<|im_end|>", 0.0, {})], "B")]
    ['B']
    """
    text = text.strip()
    for _ in range(_MOST_ENDS):
        if len(tokens) < 2 or not "".join(token.text for token in tokens[:-1]).strip().endswith(text):
            break
        tokens = tokens[:-1]
    return tokens


def label_probabilities(tokens: Sequence[Token], parser: ChoiceParser, choice: int) -> tuple[float, ...] | None:
    """Return the probability of each choice at the place where the reply names ``choice``, given the text before.

    Alternatives that differ only in decoration or case (" A", "(A", "**A", "a") add up. A label of several tokens gets
    the product along the sampled tokens. The probability of anything else, or of alternatives that were not returned,
    is unknown: the sum is at most 1 and is never scaled up.

    Returns:
        Shape (K,). None: the tokens do not spell the reply, or give the choices no probability.
    """
    text = "".join(token.text for token in tokens)
    found = parser.find(text)
    if found is None or found.choice != choice:
        return None
    probabilities = [0.0] * len(parser.choices)
    first, lead = _locate(tokens, found)
    _LabelWalk(tokens, parser.labels, probabilities).add_from(first, "", 1.0, lead)
    if not found.label:
        probabilities[found.choice] += math.exp(_log_probability(tokens, found))
    total = sum(probabilities)
    if total <= 0:
        return None
    return tuple(probability / max(total, 1.0) for probability in probabilities)  # above 1 by rounding only


def _locate(tokens: Sequence[Token], found: NamedChoice) -> tuple[int, str]:
    """Return the index of the token in which the answer begins, and that token's text before it."""
    at = 0
    for i, token in enumerate(tokens):
        if at + len(token.text) > found.start:
            return i, token.text[: found.start - at]
        at += len(token.text)
    return len(tokens) - 1, ""


def _log_probability(tokens: Sequence[Token], found: NamedChoice) -> float:
    """Return the log-probability of the sampled tokens that spell the answer."""
    at, total = 0, 0.0
    for token in tokens:
        if at < found.end and at + len(token.text) > found.start:
            total += token.logprob
        at += len(token.text)
    return total


class _LabelWalk:
    """Follows the sampled tokens through a label, adding each token's alternatives to their labels' probabilities."""

    def __init__(self, tokens: Sequence[Token], labels: Sequence[str], probabilities: list[float]) -> None:
        self._tokens = tokens
        self._labels = [label.casefold() for label in labels]
        self._probabilities = probabilities

    def add_from(self, position: int, prefix: str, probability: float, lead: str = "") -> None:
        """Add the alternatives from this token on.

        Args:
            prefix: the part of the label that the tokens before spell, and its ``probability``.
            lead: the token's text before the label.
        """
        token = self._tokens[position]
        for text, logprob in {token.text: token.logprob, **token.top}.items():
            name, closed = _extended(prefix, text.removeprefix(lead))
            self._add(position, name, closed, probability * math.exp(logprob), sampled=text == token.text)

    def _add(self, position: int, name: str, closed: bool, probability: float, *, sampled: bool) -> None:
        longer = not closed and any(label != name and label.startswith(name) for label in self._labels)
        last = position + 1 >= len(self._tokens)
        if longer and name and sampled and not last:
            self.add_from(position + 1, name, probability)
        elif name in self._labels and (not longer or (sampled and last)):
            self._probabilities[self._labels.index(name)] += probability


def _extended(prefix: str, text: str) -> tuple[str, bool]:
    """Return the label so far with ``text`` appended, and whether it surely ends there."""
    if prefix and not text[:1].isalnum():
        return prefix, True
    core = text.strip(DECORATION)
    return (prefix + core).casefold(), not text.endswith(core)


def write_out_choices(messages: Sequence[Mapping[str, Any]], choices: Sequence[str]) -> tuple[str, ...] | None:
    """Return the question with each choice appended as its answer; None if its messages are not all plain text.

    >>> write_out_choices(({"role": "user", "content": "7 or 9, which is larger?"},), ("7", "9"))[1]
    '7 or 9, which is larger?\\n\\nAnswer: 9'
    """
    texts = [_text(message) for message in messages]
    if None in texts:
        return None
    question = "\n\n".join(text for text in texts if text)
    return tuple([f"{question}\n\nAnswer: {choice}" for choice in choices])


def _text(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if message.keys() - {"role", "content", "name"}:  # tool calls and their results
        return None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [{}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    return "".join(map(str, texts)) if None not in texts else None


def choice_probabilities(texts: Sequence[Sequence[Token]]) -> tuple[float, ...]:
    """Return the likelihood of each text, normalised over all texts, shape (K,). Their common beginning cancels out."""
    columns = zip(*texts, strict=False)
    shared = sum(1 for _ in takewhile(lambda tokens: len({token.text for token in tokens}) == 1, columns))
    logs = [math.fsum(token.logprob for token in tokens[shared:]) for tokens in texts]
    most = max(logs)
    likelihoods = [math.exp(log - most) for log in logs]
    total = math.fsum(likelihoods)
    return tuple([likelihood / total for likelihood in likelihoods])
