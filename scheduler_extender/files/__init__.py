"""Cluster files and pod files: read state from a file, and write state as a file."""
