"""Calls the endpoints of a pool.

A call passes through these modules:

- ``pool`` asks the picked endpoints, in a ``round`` that races late ones and cancels those that are not needed;
- ``calls`` retries a member's call;
- ``member`` makes it, within its ``rate_limits``, as a ``paid_call``, unless the ``breaker`` is open;
- ``elicit`` turns the query into a request, by the endpoint's ``capabilities``, and reads the answer from the reply;
- ``client`` sends the request over a ``transport`` (``http``, or the user's ``AsyncOpenAI``) and learns the service's
  ``quirks``;
- ``wire`` encodes requests, and decodes replies, streams and errors.
"""
