"""Calls the pool: wire format, elicitation, retries, rate limits, circuit breakers."""
