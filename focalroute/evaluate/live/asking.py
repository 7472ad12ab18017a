"""How training asks: over HTTP, through an ensemble of one endpoint; or a simulated model in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed
from focalroute.core.receipts import Answer
from focalroute.core.records import Query, Reply
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.elicit.messages import format_answer, show_answer
from focalroute.endpoints.wire import decode, encode
from focalroute.evaluate.live.queries import LiveQuery
from focalroute.evaluate.sequential import Asker, Said, Step
from focalroute.money.cost import cost_of
from focalroute.observe.features import text_features
from focalroute.policy.sequential import ANSWER
from focalroute.serving.sync import Ensemble
from focalroute.sim import SimulatedModel
from focalroute.sim.direct import complete

_AT_A_TIME = 16
#: What a probe finds of a simulated model that speaks the dialect "openai".
_ABLE = Capabilities(True, 20, True, True, True)


@contextmanager
def over_http(endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery]) -> Iterator[Asker]:
    """Calls through everything that an ask goes through: limits, retries, what the endpoint is found to be able to."""
    with ExitStack() as stack:
        alone = [stack.enter_context(Ensemble([endpoint], policy="best-single")) for endpoint in endpoints]

        def ask(steps: Sequence[Step]) -> list[Said]:
            found: dict[Step, Said] = {}
            for i, ensemble in enumerate(alone):
                mine = [step for step in steps if step.endpoint == i]
                asked = [_put(queries[step.query], step.shown) for step in mine]
                answers = ensemble.ask_many(
                    [{"query": list(q.messages), "choices": q.choices, "answer": q.answer} for q in asked],
                    concurrency=_AT_A_TIME,
                    return_exceptions=True,
                )
                for step, answer in zip(mine, answers, strict=True):
                    reply = answer.replies[-1] if isinstance(answer, Answer) else Reply(endpoints[i].name)
                    found[step] = _said(queries[step.query], reply)
            return [found[step] for step in steps]

        yield ask


def in_process(models: Sequence[SimulatedModel], endpoints: Sequence[Endpoint], queries: Sequence[LiveQuery]) -> Asker:
    """The same calls to simulated models, without sockets: the same replies at the same cost."""
    by_name: Mapping[str, SimulatedModel] = {model.name: model for model in models}

    def ask(steps: Sequence[Step]) -> list[Said]:
        return [_direct(by_name[endpoints[step.endpoint].model], endpoints[step.endpoint], step) for step in steps]

    def _direct(model: SimulatedModel, endpoint: Endpoint, step: Step) -> Said:
        live = queries[step.query]
        put = plan(_put(live, step.shown), _ABLE)
        completion = decode(complete(model, encode(put.request, endpoint.model, "openai")))
        usage = completion.usage
        cost = None if usage is None else cost_of(usage, endpoint)[0]
        try:
            reading = put.read(completion)
        except CallFailed as error:
            return _said(live, Reply(endpoint.name, cost=cost, error=error.failure))
        reply = Reply(
            endpoint.name, text=reading.text, choice=reading.choice, probabilities=reading.probabilities, cost=cost
        )
        return _said(live, reply)

    return ask


def _put(live: LiveQuery, text: str | None) -> Query:
    return live.query if text is None else show_answer(live.query, text)


def _said(live: LiveQuery, reply: Reply) -> Said:
    form = live.form(reply) if reply.ok and reply.text is not None else None
    usd = float(reply.cost or 0)
    if form is None:
        return Said(None, "", np.zeros(ANSWER, np.float32), 0.0, 0.0, usd)
    mass = reply.probabilities
    certainty = 0.0 if mass is None or reply.choice is None else mass[reply.choice]
    return Said(format_answer(live.query, reply), form, text_features(form, ANSWER), certainty, live.worth(form), usd)
