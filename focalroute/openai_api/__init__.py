"""OpenAI's chat completions API: requests read as arguments of ``ask``, answers written as replies, errors as statuses.

`focalroute.server` speaks it over HTTP, the clients of `Ensemble.as_openai` within this process.
"""
