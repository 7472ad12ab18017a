"""The Redis store, which a fleet of workers shares."""
