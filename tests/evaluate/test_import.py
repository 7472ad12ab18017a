"""Importing leaderboards' per-choice log-likelihoods: their file formats, the resulting log, and what is refused."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from focalroute import ConfigError
from focalroute.cli.app import app
from focalroute.evaluate.harness import import_samples
from focalroute.evaluate.outcomes import read_log

CONTEXT = "Question: Which is a planet?\nAnswer:"


def sample(number: int = 0, *, texts: bool = False, named: bool = False, **changed: Any) -> dict[str, Any]:
    """A question with two choices, as version 0.4.3 and later (``named``) or earlier ones write it."""
    likelihoods = [[-1.0, True], [-1.0 - math.log(3), False]]
    pairs = [[CONTEXT, " Mars"], [CONTEXT, " Io"]]
    arguments = {f"gen_args_{n}": {"arg_0": pair[0], "arg_1": pair[1]} for n, pair in enumerate(pairs)}
    return {
        "doc_id": number,
        "doc": {"question": "Which is a planet?"},
        "target": "0",
        "arguments": arguments if named else pairs,
        "resps": [[one] for one in likelihoods],
        "filtered_resps": [[str(x) for x in one] for one in likelihoods] if texts else likelihoods,
        "doc_hash": f"hash{number}",
        "acc": 1.0,
        **changed,
    }


def written(path: Path, *samples: dict[str, Any]) -> Path:
    text = "".join(json.dumps(one) + "\n" for one in samples)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, "utf-8")
    return path


def test_two_models_in_two_shapes_become_one_log(tmp_path: Path) -> None:
    """Whole-choice probabilities normalised over the choices; a question that only one of them has stays."""
    one = written(tmp_path / "samples_gpqa_2024-06-16T18-12-42.jsonl", sample(0), sample(1, target=" Io", acc=0.0))
    (tmp_path / "b").mkdir()
    other = written(tmp_path / "b" / "samples_gpqa_2025-01-02T03-04-05.678.jsonl.gz", sample(0, texts=True, named=True))
    found = import_samples({"a": [one], "b": [other]}, tmp_path / "log.jsonl")
    assert (found.questions, found.answered, found.right) == (2, {"a": 2, "b": 1}, {"a": 1, "b": 1})
    first, second = read_log(tmp_path / "log.jsonl")
    assert (first.id, first.task, first.choices, first.label) == ("gpqa/0", "gpqa", ("Mars", "Io"), 0)
    assert first.messages == ({"role": "user", "content": CONTEXT},)
    for name in "ab":
        assert first.outputs[name].probabilities == pytest.approx((0.75, 0.25))
        assert first.outputs[name].answer == 0
    assert first.outputs["a"].prompt_tokens == math.ceil((len(CONTEXT) + 5) / 4) + math.ceil((len(CONTEXT) + 3) / 4)
    assert (second.label, set(second.outputs)) == (1, {"a"})


def test_half_a_character_in_a_context_is_a_question_mark(tmp_path: Path) -> None:
    """It ended in a traceback."""
    pairs = [["Half \ud83d\nAnswer:", " Mars"], ["Half \ud83d\nAnswer:", " Io"]]
    path = written(tmp_path / "samples_x_2024-06-16T18-12-42.jsonl", sample(arguments=pairs))
    import_samples({"a": [path]}, tmp_path / "log.jsonl")
    assert read_log(tmp_path / "log.jsonl")[0].messages[0]["content"] == "Half ?\nAnswer:"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"doc_id": None}, "doc_id"),
        ({"filtered_resps": ["4"]}, "filtered_resps"),
        ({"filtered_resps": [["Mars"], ["Io"]]}, "filtered_resps"),
        ({"filtered_resps": [[float("nan"), True], [-1.0, False]]}, "filtered_resps"),
        ({"filtered_resps": [[float("-inf"), True], [float("-inf"), False]]}, "filtered_resps"),
        ({"arguments": [[CONTEXT, " Mars"]]}, "arguments"),
        ({"arguments": [[CONTEXT, {}], [CONTEXT, {}]]}, "arguments"),
        ({"arguments": [[CONTEXT, " Io"], [CONTEXT, " Io"]]}, "arguments: two choices are the same"),
        ({"arguments": [["Mars", " is"], ["Io", " is"]]}, "arguments: the choices are in the contexts"),
        ({"target": "2"}, "target"),
        ({"target": "Venus"}, "target"),
        ({"target": "1"}, "target: acc is 1"),
        ({"acc": 0.73}, "target: acc is 0.73"),  # TruthfulQA with several right choices was read as if the first were
    ],
)
def test_files_of_another_shape_are_refused_as_a_whole(tmp_path: Path, changed: dict[str, Any], field: str) -> None:
    file = written(tmp_path / "samples_t.jsonl", sample(0), sample(1, **changed))
    with pytest.raises(ConfigError, match=rf"samples_t\.jsonl:2: {field}"):
        import_samples({"a": [file]}, tmp_path / "log.jsonl")
    assert list(tmp_path.iterdir()) == [file]
    found = import_samples({"a": [file]}, tmp_path / "log.jsonl", skip_bad_rows=True)
    assert (found.questions, found.bad_rows) == (1, 1)


@pytest.mark.parametrize(
    "changed", [{"doc_hash": "other"}, {"doc_hash": ["hash1"]}, {"target": "1", "acc": 0.0}, {"doc_id": 0}]
)
def test_models_that_were_asked_other_questions_are_not_joined(tmp_path: Path, changed: dict[str, Any]) -> None:
    (tmp_path / "b").mkdir()
    one = written(tmp_path / "samples_t.jsonl", sample(0), sample(1))
    other = written(tmp_path / "b" / "samples_t.jsonl", sample(0), sample(1, **{"doc_hash": "hash1", **changed}))
    with pytest.raises(ConfigError, match=r"samples_t\.jsonl:2: doc_id"):
        import_samples({"a": [one], "b": [other]}, tmp_path / "log.jsonl")


def test_files_named_by_model_are_not_taken_for_tasks(tmp_path: Path) -> None:
    """Every question was another one, with a single model's answer."""
    files = {name: [written(tmp_path / f"samples_t_{name}.jsonl", sample(0))] for name in "ab"}
    with pytest.raises(ConfigError, match="files: no two models have a question in common"):
        import_samples(files, tmp_path / "log.jsonl")


