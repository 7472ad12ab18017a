"""The records that travel through focalroute, its errors, and its settings, checked once at the door."""
