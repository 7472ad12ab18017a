"""Ask endpoints one after another, each shown the answer before its own: two rules, and DER learned from scratch."""

import tempfile
from collections import Counter

from focalroute import Ensemble
from focalroute.evaluate.live import environment_of, train_der
from focalroute.evaluate.live_environment import of_questions, over_http
from focalroute.evaluate.presets.der import DerSettings
from focalroute.sim import SimulatedPool, relay_models, stream

train, test = (list(stream(n, seed=n, topics=["multi-hop"])) for n in (120, 30))

with tempfile.TemporaryDirectory() as folder, SimulatedPool(relay_models()) as pool:
    queries = of_questions(train, answer="number")
    with over_http(pool.endpoints, queries) as ask:
        environment = environment_of(pool.endpoints, queries, ask)
        train_der(folder, environment, pool.endpoints, DerSettings(alpha=0.2, passes=20), seed=0)
    for policy in ("sequential-round-robin", "self-correction", folder):
        with Ensemble(pool.endpoints, policy=policy, max_rounds=3) as ensemble:
            answers = [ensemble.ask(question.text, answer="number") for question in test]
        right = sum(str(answer.value) == question.answer for answer, question in zip(answers, test, strict=True))
        cost = sum(answer.cost or 0 for answer in answers)
        routes = Counter(" > ".join(call.endpoint for call in answer.receipt.calls) for answer in answers)
        print(f"{'DER' if policy == folder else policy}: {right} of {len(test)} right for ${cost:.6f}; mostly by")
        for route, times in routes.most_common(3):
            print(f"  {route}: {times}")
