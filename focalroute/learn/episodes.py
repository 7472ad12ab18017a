"""From answers and what was said of them to episodes: what each round cost, and what each candidate was worth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from focalroute.core.records import Feedback, Trajectory
from focalroute.learn.reward import outranks
from focalroute.observe import layout
from focalroute.store.base import StoredAnswer


@dataclass(frozen=True, slots=True)
class Episode:
    """One rewarded query.

    Attributes:
        shares: for each of the trajectory's decisions, what its round cost, c_k / C, in costs of asking all once.
        reward: u in [-1, 1], of the answer given.
        right: index of the right candidate, from a label; None: no label, or none of the candidates is right.
        labelled: whether there was a label: every candidate is then known to be right or wrong.
    """

    id: str
    trajectory: Trajectory
    shares: tuple[float, ...]
    reward: float
    right: int | None
    labelled: bool


@dataclass(frozen=True, slots=True)
class Costs:
    """The typical costs of calls, frozen for one update.

    Attributes:
        usd: endpoint -> mean cost of a call, over the calls whose cost is known.
    """

    usd: Mapping[str, float]

    @classmethod
    def of(cls, answers: Iterable[StoredAnswer]) -> Costs:
        """The means over these answers' calls."""
        sums: dict[str, tuple[float, int]] = {}
        for answer in answers:
            for endpoint, _, usd in _calls(answer):
                if usd is not None:
                    total, calls = sums.get(endpoint, (0.0, 0))
                    sums[endpoint] = total + usd, calls + 1
        return cls({endpoint: total / calls for endpoint, (total, calls) in sums.items()})

    def typical(self, endpoint: str) -> float:
        """USD of a call; of an endpoint whose cost is not known the mean of those known, and 1 where none is.

        So without any price a call costs an N-th of asking all: unknown is not free.
        """
        if not self.usd:
            return 1.0
        return self.usd.get(endpoint, sum(self.usd.values()) / len(self.usd))

    def ask_all(self, endpoints: Sequence[str]) -> float:
        """C, USD of asking all of a pool once."""
        return sum(map(self.typical, endpoints))

    def shares(self, answer: StoredAnswer, trajectory: Trajectory) -> tuple[float, ...]:
        """c_k / C of each decision; 0 where the whole pool is free."""
        rounds: dict[int, float] = {}
        for endpoint, number, usd in _calls(answer):
            if usd is None:
                usd = self.typical(endpoint)
            rounds[number] = rounds.get(number, 0.0) + usd
        everything = self.ask_all(trajectory.endpoints)
        if everything <= 0:
            rounds, everything = {}, 1.0
        return tuple([rounds.get(decision.round, 0.0) / everything for _, decision in trajectory.decisions])


def deciding(feedback: Sequence[Feedback]) -> Feedback | None:
    """The feedback that counts, of all given for one answer in their order; None if there is none."""
    found: Feedback | None = None
    for said in feedback:
        if found is None or outranks(said.source, found.source):
            found = said
    return found


def rewarded(
    answers: Iterable[tuple[StoredAnswer, Sequence[Feedback]]],
) -> list[tuple[StoredAnswer, Feedback]]:
    """The answers that a policy decided and somebody judged, in their order, each with the feedback that counts."""
    return [
        (answer, said)
        for answer, feedback in answers
        if answer.trajectory is not None and (said := deciding(feedback)) is not None
    ]


def episode(answer: StoredAnswer, feedback: Feedback, costs: Costs) -> Episode | None:
    """The episode of an answer and what was said of it.

    None if no policy decided it, or another version of this package saw it through another layout.
    """
    trajectory, label = answer.trajectory, feedback.right
    if trajectory is None or not _fits(trajectory):
        return None
    keys, right = answer.keys[: len(trajectory.evidence.candidates)], None  # what was written from them is none of them
    if label in keys:
        right = keys.index(label)
    return Episode(
        id=answer.id,
        trajectory=trajectory,
        shares=costs.shares(answer, trajectory),
        reward=feedback.reward,
        right=right,
        labelled=label is not None,
    )


def _fits(trajectory: Trajectory) -> bool:
    """Whether everything the policies saw has today's layout."""
    evidence = trajectory.evidence
    seen = [(evidence.members, layout.MEMBER), (evidence.candidates, layout.CANDIDATE)]
    for observation, _ in trajectory.decisions:
        seen += [(observation.context, layout.CONTEXT), (observation.endpoints, layout.ENDPOINT)]
    return all(array.shape[-1] == layout.width(columns) for array, columns in seen)


def _calls(answer: StoredAnswer) -> list[tuple[str, int, float | None]]:
    """(endpoint, round, USD or None) of every call made: from the receipt, else of the members that replied.

    What was reserved for a call that was given up counts as unknown: it is many times what a call costs.
    """
    calls = json.loads(answer.receipt).get("calls")
    if calls is None:
        return [(name, m.round, None if m.usd is None else float(m.usd)) for name, m in answer.members.items()]
    found: list[tuple[str, int, float | None]] = []
    for call in calls:
        given_up = call["error"] is not None and call["cost_source"] == "reserved"
        if call["cost"] is not None and not given_up:
            found.append((call["endpoint"], call["round"], float(call["cost"])))
        elif call["attempts"] or call["cost"] is not None:
            found.append((call["endpoint"], call["round"], None))
    return found
