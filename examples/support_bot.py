"""A support bot on a budget: caps for each customer and each hour, and a target for the mean cost of a question."""

from decimal import Decimal

from focalroute import Budget, BudgetExceeded, Ensemble, PoolError
from focalroute.sim import SimulatedPool, stream

CUSTOMERS = ("acme", "globex", "initech")
budget = Budget(
    max_usd_per_ask="0.001",
    usd_per_period={"hour": "0.05"},
    usd_per_tag={customer: {"day": "0.0004"} for customer in CUSTOMERS},
    usd_per_query="0.00002",  # what a question may cost on average; to hold it, the bot asks fewer or cheaper members
)


def reply(bot: Ensemble, customer: str, question: str, choices: tuple[str, ...]) -> tuple[str, str | None]:
    """Return the reply, and the answer's id for feedback; None where a person has to take over."""
    try:
        answer = bot.ask(question, choices=choices, tags=[customer], deadline_s=5)
    except BudgetExceeded as error:
        return f"{customer} has used up its ${error.limit}; again at {error.resets_at:%H:%M} UTC", None
    except PoolError:
        return "no model can be reached; a person will answer", None
    return (answer.text, answer.id) if answer.confidence > 0.4 else ("not sure; a person will answer", answer.id)


with SimulatedPool() as pool, Ensemble(pool.endpoints, budget=budget, seed=0) as bot:
    refused, right, answered = [], 0, 0
    for number, asked in enumerate(stream(80, seed=4)):
        # acme asks as much as both others together
        customer = CUSTOMERS[max(number % 4 - 1, 0)]
        said, answer_id = reply(bot, customer, asked.text, asked.choices)
        if answer_id is None:
            refused.append(said)
            continue
        answered += 1
        right += said == asked.answer
        bot.feedback(answer_id, label=asked.answer)  # a customer's click, the next day
    stats = bot.stats()
    mean = (stats.cost or Decimal(0)) / max(answered, 1)
    print(f"{answered} answered, {right} of them right without a person, {len(refused)} refused: {refused[-1]}")
    print(f"${stats.cost:.6f} in all, ${mean:.6f} a question")
    for name, endpoint in stats.endpoints.items():
        print(f"  {name}: {endpoint.calls} calls, ${endpoint.cost:.6f}")
