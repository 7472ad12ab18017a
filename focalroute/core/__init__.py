"""The records, errors and settings that the other packages share; settings are validated on construction."""

__version__ = "0.1.0"
