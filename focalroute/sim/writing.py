"""How a simulated model writes prose: each point as its skill has it, in words of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from focalroute.sim.models import SimulatedModel, distribution, sample, uniforms
from focalroute.sim.prose import Brief


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
        drafts: replies of others that it was shown: on each point it says what most of them and it itself would say, of
            equals what it would say itself, else what comes first.
        drifted: whether the skills after the drift switch hold.
        temperature: of its draws; 0: always its most probable option.
        index: of the sample; ``seed``: of the request.
    """
    others = [brief.said(draft) for draft in drafts]
    sentences = []
    for number, point in enumerate(brief.points):
        topic = f"{number} {brief.request}"
        draws = uniforms("prose", model.seed, model.name, topic, index, seed)
        p = distribution(model, topic, brief.axis, point.options, point.right, drifted=drifted)
        own = sample(p, draws[0], temperature)
        votes = Counter([own, *(said for draft in others if (said := draft[number]) is not None)])
        said, _ = votes.most_common(1)[0]  # of equals the first, which is its own
        sentences.append(point.wordings[int(draws[1] * len(point.wordings))].format(point.options[said]))
    return " ".join(sentences)
