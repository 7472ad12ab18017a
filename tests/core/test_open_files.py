from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from focalroute.core.files import most_files, raise_limit


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (900, before[1]))
    yield 900, before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_the_system_lets_it(limits: tuple[int, int]) -> None:
    soft, hard = limits
    raise_limit(soft - 100)
    assert most_files() == soft
    raise_limit(soft + 100)
    assert most_files() == soft + 100
    if hard != resource.RLIM_INFINITY:
        raise_limit(hard + 100)
        assert most_files() == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == hard
