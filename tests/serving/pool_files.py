"""Writes pool files with one more table."""

from __future__ import annotations

from pathlib import Path

ENDPOINT = '[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "http://localhost:1/v1"\n'


def pool_of(folder: Path, table: str) -> Path:
    """Write a pool of one endpoint and this table; a key without a table stands before the endpoint."""
    path = folder / "pool.toml"
    path.write_text(f"{ENDPOINT}\n{table}\n" if table.startswith("[") else f"{table}\n{ENDPOINT}")
    return path
