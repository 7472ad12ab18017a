"""Finds the final answer in a reply, after its reasoning and before small talk."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_LONGEST = 20_000  # characters at the end of a reply that are read: the final answer is near the end
#: Tags of reasoning that is not part of the answer.
THINKING = ("think", "thinking")
# The word for "answer" in languages with and without spaces between words.
_SPACED, _UNSPACED = "antwort|réponse|respuesta|risposta|resposta|ответ", "答案|正解|答え|정답"
#: "The answer is" or "answer:" in some other languages.
ANSWER_IN_OTHER_LANGUAGES = (
    rf"(?:\b(?:{_SPACED})(?:\s+\w+)?\s*(?:\b(?:ist|est|es|è|é)\b|[:=\u2014])"
    rf"|(?:{_UNSPACED})\s*(?:是|为|為|选|選|は|은|[:\uff1a]))"
)
_END_TOKENS = re.compile(r"(?:\s*(?:<\|\w{1,20}\|>|</s>|<end_of_turn>))+\s*$")
_LONGEST_END = 100  # characters
_BOXED = re.compile(r"\\f?box(?:ed)?\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # or an escaped character
_LETTER = re.compile(r"[^\W\d_]")
_LONGEST_OPENING = 60  # characters
_TAGGED = re.compile(r"<answer>\s*((?:[^<]|<(?!/?answer>))*)", re.IGNORECASE)
_HASHED = re.compile(r"[ \t]*####[ \t]*(.+)")
_MARKER = re.compile(  # "the answer is", but not the verb, as in "to answer this question, we add: ..."
    r"\banswer\b(?!\s+(?:this|that|it|the|your|these|each)\b)"
    r"[^\n.!?:=]{0,60}?(?:\b(?:is|was|are|equals|(?:w|sh)ould be|must be)\b|[:=])"
    r"|\banswer[ \t*_]+[-\u2013\u2014][ \t]|^[ \t#*_-]*(?:(?:the|my|short|final)[ \t]+)*answer[ \t*_]*$"
    rf"|{ANSWER_IN_OTHER_LANGUAGES}",
    re.IGNORECASE | re.MULTILINE,
)
_OPENING = re.compile(r"(?:[\s*_:\"'`\u201c\u2018]|\$\$|\\[\[(])*")
_WORD = re.compile(r"[^\W_]|[∞∅]")  # the latter are answers without a letter or a digit
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*(\s*:)?")
_STRESSED = {"not", "never", "only", "exactly", "very", "and", "or", "but", "both", "all"}  # bold words, not answers
_NEGATED = re.compile(r"(?:(?<![^\W_])(?:can)?not|n['\u2019]t)[*_]*\s+$", re.IGNORECASE)
# "St. Helena" and "J. K. Rowling" do not end a sentence
_SENTENCE_END = re.compile(
    r"(?<!\b[A-Za-z])(?<!\b(?:St|Mt|Ft|Dr|Mr|Ms|Jr|Sr|Lt))(?<!\b(?:Mrs|Rev|Gen|Col|Sgt))(?<!\b(?:Prof|Capt))"
    r"[.!?][\"'*_)\u201d\u2019]*\s+(?=[A-Z(])"
)
_REASON = re.compile(
    r"(?<=[\w*])[,;]?\s+\(?because\b|(?<=\S)[,;]\s+(?:which|who|where|since|as|not|though|although)\b", re.IGNORECASE
)
_NOT_BUT = re.compile(r"^\W*not\b.{1,80}?(?:\bbut\b|[,;]\s*(?:it\s+is|it['\u2019]s)\b)", re.IGNORECASE)
_NAMES_OF_ANSWER = f"answer|{_SPACED}|{_UNSPACED}".split("|")
#: "Wait, no", which takes back all before it, but not "Wait, no other ...". The pattern begins with "ait", as a fixed
#: text is found quickly.
TAKEN_BACK = re.compile(
    r"ait(?<=[Ww]ait)(?:,\s+no\b(?!\s+(?:other|more|longer|one|such|need)\b)"
    r"|[,.!]\s+(?:that(?:['\u2019]s|\s+is)\s+(?:wrong|incorrect|not\s+right)|I\s+made\s+an?\s+(?:mistake|error))\b"
    r"|(?:\s+no|(?<=[Nn]o wait)|(?<=[Nn]o, wait))(?=[,.:;!]))(?=\W+\w)"
)
#: Words by which a reply declines to answer.
UNDECIDED = re.compile(  # not "I can't say for sure, but ..."
    r"(?:\b(?:(?:I|we)(?:\s+am|['\u2019]m)?\s+(?:cannot|can['\u2019]t|unable\s+to)|impossible\s+to|cannot\s+be)\s+"
    r"(?:determine|say|tell|answer|know|help)|(?:not|n['\u2019]t)\s+enough\s+information"
    r"|(?:n['\u2019]t\s+know|not\s+sure|unclear)\s+(?:if|whether)\b)(?![^.\n]{0,80}\bbut\b)",
    re.IGNORECASE,
)
# The beginning of a reply that holds no answer; "Of course." may be one.
_PREFACE = re.compile(
    r"\s*(?:(?:(?:That['\u2019]s|What)\s+an?\s+)?(?i:great|good)\s+question[.!]|(?:Sure|Certainly|Of\s+course)!)\s+(?=\S)"
)
#: The beginning of a last line that holds no answer.
_SMALL_TALK = re.compile(
    r"\W*(?:(?:Please\s+)?(?:[Ll]et\s+me\s+know|[Ff]eel\s+free\s+to)|(?:I\s+)?[Hh]ope\s+(?:this|that|it)\s|Would\s+you\s+like"
    r"|If\s+you(?:\s+(?:have|need|want|would)\b|['\u2019]d)|Do\s+you\s+(?:want|need)|Is\s+there\s+anything"
    r"|(?:Check|Verification|Explanation|Note|Reason)\W*:(?!.*(?:answer|boxed)))"
)
_EXPLANATION = re.compile(
    r"[#*_\s]*(?:(?:Explanation|Verification|Check)\b|Here['\u2019]s\s+(?:how|why)\b)", re.IGNORECASE
)
_MOST_PASSES = 8


class FinalAnswer(NamedTuple):
    """The part of a reply that holds its final answer.

    Attributes:
        text: that part, one line.
        marked: whether the reply marks it as its answer; if not, it is the last line.
        reply: the whole reply without hidden reasoning and small talk; only the end of a long one.
    """

    text: str
    marked: bool
    reply: str

    @property
    def opening(self) -> str | None:
        """The first paragraph, or the first sentence of a single line, if it is short and an explanation follows."""
        first, *others = self.reply.split("\n\n", 1)
        if not others and "\n" not in first:
            first, *others = _SENTENCE_END.split(first, maxsplit=1)
        explanation = others and len(first) <= _LONGEST_OPENING and _LETTER.search(self.text)
        return first if explanation else None

    @property
    def explained(self) -> bool:
        """Whether a heading such as "Explanation:" follows the first paragraph, which is then the answer."""
        _, _, rest = self.reply.partition("\n\n")
        return _EXPLANATION.match(rest) is not None


def find_final(text: str) -> FinalAnswer | None:
    """Find the final answer of a reply; None if it has none.

    It is the first of these that the reply has:

    1. the last boxed text;
    2. the last text in ``<answer>`` tags;
    3. the text after ``####`` on the last line;
    4. the text after the last "the answer is", "Answer:" or heading "Answer", also in some other languages;
    5. the only bold words of the last line;
    6. the last line.

    Small talk and explanations at the end do not count, nor does reasoning in ``<think>`` tags, nor anything before a
    "Wait, no". A reply whose reasoning never ends has no answer. Takes linear time.

    >>> find_final("6 * 7 is easy. The answer is **42**. Anything else?").text
    '42**'
    """
    lines = _PREFACE.sub("", _without_thinking(text), count=1).strip().splitlines()
    while len(lines) > 1 and (not _has_word(lines[-1]) or _SMALL_TALK.match(lines[-1])):
        lines.pop()
    reply, last = "\n".join(lines), "".join(lines[-1:]).strip()
    if any(not _has_word(last[end:]) for end in (0, *(marker.end() for marker in _markers(last)))):
        return None  # the reply was cut off before its answer
    marked = _boxed(reply) or _tagged(reply) or _hashed(last) or _announced(reply) or only_bold(last)
    return FinalAnswer(marked or last, marked is not None, reply)


def normalise_final(text: str, normalise: Callable[[FinalAnswer], str | None]) -> str | None:
    """Normalise the final answer until nothing changes, as a normal form may again hold a marked answer.

    Returns None if there is no answer, or it still changes after 8 passes.
    """
    for _ in range(_MOST_PASSES):
        answer = find_final(text)
        if answer is None:
            return None
        form = normalise(answer)
        if form is None or form == text:
            return form
        text = form
    return None


def _without_thinking(text: str) -> str:
    """Remove reasoning, text that is taken back, and the beginning of a long reply; "" if the reasoning never ends."""
    for name in THINKING:
        _, _, text = text.rpartition(f"</{name}>")
        if f"<{name}>" in text:
            return ""
    return TAKEN_BACK.split(without_end_tokens(text[-_LONGEST:]))[-1]


def without_end_tokens(text: str) -> str:
    """Remove the tokens that end a model's turn, which some servers leave in the text.

    >>> without_end_tokens("Paris<|im_end|>")
    'Paris'
    """
    return text[:-_LONGEST_END] + _END_TOKENS.sub("", text[-_LONGEST_END:])


def _has_word(text: str) -> bool:
    return _WORD.search(text) is not None


def _boxed(text: str) -> str | None:
    ends = [match.end() for match in _BOXED.finditer(text)]
    return _one_line(text[ends[-1] : _closing_brace(text, ends[-1])]) if ends else None


def _closing_brace(text: str, start: int) -> int:
    """Return the index of the brace that closes the one before ``start``; the text's length if there is none."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if not depth:
            return match.start()
    return len(text)


