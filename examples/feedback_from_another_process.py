"""Serve in one process, give feedback by answer id from another: they share nothing but the store's file."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from focalroute import Ensemble
from focalroute.sim import SimulatedPool

REVIEWER = """
import sys
from focalroute import Endpoint, Ensemble
store, answer_id, label = sys.argv[1:]
nobody = Endpoint("nobody", base_url="http://localhost:9/v1", model="none")
with Ensemble([nobody], store=store) as reviewer:
    reviewer.feedback(answer_id, label=label)
"""

with tempfile.TemporaryDirectory() as folder, SimulatedPool() as pool:
    store = str(Path(folder) / "focalroute.db")
    with Ensemble(pool.endpoints, store=store, seed=0) as ensemble:
        answer = ensemble.ask("What is 17 + 25?", choices=["32", "42", "44", "52"])
        subprocess.run([sys.executable, "-c", REVIEWER, store, answer.id, "42"], check=True)
        while not any(endpoint.seen for endpoint in ensemble.stats().endpoints.values()):
            time.sleep(0.05)  # the serving process gets it within a quarter of a second
        for name, endpoint in ensemble.stats().endpoints.items():
            print(f"{name}: {endpoint.seen} outcomes seen, accuracy {endpoint.accuracy:.2f}")
