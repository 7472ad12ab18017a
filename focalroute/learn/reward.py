"""From what somebody says of an answer to what it teaches about each member: credit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from focalroute.answers import candidate_key, normal_form
from focalroute.answers.structured import label_form
from focalroute.answers.tool_calls import calls_form
from focalroute.core.errors import BadLabel, FeedbackError
from focalroute.core.records import F32, Feedback, Masses, Member, Outcome, Trajectory
from focalroute.observe.layout import MEMBER, slices, width
from focalroute.observe.observation import OPEN_CHOICES
from focalroute.store.base import JUDGE, SYNTHESIS, StoredAnswer

_LOG_MASS = slices(MEMBER)["log_probability"].start

#: What is right: a choice's text or index, a free-form answer, tool calls, a structured answer or its JSON.
Label = str | int | Mapping[str, Any] | Sequence[Any] | BaseModel

USER = "user"


def reward_of(reward: float | bool) -> float:
    """The reward as a number in [-1, 1]; True is 1, False is -1.

    Raises:
        FeedbackError: it is not a number in that range.
    """
    if isinstance(reward, bool):
        return 1.0 if reward else -1.0
    if not isinstance(reward, int | float) or not math.isfinite(reward) or not -1 <= reward <= 1:
        raise FeedbackError(f"reward: must be a number in [-1, 1], or a bool; got {reward!r}")
    return float(reward)


def label_key(label: Label, answer: StoredAnswer) -> str:
    """The key of the candidate that the label names: a choice's text or index, a free-form answer, tool calls, or a
    structured answer, in all of its fields.

    Where the caller's own callable made the candidates, the label is taken to be in its normal form already.

    Raises:
        BadLabel: a closed question has no such choice, or a free-form answer cannot be read from the label.
    """
    if answer.kind == "structured":
        return candidate_key(label_form(label))
    if isinstance(label, int) and not isinstance(label, bool):
        if answer.kind != "choice":
            return label_key(str(label), answer)
        if not 0 <= label < len(answer.keys):
            raise BadLabel(
                f"label: index {label} is not among the {len(answer.keys)} choices; give a choice's index or text"
            )
        return answer.keys[label]
    if isinstance(label, list | tuple | Mapping) and answer.kind != "choice":
        try:
            return candidate_key(calls_form([label] if isinstance(label, Mapping) else list(label)))
        except ValueError as error:
            raise BadLabel(f"label: {error}") from None
    if not isinstance(label, str):
        raise BadLabel(f"label: give a choice's text or index, got {type(label).__name__}")
    if answer.kind == "choice":
        key = candidate_key(label)
        if key not in answer.keys:
            raise BadLabel(
                "label: is not among the choices of this question; give the text of one of them, or its index"
            )
        return key
    kind = "text" if answer.kind == SYNTHESIS else answer.kind
    form = label if kind == "custom" else normal_form(label, kind)
    if form is None:
        raise BadLabel(f"label: holds no answer of the kind {answer.kind!r}")
    return candidate_key(form)


def judged(answer: StoredAnswer, *, reward: float | bool | None, label: Label | None) -> tuple[float, str | None]:
    """What is said of an answer, as (reward in [-1, 1], key of the right candidate or None).

    Raises:
        FeedbackError: neither or both of them are given, or the reward is out of range.
        BadLabel: see `label_key`.
    """
    if reward is not None and label is None:
        return reward_of(reward), None
    if label is not None and reward is None:
        key = label_key(label, answer)
        return (1.0 if key == answer.keys[answer.answered] else -1.0), key
    raise FeedbackError("feedback: give either reward or label")


def outranks(source: str, other: str) -> bool:
    """Whether ``source``'s word on an answer replaces ``other``'s: a judge's only a judge's, all others any."""
    return source != JUDGE or other == JUDGE


def credit(answer: StoredAnswer, feedback: Feedback) -> Outcome:
    """Each member's own correctness, as far as the feedback tells.

    A label is exact. A bare reward tells of those who agree with the answer: (reward + 1) / 2. Of the others it
    tells, on a closed question: after a full 1, that they are wrong; after a full -1, that member j is right with
    probability q(j's candidate) / (1 - q(answer)), which is inferred unless there were but two choices.

    A reward for what was written from the replies is shared: everybody it was made of is credited with it, as inferred,
    for nobody has earned it alone.

    A reply in which there was no answer is wrong, whatever is said. Endpoints that were probed afterwards are credited
    alike, in round 0.
    """
    text = _text_of(answer) | _confidence_of(answer, feedback)
    masses = _masses(answer, feedback)
    answer = _with_probes(answer)
    if feedback.label is not None and answer.kind != SYNTHESIS:
        right = {
            name: float(member.candidate is not None and answer.keys[member.candidate] == feedback.label)
            for name, member in answer.members.items()
        }
        return Outcome(answer.id, answer.members, right, masses=masses, **text)
    infer = _inference(answer, feedback.reward)
    right, inferred = {}, set()
    for name, member in answer.members.items():
        value, known = infer(member.candidate)
        if value is not None:
            right[name] = value
            if not known:
                inferred.add(name)
    return Outcome(answer.id, answer.members, right, frozenset(inferred), masses=masses, **text)


def unjudged(answer: StoredAnswer) -> tuple[Outcome, int | None]:
    """An answer without feedback, and how many answers its question has, as `Observer.agree` takes them.

    Open texts need not be equal to agree, so nothing is learned from whether they are.
    """
    text = _text_of(answer)
    answer = _with_probes(answer)
    outcome = Outcome(answer.id, answer.members, {}, **text)
    if answer.kind in ("text", SYNTHESIS):
        return outcome, None
    return outcome, len(answer.keys) if answer.kind == "choice" else OPEN_CHOICES


def _text_of(answer: StoredAnswer) -> dict[str, Any]:
    steps = answer.trajectory
    return {} if steps is None else {"features": steps.features, "embedder": steps.embedder}


def _confidence_of(answer: StoredAnswer, feedback: Feedback) -> dict[str, Any]:
    """How sure the Fusion was of the answer, and how right that was; nothing of one put together from several."""
    if answer.kind in (SYNTHESIS, "structured"):
        return {}
    return {"posterior": answer.probabilities[answer.answered], "correct": (feedback.reward + 1) / 2}


def _masses(answer: StoredAnswer, feedback: Feedback) -> Masses | None:
    """What members' probabilities were on a closed question whose right choice the feedback tells."""
    trajectory = answer.trajectory
    if answer.kind != "choice" or trajectory is None or trajectory.evidence.members.shape[2] != width(MEMBER):
        return None
    if feedback.label is not None:
        label = answer.keys.index(feedback.label)
    elif feedback.reward == 1:
        label = answer.answered
    else:
        return None
    given = {name: log_mass for name, log_mass in _log_masses(trajectory) if log_mass.any()}
    return Masses(trajectory.task, label, len(answer.keys), given) if given else None


def _log_masses(trajectory: Trajectory) -> Iterator[tuple[str, F32]]:
    evidence = trajectory.evidence
    for column, endpoint in enumerate(evidence.endpoints):
        yield trajectory.endpoints[endpoint], evidence.members[:, column, _LOG_MASS] * 8


def _with_probes(answer: StoredAnswer) -> StoredAnswer:
    """As if those probed had been members, too; a free-form answer that only they gave had no mass."""
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


def _inference(answer: StoredAnswer, reward: float) -> Callable[[int | None], tuple[float | None, bool]]:
    """Candidate -> (value, whether it is known rather than inferred)."""
    agreeing = (reward + 1) / 2
    if answer.kind == SYNTHESIS:
        return lambda candidate: (0.0, True) if candidate is None else (agreeing, False)
    closed = answer.kind == "choice"
    rest = 1 - answer.probabilities[answer.answered]

    def infer(candidate: int | None) -> tuple[float | None, bool]:
        if candidate is None:
            return 0.0, True
        if candidate == answer.answered:
            return agreeing, abs(reward) == 1
        if not closed or abs(reward) != 1:
            return None, False
        if reward == 1:
            return 0.0, True
        if len(answer.keys) == 2:
            return 1.0, True
        return (min(1.0, answer.probabilities[candidate] / rest) if rest > 1e-9 else 1 / (len(answer.keys) - 1)), False

    return infer
