"""Read the state from the API server, and write binds and Events to it."""
