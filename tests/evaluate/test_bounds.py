"""A small log cannot take much time or memory: each bound is an error that names file and line."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from focalroute.core.config import Endpoint
from focalroute.core.errors import ConfigError
from focalroute.core.pool import PoolFile
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import join
from tests.paired import assert_cpu_at_most


def refused(path: Path, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        read_log(path)


def test_a_key_given_twice_is_found_in_linear_time(tmp_path: Path) -> None:
    """Of 50,000 keys the last comes again."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"id":"a",' + ",".join(f'"k{i}":1' for i in range(50_000)) + ',"k49999":2,"outputs":{}}\n')
    assert_cpu_at_most(20, lambda: refused(path, r"log.jsonl:1: k49999: is given twice"))


def test_a_packed_line_is_read_no_further_than_a_line_may_be(tmp_path: Path) -> None:
    """A file of 400 kB unpacks to 100 MB without a line's end."""
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id":"a","outputs":{}}\n{"id":"b","x":"' + b"a" * 100_000_000 + b'"}\n', 1))
    tracemalloc.start()
    refused(path, r"log.jsonl.gz:2: is longer than 16777216 bytes")
    assert tracemalloc.get_traced_memory()[1] < 90e6
    tracemalloc.stop()


@pytest.mark.slow
def test_a_log_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    """Even of short lines."""
    path = tmp_path / "log.jsonl.gz"
    line = b" " * 1_000_000 + b'{"id":"%d","outputs":{}}\n'
    path.write_bytes(gzip.compress(b"".join(line % i for i in range(70))))
    refused(path, r"log.jsonl.gz:68: the file unpacks to over 100 times")


def test_a_line_of_very_many_parts_is_refused(tmp_path: Path) -> None:
    """Each empty list takes many times its text."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"id":"a","x":[' + "[]," * 200_000 + "[]]}\n")
    refused(path, r"log.jsonl:1: has more than 200000 objects and lists")


def test_choices_are_as_many_as_serving_takes(tmp_path: Path) -> None:
    """One query's choices widen the arrays of all queries."""
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"id": "a", "choices": ["x"] * 1001, "outputs": {}}) + "\n")
    refused(path, r"log.jsonl:1: choices: give at most 1000$")


@pytest.mark.slow
def test_a_wide_query_in_a_long_log_is_refused_before_its_arrays_are_made(tmp_path: Path) -> None:
    """Of 70,000 queries the second has 1,000 choices: 3 MB of text, 560 MB for each array of masses."""
    path = tmp_path / "log.jsonl"
    lines = [f'{{"id":"{i}","outputs":{{}}}}' for i in range(70_000)]
    lines[1] = json.dumps({"id": "1", "choices": ["x"] * 1000, "outputs": {}})
    path.write_text("\n".join(lines))
    queries = read_log(path)
    pool = PoolFile((Endpoint("a", model="m"), Endpoint("b", model="m")), {}, None)
    with pytest.raises(ConfigError, match=r"log.jsonl:2: choices: 1000 are too many for a log of 70000 queries"):
        join(queries, pool, path)
