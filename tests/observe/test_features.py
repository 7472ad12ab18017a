"""Text features: deterministic, unit norm, bounded work."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focalroute.observe.features import MAX_CHARACTERS, TEXT_FEATURES, text_features

SENTENCE = "Which planet has the most moons?"


@given(st.text(alphabet=st.characters(), max_size=300), st.integers(1, 64))
def test_features_have_the_width_and_norm_one(text: str, width: int) -> None:
    features = text_features(text, width)
    assert features.shape == (width,)
    assert features.dtype == np.float32
    norm = float(np.linalg.norm(features))
    assert norm == pytest.approx(1, abs=1e-5) or not features.any()


def test_an_empty_text_has_no_features() -> None:
    assert text_features("").tolist() == [0.0] * TEXT_FEATURES


def test_features_are_the_same_numbers_everywhere() -> None:
    """Golden values: a change would silently invalidate every bundle ever trained."""
    assert np.flatnonzero(text_features("a", 8)).tolist() == [5, 6, 7]
    sums = np.array([3, 2, 2, -3, -1, 1, -3, 3])
    logarithms = np.copysign(np.log1p(np.abs(sums)), sums)
    assert text_features(SENTENCE, 8) == pytest.approx(logarithms / np.linalg.norm(logarithms), abs=1e-6)


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = (
        f"from focalroute.observe.features import text_features; print(text_features({SENTENCE!r}, 8).tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert done.stdout.strip() == text_features(SENTENCE, 8).tobytes().hex()


def test_repeated_features_count_by_their_logarithm() -> None:
    """In one bucket a sum s counts as log(1 + |s|): the ratio of two such buckets shows it."""
    sums = np.log1p([10, 2])
    features = text_features("a" * 12, 4096)  # "aaa" 10 times and "aaaaa" 8; four n-grams that hold a space, and four
    found = np.sort(np.abs(features[features != 0]))[::-1]
    assert found[0] / found[-1] == pytest.approx(sums[0] / np.log1p(1), abs=1e-5)
    assert found[1] / found[-1] == pytest.approx(np.log1p(8) / np.log1p(1), abs=1e-5)


def test_ascii_case_does_not_matter_and_content_does() -> None:
    assert (text_features(SENTENCE, 32) == text_features(SENTENCE.upper(), 32)).all()
    near = text_features(SENTENCE, 256) @ text_features("Which planet has the fewest moons?", 256)
    far = text_features(SENTENCE, 256) @ text_features("Bitte sortiere diese Liste.", 256)
    assert near > far + 0.3


def test_only_the_ends_of_a_long_text_are_read() -> None:
    head, tail = "h" * MAX_CHARACTERS, "t" * MAX_CHARACTERS
    assert (text_features(head + "middle" * 1000 + tail, 32) == text_features(head + tail, 32)).all()
    assert (text_features(head + "x" + tail[1:], 32) != text_features(head + tail, 32)).any()


def test_a_lone_surrogate_is_not_an_error() -> None:
    assert text_features("\ud800", 32).any()
