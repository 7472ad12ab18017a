"""Turns feedback on an answer into a reward and a label, and into each member's correctness (credit assignment)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, ClassVar, Protocol, TypedDict, Unpack
from uuid import UUID

import numpy as np
from pydantic import BaseModel

from focalroute.answers import candidate_key, choice_text, normal_form
from focalroute.answers.structured import label_form
from focalroute.answers.tool_calls import calls_form
from focalroute.core.errors import BadLabel, ConfigError, FeedbackError
from focalroute.core.json_values import canonical, parsed
from focalroute.core.records import F32, Feedback, Labelled, Masses, Member, Outcome, Trajectory, preference
from focalroute.observe.layout import MEMBER, slices, width
from focalroute.observe.observation import OPEN_CHOICES
from focalroute.store.base import JUDGE, SYNTHESIS, StoredAnswer

_LARGEST_DENOMINATOR = 10**6
_LOG_MASS = slices(MEMBER)["log_probability"].start


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


#: The right answer: a choice, a free-form answer, tool calls, a structured answer or its JSON.
Label = (
    str | float | Decimal | Fraction | date | time | timedelta | UUID | Enum
    | Mapping[str, Any] | Sequence[Any] | Set[Any] | BaseModel | _Dataclass
)  # fmt: skip

USER = "user"

#: Kinds of answers of which several different ones may be right.
SEVERAL_RIGHT = ("text", "structured", "custom")


class FeedbackArguments(TypedDict, total=False):
    """The arguments of feedback on an answer, of which exactly one is given."""

    reward: float | bool | None
    label: Label | None
    label_index: int | None
    preferred: Label | None
    score: float | None


def reward_of(reward: float | bool) -> float:
    """Return the reward as a number in [-1, 1]; True is 1, False is -1.

    Raises:
        FeedbackError: it is not a number in that range.
    """
    reward = _plain(reward)
    if isinstance(reward, bool):
        return 1.0 if reward else -1.0
    number = _number(reward)
    if number is None or not -1 <= number <= 1:
        raise FeedbackError(f"reward: must be a number in [-1, 1], or a bool; got {_named(reward, number)}")
    return number


def _plain(value: Any) -> Any:
    """Turn a numpy scalar into Python's own type."""
    return value.item() if isinstance(value, np.generic) else value