def _tagged(text: str) -> str | None:
    found = _TAGGED.findall(text)
    return _one_line(found[-1]) if found else None


def _one_line(text: str) -> str | None:
    line = " ".join(text.split())
    return line if _has_word(line) else None


def _hashed(line: str) -> str | None:
    """Return the text after GSM8K's ``####``, which marks an answer only on the last line, else a heading."""
    found = _HASHED.fullmatch(line)
    return found[1] if found and not _markers(found[1]) else None


def _markers(text: str) -> list[re.Match[str]]:
    folded = text.casefold()
    if not any(name in folded for name in _NAMES_OF_ANSWER):  # much quicker than the pattern
        return []
    return list(_MARKER.finditer(text))


def _announced(text: str) -> str | None:
    for marker in reversed(_markers(text)):
        line, *_ = _OPENING.sub("", text[marker.end() :], count=1).split("\n", 1)
        if _has_word(line):
            return first_sentence(line)
    return None


def only_bold(text: str) -> str | None:
    """Return the only bold words of a text; None if it has none or several, or a colon ends or follows them.

    A "not", and what follows one, does not count.
    """
    bold = [match for match in _BOLD.finditer(text) if match[1].casefold() not in _STRESSED]
    found = [match for match in bold if not _NEGATED.search(text, max(0, match.start() - 10), match.start())]
    if len(found) != 1 or not _has_word(found[0][1]) or found[0][2] or found[0][1].rstrip().endswith(":"):
        return None
    return found[0][1]


def first_sentence(line: str) -> str:
    """Return the first sentence, without its reason ("because ...") and without the "not X" of "not X but Y"."""
    for pattern in (_SENTENCE_END, _REASON):
        line = pattern.split(line, maxsplit=1)[0]
    rest = _NOT_BUT.sub("", line)
    return rest if _has_word(rest) else line
