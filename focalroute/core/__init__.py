"""The records, errors and settings that the other packages share; settings are validated on construction."""