def _number(value: object) -> float | None:
    """Return the value as a float; None if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except ValueError:  # a signalling NaN
        return math.nan


def _named(value: object, number: float | None) -> str:
    """Return a short name of a value for a message: the number as given, or its type if it is not a number."""
    if number is None:
        return type(value).__name__
    return str(value) if isinstance(value, int) and abs(number) < 1e15 else str(number)


def label_key(label: Label, answer: StoredAnswer) -> str:
    """Return the key of the candidate that the label names.

    A label is a choice, a free-form answer, tool calls, or a structured answer with all its fields. If a callable of
    the caller made the candidates, the label must already be in its normal form.

    Raises:
        BadLabel: a closed question has no such choice, or a free-form answer cannot be read from the label.
    """
    label = _plain(label)
    if answer.kind == "structured":
        return _structured_key(label, answer.keys)
    if isinstance(label, list | tuple | Mapping) and answer.kind != "choice":
        key = _calls_key(label)
        if key is None:
            raise BadLabel(
                f"label: give the right answer as text, or tool calls, each with its name and arguments; got "
                f"{type(label).__name__}"
            )
        return key
    try:
        text = choice_text(label)
    except ConfigError:
        got = _named(label, _number(label))
        raise BadLabel(f"label: give one of the choices or the right answer, got {got}") from None
    if answer.kind == "choice":
        key = candidate_key(text)
        if key not in answer.keys:
            raise BadLabel("label: is not among the choices of this question; give one of them, or its label_index")
        return key
    calls = _calls_key(text)
    if calls is not None and calls in answer.keys:
        return calls
    kind = "text" if answer.kind == SYNTHESIS else answer.kind
    form = text if kind == "custom" else normal_form(text, kind)
    if form is None:
        raise BadLabel(f"label: holds no answer of the kind {answer.kind!r}; give the right answer alone")
    if answer.kind == "number" and isinstance(label, float | Decimal) and candidate_key(form) not in answer.keys:
        form = _as_quotient(label) or form
    return candidate_key(form)


def _as_quotient(label: float | Decimal) -> str | None:
    """Return the fraction that a label rounds, if any: an answer of 1/3 has the ``value`` 0.3333333333333333."""
    if not math.isfinite(float(label)):
        return None
    part = Fraction(float(label)).limit_denominator(_LARGEST_DENOMINATOR)
    value = float(part) if isinstance(label, float) else Decimal(part.numerator) / part.denominator
    return normal_form(str(part), "number") if value == label else None


def _calls_key(label: Any) -> str | None:
    """Return the key of tool calls, given as such or as JSON; None if the label is something else."""
    try:
        calls: Any = parsed(label) if isinstance(label, str) else label
        return candidate_key(calls_form([calls] if isinstance(calls, Mapping) else list(calls)))
    except (ValueError, TypeError):
        return None


def _structured_key(label: Label, keys: Sequence[str]) -> str:
    """Return the key of a structured label. A text is JSON or, if only that is a candidate, the value itself."""
    if isinstance(label, str) and not isinstance(label, Enum):
        text = candidate_key(canonical(label))
        if text in keys:
            try:
                key = candidate_key(label_form(label))
            except BadLabel:
                return text
            return key if key in keys else text
    return candidate_key(label_form(label))


def judged(answer: StoredAnswer, **said: Unpack[FeedbackArguments]) -> tuple[float, str | None]:
    """Return feedback as the reward and label of a `Feedback`.

    Raises:
        FeedbackError: none or several arguments are given, or one is out of range.
        BadLabel: see `label_key`; or ``preferred`` is not among the candidates.
    """
    if sum(one is not None for one in said.values()) != 1:
        advice = '; the right answer None is label="null"' if answer.kind == "structured" else ""
        raise FeedbackError(f"feedback: give exactly one of reward, label, label_index, preferred and score{advice}")
    if (reward := said.get("reward")) is not None:
        return reward_of(reward), None
    if (score := said.get("score")) is not None:
        return score_reward(score), None
    if (preferred := said.get("preferred")) is not None:
        return _preferred(preferred, answer)
    label = said.get("label")
    key = _key_at(said.get("label_index"), answer) if label is None else label_key(label, answer)
    return (1.0 if key == answer.keys[answer.answered] else -1.0), key


def _preferred(label: Label, answer: StoredAnswer) -> tuple[float, str]:
    """Return the reward and the label of a preference for this candidate; BadLabel if it is not one of several."""
    unknown = BadLabel(
        "preferred: is not among the candidates of this answer, or is the only one; give one of at least two"
    )
    try:
        better, other = label_key(label, answer), _runner_up(answer)
    except BadLabel:
        raise unknown from None
    if better not in answer.keys or other is None:
        raise unknown
    given = answer.keys[answer.answered]
    if better == given:
        return 1.0, preference(better, other)
    return -1.0, preference(better, given)


def score_reward(score: float) -> float:
    """Return the reward of a score in [0, 1].

    Raises:
        FeedbackError: it is not a number in that range.
    """
    number = _number(_plain(score))
    if number is None or not 0 <= number <= 1:
        raise FeedbackError(f"score: must be a number in [0, 1]; got {_named(score, number)}")
    return 2.0 * number - 1


def _runner_up(answer: StoredAnswer) -> str | None:
    """Return the likeliest candidate that was not the answer; None if there is no other."""
    others = [i for i in range(len(answer.keys)) if i != answer.answered]
    return answer.keys[max(others, key=lambda i: answer.probabilities[i])] if others else None


def _key_at(index: int | None, answer: StoredAnswer) -> str:
    """Return the key of the choice with this index; BadLabel if there is none."""
    if answer.kind != "choice":
        raise BadLabel("label_index: only choices have one; give the right answer as label")
    index = _plain(index)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(answer.keys):
        got = _named(index, _number(index))
        raise BadLabel(f"label_index: must be a whole number from 0 to {len(answer.keys) - 1}; got {got}")
    return answer.keys[index]


def outranks(source: str, other: str) -> bool:
    """Whether feedback of ``source`` replaces that of ``other``: a judge's replaces only a judge's, all others any."""
    return source != JUDGE or other == JUDGE


def credit(answer: StoredAnswer, feedback: Feedback) -> Outcome:
    """Return each member's own correctness, as far as the feedback reveals it.

    - From a label, every member's correctness is known.
    - From a preference, members that gave the better candidate are inferred to be right, those that gave the worse one
      to be wrong.
    - From a bare reward, members that agree with the answer get y = (reward + 1) / 2. If only one answer can be right
      (not in `SEVERAL_RIGHT`), the others are wrong after a reward of 1; after any other, member j is right with
      probability (1 - y) q(j's candidate) / (1 - q(answer)). This is inferred, unless there were only two choices and
      the answer was wrong. Without it, graded rewards would never count against a member that disagrees with answers
      that are mostly right.
    - From a reward for a synthesised answer, all members with an answer get the same inferred value, as none of them
      earned it alone.

    A reply without an answer is always wrong. Endpoints that were probed afterwards are credited in the same way, in
    round 0.
    """
    text = _text_of(answer) | _confidence_of(answer, feedback)
    masses, labelled = _masses(answer, _known_candidate(answer, feedback)), _labelled(answer, feedback)
    answer = _with_probes(answer)
    if feedback.right is not None and answer.kind != SYNTHESIS:
        right = {
            name: float(member.candidate is not None and answer.keys[member.candidate] == feedback.right)
            for name, member in answer.members.items()
        }
        return Outcome(answer.id, answer.members, right, masses=masses, labelled=labelled, **text)
    infer = _inference(answer, feedback)
    right, inferred = {}, set()
    for name, member in answer.members.items():
        value, known = infer(member.candidate)
        if value is not None:
            right[name] = value
            if not known:
                inferred.add(name)
    return Outcome(answer.id, answer.members, right, frozenset(inferred), masses=masses, labelled=labelled, **text)


def unjudged(answer: StoredAnswer) -> tuple[Outcome, int | None]:
    """Return the arguments of `Observer.agree` for an answer without feedback: its outcome, and its choices.

    Open texts need not be equal to agree, so nothing is learned from their equality. Members' probabilities are
    calibrated with a right choice drawn from the fused posterior, the same each time the answer is read (stochastic EM;
    Celeux & Diebolt 1985).
    """
    text, masses = _text_of(answer), None
    if answer.kind == "choice":
        masses = _masses(answer, _draw_right(answer))
    answer = _with_probes(answer)
    outcome = Outcome(answer.id, answer.members, {}, masses=masses, **text)
    if answer.open_text:
        return outcome, None
    if answer.kind == "choice":
        return outcome, len(answer.keys)
    return outcome, OPEN_CHOICES


def _text_of(answer: StoredAnswer) -> dict[str, Any]:
    steps = answer.trajectory
    return {} if steps is None else {"features": steps.features, "embedder": steps.embedder}


def _confidence_of(answer: StoredAnswer, feedback: Feedback) -> dict[str, Any]:
    """Return the answer's posterior and how right it was.

    Nothing for an answer combined from several candidates, or after a preference: both candidates may be wrong.
    """
    if answer.kind in (SYNTHESIS, "structured") or feedback.preference is not None:
        return {}
    return {"posterior": answer.probabilities[answer.answered], "correct": (feedback.reward + 1) / 2}


def _draw_right(answer: StoredAnswer) -> int | None:
    """Draw a right candidate from the posterior; None if only one member replied, as the posterior is then its own."""
    if len(answer.members) < 2 or not any(answer.probabilities):
        return None
    # Not from its id, which differs between runs with the same seed.
    asked = b"" if answer.trajectory is None else answer.trajectory.features.tobytes()
    rng = random.Random(asked + np.array(answer.probabilities).tobytes())  # noqa: S311 - no secret
    return rng.choices(range(len(answer.probabilities)), answer.probabilities)[0]


def _known_candidate(answer: StoredAnswer, feedback: Feedback) -> int | None:
    """Return the right candidate, if the feedback reveals it."""
    if feedback.right is not None:
        return answer.keys.index(feedback.right) if feedback.right in answer.keys else None
    return answer.answered if feedback.reward == 1 and feedback.preference is None else None


def _labelled(answer: StoredAnswer, feedback: Feedback) -> Labelled | None:
    """Return the choices of a closed question and the right one, if the feedback would reveal any right choice.

    With more than two choices, a bare reward reveals the right one only if the answer was right. Such a selection of
    answers does not show how often each choice is right, nor how choices are confused.
    """
    if answer.kind != "choice":
        return None
    task = None if answer.trajectory is None else answer.trajectory.task
    if feedback.right in answer.keys:
        return Labelled(task, answer.keys, answer.keys.index(feedback.right))
    if len(answer.keys) > 2 or abs(feedback.reward) != 1 or feedback.preference is not None:
        return None
    return Labelled(task, answer.keys, answer.answered if feedback.reward == 1 else 1 - answer.answered)


def _masses(answer: StoredAnswer, label: int | None) -> Masses | None:
    """Return the members' probabilities on a closed question with this right choice; None if unknown."""
    trajectory = answer.trajectory
    if label is None or answer.kind != "choice" or trajectory is None:
        return None
    if trajectory.evidence.members.shape[2] != width(MEMBER):  # stored by another version of this package
        return None
    given = {name: log_mass for name, log_mass in _log_masses(trajectory) if log_mass.any()}
    return Masses(trajectory.task, label, len(answer.keys), given) if given else None


def _log_masses(trajectory: Trajectory) -> Iterator[tuple[str, F32]]:
    evidence = trajectory.evidence
    for column, endpoint in enumerate(evidence.endpoints):
        yield trajectory.endpoints[endpoint], evidence.members[:, column, _LOG_MASS] * 8


def _with_probes(answer: StoredAnswer) -> StoredAnswer:
    """Return the answer with probed endpoints as members; candidates that only these gave have probability 0."""
    if not answer.probes:
        return answer
    said = [probe.key for probe in answer.probes if probe.key is not None]
    keys = answer.keys + tuple(dict.fromkeys(key for key in said if key not in answer.keys))
    probed = {
        probe.endpoint: Member(
            0,
            None if probe.key is None else keys.index(probe.key),
            probe.completion_tokens,
            probe.latency_s,
            probe.usd,
        )
        for probe in answer.probes
    }
    mass = answer.probabilities + (0.0,) * (len(keys) - len(answer.keys))
    return replace(answer, keys=keys, probabilities=mass, members={**probed, **answer.members})


def _inference(answer: StoredAnswer, feedback: Feedback) -> Callable[[int | None], tuple[float | None, bool]]:
    """Return a function: candidate -> (value, whether it is known rather than inferred)."""
    reward = feedback.reward
    agreeing = (reward + 1) / 2
    if answer.kind == SYNTHESIS:
        return lambda candidate: (0.0, True) if candidate is None else (agreeing, False)
    if feedback.preference is not None:
        better, worse = feedback.preference
        known: dict[int | None, tuple[float, bool]] = {None: (0.0, True)}
        for k, key in enumerate(answer.keys):
            if key in (better, worse):
                known[k] = float(key == better), False
        return lambda candidate: known.get(candidate, (None, False))
    closed, unique = answer.kind == "choice", answer.kind not in SEVERAL_RIGHT
    rest = 1 - answer.probabilities[answer.answered]

    def infer(candidate: int | None) -> tuple[float | None, bool]:
        if candidate is None:
            return 0.0, True
        if candidate == answer.answered:
            return agreeing, abs(reward) == 1
        if reward == 1 and unique:
            return 0.0, True
        if not unique or not (closed or answer.probabilities[candidate]):  # or only a probe gave it
            return None, False
        if closed and len(answer.keys) == 2:
            return 1 - agreeing, reward == -1
        share = answer.probabilities[candidate] / rest if rest > 1e-9 else 1 / (len(answer.keys) - 1)
        return (1 - agreeing) * min(1.0, share), False

    return infer
