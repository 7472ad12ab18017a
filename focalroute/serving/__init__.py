"""The story of one ask, from the query to the recorded answer, and of the feedback on it."""
