"""Draws the command line as it looks in a terminal, from what it prints here: ``python docs/draw_terminal.py``.

The models are simulated ones, served while the commands run.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from focalroute.sim import SimulatedPool
from focalroute.sim.process import pool_toml

__all__ = ["draw", "printed"]

DOCS = Path(__file__).resolve().parent
COMMANDS = (
    'focalroute ask "What is 17 + 25?" --choices 32,42,44,52 --store asks.db -v',
    "focalroute batch questions.jsonl answers.jsonl --store asks.db --max-usd 0.01",
    "focalroute ledger --store asks.db",
)
_QUESTIONS = '"Is Lisbon west of Madrid?"\n{"query": "What is 6 * 7?", "answer": "number"}\n'
_LEFT, _TOP, _ACROSS, _DOWN = 16, 44, 7.85, 18


def printed() -> list[str]:
    """Every command, with what it prints below it."""
    shown: list[str] = []
    with SimulatedPool() as pool, tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pool.toml").write_text(pool_toml(pool.endpoints))
        (Path(folder) / "questions.jsonl").write_text(_QUESTIONS)
        for command in COMMANDS:
            ran = subprocess.run(
                [sys.executable, "-m", *shlex.split(command)], check=True, cwd=folder, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            shown += [f"$ {command}", *ran.stdout.rstrip().splitlines(), ""]
    return shown[:-1]


def draw(path: Path) -> None:
    """Write the picture as SVG."""
    lines = printed()
    width, height = 2 * _LEFT + max(map(len, lines)) * _ACROSS, _TOP + len(lines) * _DOWN + 4
    rows = [
        f'<text class="{"typed" if line.startswith("$ ") else "said"}" x="{_LEFT}" y="{_TOP + 10 + at * _DOWN}">'
        f"{escape(line)}</text>"
        for at, line in enumerate(lines)
    ]
    dots = [f'<circle cx="{20 + 18 * i}" cy="18" r="5.5" fill="#5b6472"/>' for i in range(3)]
    style = (
        "text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d8dee6;white-space:pre}"
        ".typed{fill:#8fd18b;font-weight:bold}"
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"><style>{style}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#1e232b"/>{"".join(dots)}{"".join(rows)}</svg>\n',
        "utf-8",
    )


if __name__ == "__main__":
    draw(DOCS / "figures" / "command-line.svg")
