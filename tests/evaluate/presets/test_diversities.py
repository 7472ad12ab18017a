"""The vectorised diversity measures of many pools equal the definitions, pool by pool."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from focalroute.evaluate.presets.rl_focal import METRICS, MIN_ROWS, diversities, pair_statistics
from focalroute.observe.diversity import focal_diversity
from tests.evaluate.presets import definitions

DEFINED = {
    "focal": focal_diversity,
    "fleiss_kappa": definitions.fleiss_kappa,
    "disagreement": definitions.disagreement,
    "binary_entropy": definitions.binary_entropy,
    "q_statistic": definitions.q_statistic,
    "correlation": definitions.correlation,
    "cohen_kappa": definitions.cohen_kappa,
}
N = 5
POOLS = [pool for size in range(1, N + 1) for pool in combinations(range(N), size)]


def found(
    fails: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    masks = np.array([[i in pool for i in range(N)] for pool in POOLS], np.float32)
    return diversities(fails, masks, pair_statistics(fails.T @ fails, len(fails)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["mixed", "never", "always", "one never, one always"])
def test_all_pools_against_the_definitions(seed: int, kind: str) -> None:
    fails = (np.random.default_rng(seed).random((60, N)) < np.linspace(0.2, 0.7, N)).astype(np.float32)
    if kind == "never":
        fails[:] = 0
    elif kind == "always":
        fails[:] = 1
    elif kind != "mixed":
        fails[:, 0], fails[:, 1] = 0, 1
    for pool, values in zip(POOLS, found(fails), strict=True):
        expected = [DEFINED[name](fails[:, pool]) for name in METRICS]
        assert values.tolist() == pytest.approx(expected, abs=2e-6), pool


def test_with_too_few_rows_all_are_0() -> None:
    assert not found(np.eye(MIN_ROWS - 1, N, dtype=np.float32)).any()
    assert found(np.eye(MIN_ROWS, N, dtype=np.float32)).any()
