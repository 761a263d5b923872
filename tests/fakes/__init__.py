"""Fakes that behave: real servers over an in-memory store, not mocks that record calls."""
