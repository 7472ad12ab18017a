"""A fleet of workers on one store: they follow one policy, which an elected learner makes from all feedback."""
