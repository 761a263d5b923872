"""The documents do what they say: every command and manifest in them is run by a test."""
