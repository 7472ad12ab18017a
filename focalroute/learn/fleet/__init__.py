"""A fleet of workers on one store follows one policy, which an elected learner updates from all feedback."""
