"""From nothing to a report: 60 questions to a simulated pool, their labels, one page about the results."""

from pathlib import Path

from focalroute import Ensemble
from focalroute.evaluate.report_page.report_command import report_command
from focalroute.sim import SimulatedPool, stream

STORE, PAGE = "asked.db", Path("report.html")

with SimulatedPool() as pool, Ensemble(pool.endpoints, store=STORE, seed=0) as ensemble:
    for question in stream(60, seed=3):
        answer = ensemble.ask(question.text, choices=question.choices, task=question.topic)
        ensemble.feedback(answer, label=question.answer)

# the same from a shell: focalroute report --store asked.db --out report.html (extra "report")
report_command(None, STORE, out=PAGE)
