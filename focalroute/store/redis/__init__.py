"""The store in Redis, shared by a fleet of workers."""
