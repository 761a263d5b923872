"""The API server as the source of state, and what is written to it."""
