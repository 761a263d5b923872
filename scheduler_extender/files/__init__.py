"""Cluster files and pod files: state from a file, and state as a file."""
