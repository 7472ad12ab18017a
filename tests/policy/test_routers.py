"""The published routers: each on a case reckoned by hand, and on made-up queries where it must win or lose."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from focalroute.core.records import F32, F64, Member, Outcome
from focalroute.observe.features import text_features
from focalroute.policy.routers import (
    ROUTERS,
    AvengersPro,
    CarrotKnn,
    CarrotLinear,
    IrtRouter,
    LinUcb,
    ParetoBandit,
    TextRouter,
)

POOL = ("cheap", "middle", "dear")
USD = np.array([1.0, 2.0, 7.0])
TOPICS = ("how long is the river", "how high is the mountain", "when was the treaty signed")


def text(n: int) -> F32:
    return text_features(f"{TOPICS[n % 3]} number {n}")


def recorded(n: int) -> tuple[F32, F64, F64]:
    """Each endpoint knows one topic for certain, and little of the others."""
    rng = np.random.default_rng(0)
    values = (rng.random((n, 3)) < 0.2).astype(float)
    values[np.arange(n), np.arange(n) % 3] = 1
    return np.stack([text(i) for i in range(n)]), values, np.tile(USD, (n, 1))


def fitted(name: str, n: int = 300) -> TextRouter:
    router = ROUTERS[name](POOL, 0)
    router.fit(*recorded(n))
    return router


def share_right(router: TextRouter, weight: float, start: int = 300) -> float:
    return float(np.mean([router.order(text(n), weight)[0] == n % 3 for n in range(start, start + 60)]))


@pytest.mark.parametrize("name", ROUTERS)
def test_each_topic_goes_to_its_expert_unless_money_weighs_more(name: str) -> None:
    router = fitted(name)
    assert share_right(router, 0.003) >= 0.9
    assert {router.order(text(n), 100.0)[0] for n in range(300, 360)} == {0}


@pytest.mark.parametrize("name", ROUTERS)
def test_texts_that_say_nothing_lead_to_the_best_endpoint_on_average(name: str) -> None:
    rng = np.random.default_rng(1)
    values = (rng.random((600, 3)) < [0.2, 0.9, 0.3]).astype(float)
    texts = rng.standard_normal((600, 16)).astype(np.float32)
    router = ROUTERS[name](POOL, 0)
    router.fit(texts, values, np.tile(USD, (600, 1)))
    picked = [router.order(rng.standard_normal(16).astype(np.float32), 0.003)[0] for _ in range(50)]
    assert np.mean(np.array(picked) == 1) >= 0.9


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ("carrot-knn", "lin-ucb") else [pytest.mark.slow]) for name in ROUTERS],
)
def test_it_begins_with_nothing_and_learns_from_those_it_asks(name: str) -> None:
    """First each endpoint in turns; then, after some hundred queries, by their topics."""
    router = ROUTERS[name](POOL, 0)
    asked = []
    for n in range(900):
        asked.append(router.order(text(n), 0.003)[0])
        router.add(text(n), {asked[-1]: float(asked[-1] == n % 3)}, {asked[-1]: float(USD[asked[-1]])})
    assert asked[:24] == [0, 1, 2] * 8
    # without exploration it may never find out what the others know: better than any one endpoint all the same
    assert share_right(router, 0.003, 900) > 0.6


@pytest.mark.parametrize("name", ROUTERS)
def test_others_go_by_their_value_while_one_is_never_known(name: str) -> None:
    """As where a log lacks an endpoint of the pool, or one is down: it is first, and what replaces it is as ever."""
    texts, values, usd = recorded(300)
    values[:, 0] = usd[:, 0] = np.nan
    router = ROUTERS[name](POOL, 0)
    router.fit(texts, values, usd)
    orders = [router.order(text(n), 0.003) for n in range(300, 360)]
    assert {order[0] for order in orders} == {0}
    right = [order[1] == n % 3 for n, order in enumerate(orders, 300) if n % 3]
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize("name", ROUTERS)
def test_equal_unknown_and_empty_inputs_are_no_trouble(name: str) -> None:
    """One text for all, half of the values unknown, nothing known of what calls cost; then a query without text."""
    texts, values, _ = recorded(100)
    texts[:] = texts[0]
    values[::2, 1] = np.nan
    router = ROUTERS[name](POOL, 0)
    router.fit(texts, values, np.full((100, 3), np.nan))
    for query in (texts[0], np.zeros_like(texts[0]), np.zeros(0, np.float32)):
        assert sorted(router.order(query, 0.1)) == [0, 1, 2]
    router.add(np.ones(8, np.float32), {0: 1.0}, {})  # another embedder
    assert sorted(router.order(np.ones(8, np.float32), 0.1)) == [0, 1, 2]


@pytest.mark.parametrize("name", ROUTERS)
def test_a_query_whose_embedder_failed_counts_and_forgets_nothing(name: str) -> None:
    router = fitted(name)
    remembered = router._size
    router.add(np.zeros(0, np.float32), {0: 1.0}, {0: 1.0})
    assert router._size == remembered + 1
    assert share_right(router, 0.003) >= 0.9


def test_it_remembers_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("focalroute.policy.routers._MOST", 128)
    router = CarrotKnn(POOL, 0)
    router.fit(*recorded(100))
    for n in range(100, 400):  # the middle one takes the topics over
        router.add(text(n), {0: 0.0, 1: 1.0, 2: 0.0}, {})
    assert len(router._texts) == 128
    assert {router.order(text(n), 0.003)[0] for n in range(400, 430)} == {1}


def test_outcomes_find_the_text_of_their_query() -> None:
    """As in service: the text is read at the ask, the outcome comes later; of a query never read nothing is learned."""
    router = CarrotKnn(("a", "b"), 0)

    def told(query: str, right: Mapping[str, float]) -> None:
        members = {name: Member(1, 0, 10, 0.1, None) for name in right}
        router.learn(Outcome(query, members, right), 2)

    for n in range(80):
        router.for_query(str(n), text_features(f"{TOPICS[n % 2]} {n}"), 0.1)
        told(str(n), {"a": float(n % 2 == 0), "b": float(n % 2 == 1)})
    before = router._added
    told("never asked", {"a": 1.0})
    told("7", {"a": 1.0})  # said before
    assert router._added == before == 80
    one = router.for_query("x", text_features(f"{TOPICS[1]} 81"), 0.003)
    assert (one.order(one._text, 0.003), router.order(text_features(f"{TOPICS[0]} 82"), 0.003)) == ([1, 0], [0, 1])


# -- by hand ----------------------------------------------------------------------------------------------------------


def axes(counts: Mapping[int, int], width: int = 4) -> F32:
    """So many texts along each axis."""
    return np.concatenate([np.tile(np.eye(width, dtype=np.float32)[axis], (n, 1)) for axis, n in counts.items()])


def test_neighbours_by_hand() -> None:
    """80 texts of two kinds: of the first kind's 10 nearest the middle one has all right, and 1/2 of all 80."""
    texts = axes({0: 40, 1: 40})[np.argsort(np.arange(80) % 40, kind="stable")]
    values = np.where(texts[:, :1] > 0, [[0.0, 1.0, 0.0]], [[1.0, 0.0, 1.0]])
    router = CarrotKnn(POOL, 0)
    router.fit(texts, values, np.tile(USD, (80, 1)))
    assert router._k == 10
    average = (40 + 0.5) / 81
    assert router._worth(router._direction(texts[0])) == pytest.approx(
        [average / 11, (10 + average) / 11, average / 11]
    )
    assert router._shares(router._direction(texts[0])) == pytest.approx(USD / 10)


