"""The SQLite store, in one file or in memory."""
