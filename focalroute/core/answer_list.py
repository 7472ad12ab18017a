"""`Answers`: what ``ask_many`` gives, as rows for a table or lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from focalroute.core.receipts import Answer

_COLUMNS = (
    "id", "text", "value", "confidence", "cost_usd", "prompt_tokens", "completion_tokens", "latency_s", "rounds",
    "asked", "degraded",
)  # fmt: skip


class Answers(list[Answer | BaseException]):
    """Answers in the order of the queries; in the place of one that failed is its exception."""

    def rows(self) -> list[dict[str, Any]]:
        """A flat row for each query, failed ones included: ``pandas.DataFrame(answers.rows())``, or polars' the same.

        Costs are floats here, USD; what is unknown, or has failed, is None.
        """
        return [_row(index, one) for index, one in enumerate(self)]

    def to_jsonl(self, path: str | Path) -> None:
        """Write a line of JSON for each query: `Answer.to_dict`, or the error, with the query's ``index``."""
        with Path(path).open("w", encoding="utf-8") as file:
            for index, one in enumerate(self):
                told = one.to_dict() if isinstance(one, Answer) else {"error": error_text(one)}
                file.write(json.dumps({"index": index, **told}) + "\n")


def _row(index: int, answer: Answer | BaseException) -> dict[str, Any]:
    if not isinstance(answer, Answer):
        return {"index": index, **dict.fromkeys(_COLUMNS), "error": error_text(answer)}
    plain, usage = answer.to_dict(), answer.usage
    value = plain["value"]
    values = (
        answer.id,
        answer.text,
        json.dumps(value) if isinstance(value, dict | list) else value,
        answer.confidence,
        None if answer.cost is None else float(answer.cost),
        None if usage is None else usage.prompt_tokens,
        None if usage is None else usage.completion_tokens,
        answer.latency_s,
        answer.receipt.rounds,
        ", ".join(call.endpoint for call in answer.receipt.calls),
        "; ".join(answer.degraded),
    )
    return {"index": index, **dict(zip(_COLUMNS, values, strict=True)), "error": None}


def error_text(error: BaseException) -> str:
    """Return an error as a row or a line shows it."""
    return f"{type(error).__name__}: {error}"