def test_a_ridge_by_hand() -> None:
    """One axis, -1 and 1, n/2 each: slope sum(x (v - mean)) / (n + penalty), around the mean."""
    x = np.tile([[1.0], [-1.0]], (50, 1)).astype(np.float32)
    values = np.where(x > 0, [[1.0, 0.0, 0.5]], [[0.0, 0.0, 0.5]])
    router = CarrotLinear(POOL, 0)
    router.fit(x, values, np.tile(USD, (100, 1)))
    slope = 50 / (100 + 1)
    assert router._worth(router._direction(x[0])) == pytest.approx([0.5 + slope, 0, 0.5])


def test_clusters_by_hand() -> None:
    """Two clusters: performance scaled to [0, 1] in each and summed, cost likewise."""
    texts = axes({0: 40, 1: 40}, 2)[np.argsort(np.arange(80) % 40, kind="stable")]
    values = np.where(texts[:, :1] > 0, [[0.2, 1.0, 0.6]], [[0.5, 0.5, 1.0]])
    router = AvengersPro(POOL, 3)
    router._near = 1
    router.fit(texts, values, np.tile(USD, (80, 1)))
    first, second = (router._direction(texts[i]) for i in (0, 1))
    assert router._worth(first) == pytest.approx([0, 1, 0.5], abs=0.02)
    assert router._worth(second) == pytest.approx([0, 0, 1], abs=0.02)
    assert router._shares(first) == pytest.approx([0, 1 / 6, 1], abs=0.02)


def test_abilities_by_hand() -> None:
    """Where texts say nothing an endpoint's ability is the logit of how often it is right."""
    values = np.tile([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], (200, 1))
    router = IrtRouter(POOL, 0)
    router.fit(np.random.default_rng(0).standard_normal((800, 8)).astype(np.float32), values, np.tile(USD, (800, 1)))
    assert router._worth(np.zeros(8, np.float32)) == pytest.approx([0.75, 0.5, 0.02], abs=0.05)


def test_a_bandit_by_hand() -> None:
    """One text: A = n + 1, b = the sum, after forgetting the rest; the deviation grows while it is not asked."""
    router = LinUcb(("a", "b"), 0)
    texts = np.random.default_rng(0).standard_normal((100, 1)).astype(np.float32)
    router.fit(texts, np.tile([[1.0, 0.0]], (100, 1)), np.ones((100, 2)))
    router._theta[:, 0] = 0
    z = router._context(router._direction(texts[0]))
    a, b = router._a[0].copy(), router._b[0].copy()
    before = router._worth(router._direction(texts[0]))[1]
    router.add(texts[0], {0: 0.5}, {})
    assert router._a[0] == pytest.approx(a * 0.997 + np.outer(z, z))
    assert router._b[0] == pytest.approx(b * 0.997 + 0.5 * z)
    assert router._theta[0] == pytest.approx(np.linalg.solve(router._a[0], router._b[0]))
    grown = router._worth(router._direction(texts[0]))[1]
    assert grown == pytest.approx(before * 0.997**-0.5)


@pytest.mark.slow
def test_a_bandit_forgets_what_changed() -> None:
    """From the 300th query on the middle one has everything right and the others nothing."""
    for name in ("lin-ucb", "thompson", "pareto-bandit"):
        router = fitted(name)
        for n in range(300, 2500):
            first = router.order(text(n), 0.003)[0]
            router.add(text(n), {first: float(first == 1)}, {})
        assert np.mean([router.order(text(n), 0.003)[0] == 1 for n in range(2500, 2560)]) >= 0.9


def test_paretobandits_cost_is_a_logarithm_between_the_least_and_the_most() -> None:
    router = fitted("pareto-bandit")
    assert isinstance(router, ParetoBandit)
    assert router._shares(router._direction(text(0))) == pytest.approx([0, np.log(2) / np.log(7), 1])
