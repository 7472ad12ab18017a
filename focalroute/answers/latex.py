"""Simplifies LaTeX: removes what changes only an answer's appearance."""

from __future__ import annotations

import re
from itertools import pairwise

from focalroute.answers.notation import THIN_SPACES, multiply_out, type_out

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|operatorname|mbox)\s*\{([^{}]*)\}")
_DEEPEST = 4  # text commands within each other
_EXPONENT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?:e(?=\d)|E\+?(?=-?\d))(-?\d+)(?![\w.])")  # not 2e-1, with Euler's e
_SPACES = re.compile(r"(?<!\\)\\[,;:!> ()\[\]]|\\q?quad\b|~")
_DOLLARS = re.compile(
    r"\$\$(.{1,500}?)\$\$|(?<![\\\d])\$(?=\S)([^$]{1,500}?)(?<=\S)\$(?!\d)|\\\((.{1,500}?)\\\)|\\\[(.{1,500}?)\\\]"
)
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits|phantom\s*\{[^{}]*\})(?![A-Za-z])\.?")
_UNIT_TEXT = re.compile(
    r"(?:(?<=[\d)}\]])|(?<=\\pi))\s*\\(?:text|mathrm|mbox|textrm)\s*\{([^{}]*)\}(?:\s*\^\s*(?:\d|\{\s*-?\d\s*\}))?"
)
_LABEL = re.compile(r"^\s*\\(?:text|textbf|mathrm|mathbf)\s*\{\s*\([A-J]\)\s*\}[\\,;~\s]*(?=\S)")  # \textbf{(C)} 12
_DEGREES = re.compile(r"\^?\s*\{?\s*(?:\\circ|\\degree|\N{DEGREE SIGN})\s*\}?")
_UNIT_WORDS = re.compile(
    r"(?<=[\d)}])\s*(?!or\b|and\b|mod\b|sqrt\b|sin\b|cos\b|tan\b|log\b|ln\b|pi\b|infinity\b)"
    r"(?:[a-z]{3,}(?:\s+[a-z]+)*|[ckmμn]m|kg|m[lsg]|ft|in|yd|oz|lbs?|hr?s?|[kmg]?hz|(?:km|mi|m)\s*/\s*[hs]|mph)"
    r"\.?(?:\s*\^\s*\{?\s*[23]\s*\}?)?\s*$",
    re.IGNORECASE,
)
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])|≈")
_BETWEEN_FORMULAS = re.compile(r"[\s*]*(?:,|,?\s*\b(or|and)\b)[\s*]*", re.IGNORECASE)
_NAMED = re.compile(r"\s*(?:[A-Za-z](?:_\{?\w+\}?)?)?\s*")
_WORDS_BETWEEN = re.compile(r"\s*\\text\s*\{\s*(?:or|and)\s*\}\s*", re.IGNORECASE)
_SIGNS = {
    "\\dfrac": "\\frac", "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\times": "*", "\\cdot": "*", "\\ast": "*",
    "\\div": "/", "\\leq": "<=", "\\geq": ">=", "\\leqslant": "<=", "\\geqslant": ">=", "\\le": "<=", "\\ge": ">=",
    "\\neq": "!=", "\\ne": "!=", "\\lt": "<", "\\gt": ">", "\\pi": " pi ", "\\infty": " infinity ", "\\lbrace": "\\{",
    "\\rbrace": "\\}", "\\varnothing": "\\emptyset", "\\lvert": "|", "\\rvert": "|", "\\vert": "|",
}  # fmt: skip
_COMMAND = re.compile(r"\\[A-Za-z]+")
_CHARACTERS = str.maketrans({
    "\N{MINUS SIGN}": "-", "\u2013": "-", "\N{MULTIPLICATION SIGN}": "*", "·": "*", "⋅": "*", "÷": "/", "≤": "<=",
    "≥": ">=", "≠": "!=",
    "π": " pi ", "∞": " infinity ", "√": "\\sqrt ", "\N{UNION}": "\\cup ", "∈": "\\in ", "±": "\\pm ",
    "∅": "\\emptyset ", "%": None, "$": None, "€": None, "£": None, "\u200b": None, "\u2062": None,
})  # fmt: skip


def without_commands(text: str) -> str:
    """Unwrap words from ``\\text{...}``, and formulas from dollars.

    >>> without_commands("$\\\\text{New York}$, for $5")
    'New York, for $5'
    """
    text = _DOLLARS.sub(_inside_dollars, text)
    for _ in range(_DEEPEST):
        text, found = _TEXT.subn(r"\1", text)
        if not found:
            break
    return _SPACES.sub(" ", text)


def _inside_dollars(match: re.Match[str]) -> str:
    return next(inside for inside in match.groups() if inside is not None)


def select_formula(text: str, *, first: bool) -> str:
    """Return the first or the last formula of the text, without its dollars; the text itself if it has none.

    Formulas with only commas and a final "or" or "and" between them are one list.

    >>> select_formula("For $n = 1$, $x = 2$ or $x = 3$.", first=False), select_formula("At $1$, $2$.", first=False)
    ('n = 1, x = 2, x = 3', '2')
    """
    found = list(_DOLLARS.finditer(text))
    if not found:
        return text
    if not first:
        found.reverse()
    listed, joined = found[:1], False
    for one, other in pairwise(found):
        earlier, later = (one, other) if first else (other, one)
        between = _BETWEEN_FORMULAS.fullmatch(text, earlier.end(), later.start())
        if between is None:
            break
        listed.append(other)
        joined = joined or between[1] is not None
    if not joined:
        return _inside_dollars(found[0])
    return ", ".join(_inside_dollars(match) for match in sorted(listed, key=re.Match.start))


def simplify_latex(formula: str) -> str:
    """Remove spacing commands, sizes of brackets, units, degrees, percents and currencies from a formula.

    Of "1/6 \\approx 0.167" only the exact side is kept.

    >>> simplify_latex("\\\\dfrac{1}{2}\\\\,\\\\text{cm}^2"), simplify_latex("90^\\\\circ"), simplify_latex("12 apples")
    ('\\\\frac{1}{2}', '90', '12')
    """
    text = THIN_SPACES.sub("", _LABEL.sub("", formula.strip("*`_ ")).replace("{,}", ",").replace("**", "^"))
    text = _EXPONENT.sub(r"\1*10^{\2}", multiply_out(text))
    exact, *rounded = _APPROXIMATELY.split(_SIZES.sub("", _SPACES.sub(" ", text)), maxsplit=1)
    text = rounded[0] if rounded and _NAMED.fullmatch(exact) else exact
    text = _UNIT_TEXT.sub("", _WORDS_BETWEEN.sub(", ", text))
    text = _DEGREES.sub("", text.replace("\\%", "").replace("\\$", ""))
    text = _COMMAND.sub(lambda match: _SIGNS.get(match[0], match[0]), without_commands(text))
    text = type_out(text).translate(_CHARACTERS).strip().rstrip(".,;:").strip()
    return _UNIT_WORDS.sub("", text).strip()
