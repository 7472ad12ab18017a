"""What the memory of texts alone is worth with other features of a text.

    python -m tests.benchmarks.embedders LOG --pool POOL

The log is cut per task. On its test part each query goes to the one endpoint that is expected to be best by the last
4,096 queries of the training part, as `focalroute.observe.memory` weighs them: nobody decides, and cost does not
matter. Shown is how right that is, and minus the hashed features in points, with the 95 % interval of a bootstrap over
queries. TF-IDF of character n-grams, reduced by SVD (two seeds), is fitted on the training texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from focalroute.core.pool import load_pool
from focalroute.core.records import F64, I64
from focalroute.evaluate.outcomes import read_log
from focalroute.evaluate.table import LogTable, join, split
from focalroute.observe.features import clipped, text_features, unit_vector
from focalroute.observe.memory import SHRINK, cosines, kernel, mean_text, shrunk, spread

F32 = NDArray[np.float32]

_DIMENSIONS = 64
_RESAMPLES = 4000


def representations(texts: list[str], train: I64) -> Iterator[tuple[str, F32]]:
    """Name and features (T, D)."""
    yield "hashed", np.stack([text_features(text) for text in texts])
    weigher = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True, min_df=3, max_features=60_000)
    weigher.fit([texts[row] for row in train.tolist()])
    weighed = weigher.transform([clipped(text) for text in texts])
    for seed in (0, 1):
        reduced = TruncatedSVD(_DIMENSIONS, random_state=seed).fit(weighed[train]).transform(weighed)
        yield f"TF-IDF, SVD, seed {seed}", _units(reduced)


def _units(rows: NDArray[np.floating]) -> F32:
    return np.stack([unit_vector(row) for row in rows])


def chosen(table: LogTable, features: F32, train: I64, test: I64) -> F64:
    """What the answers of the endpoints chosen are worth, one for each test row."""
    past = train[spread(len(train))]
    value = np.where(table.there, np.nan_to_num(table.value), 0).astype(np.float32)
    mean = mean_text(features[past].sum(axis=0, dtype=np.float64), len(past))
    weights = kernel(cosines(features[test], features[past], mean[None]))
    total = weights.sum(axis=1, keepdims=True)
    strength = SHRINK * float(np.median(total))
    expected = shrunk(weights @ value[past], total, value[past].mean(axis=0), strength)
    best: F64 = value[test, expected.argmax(axis=1)].astype(np.float64)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--pool", type=Path, required=True)
    options = parser.parse_args()
    table = join(read_log(options.log), load_pool(options.pool), options.log)
    parts = split(table, per_task=True, fraction=0.8)
    draws = np.random.default_rng(0).integers(len(parts.test), size=(_RESAMPLES, len(parts.test)))
    reference: F64 | None = None
    print(f"{len(parts.test)} queries after {len(parts.train)}")
    for name, features in representations(list(table.texts), parts.train):
        worth = chosen(table, features, parts.train, parts.test)
        reference = worth if reference is None else reference
        minus = 100 * (worth - reference)
        low, high = np.quantile(minus[draws].mean(axis=1), (0.025, 0.975))
        print(f"{name:24} {worth.mean():.4f}  {minus.mean():+.2f} ({low:+.2f} to {high:+.2f})", flush=True)


if __name__ == "__main__":
    main()
