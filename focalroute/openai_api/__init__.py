"""OpenAI's chat completions API: requests read as arguments of ``ask``, answers written as replies, errors as statuses.

`focalroute.server` speaks it over HTTP, the clients of `Ensemble.as_openai` within this process.
"""

_PREFIX = "chatcmpl-"


def completion_id(answer_id: str) -> str:
    """Return the id of the reply with this answer."""
    return f"{_PREFIX}{answer_id}"


def answer_id_of(name: str) -> str:
    """Return the id of an answer that is named by it, or by that of its reply."""
    return name.removeprefix(_PREFIX)
