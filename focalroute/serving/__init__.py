"""Serves asks, from the query to the recorded answer, and the feedback on them."""
