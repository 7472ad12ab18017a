"""Defines the records that travel through focalroute, its errors, and its settings, validated where they come in."""
