"""OpenAI's chat completions API: reads requests as arguments of ``ask``, and writes answers and errors as responses.

`focalroute.server` uses it over HTTP, the clients of `Ensemble.as_openai` within this process.
"""

_PREFIX = "chatcmpl-"


def completion_id(answer_id: str) -> str:
    """Return the id of the chat completion with this answer."""
    return f"{_PREFIX}{answer_id}"


def answer_id_of(given_id: str) -> str:
    """Return an answer's id, given that id or the id of its chat completion."""
    return given_id.removeprefix(_PREFIX)