def test_a_question_that_one_model_has_twice_is_not_laid_on_another_model(tmp_path: Path) -> None:
    file = written(tmp_path / "samples_t.jsonl", sample(0), sample(0, target="1", acc=0.0))
    with pytest.raises(ConfigError, match=r"samples_t\.jsonl:2: doc_id: 't/0' appears twice for a"):
        import_samples({"a": [file]}, tmp_path / "log.jsonl")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the file beside it: on a file system that is read-only removing it fails, too."""

    def fails(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    file = written(tmp_path / "samples_t.jsonl", sample(0))
    monkeypatch.setattr(Path, "write_bytes", fails)
    monkeypatch.setattr(Path, "unlink", fails)
    with pytest.raises(ConfigError, match=r"/log\.jsonl: cannot be written: Read-only file system"):
        import_samples({"a": [file]}, tmp_path / "log.jsonl")


def test_the_command_says_what_it_imported(tmp_path: Path) -> None:
    file, log = written(tmp_path / "samples_t.jsonl", sample(0)), tmp_path / "log.jsonl"
    arguments = ["import", f"a={file}", "--out", str(log), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    imported = {"questions": 1, "answered": {"a": 1}, "right": {"a": 1}, "bad_rows": 0}
    assert json.loads(done.stdout) == {"log": str(log), **imported}
    assert CliRunner().invoke(app, arguments).exit_code != 0  # it is there already
    assert CliRunner().invoke(app, ["import", "no-file", "--out", str(tmp_path / "other.jsonl")]).exit_code != 0
