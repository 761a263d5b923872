"""Measurements of speed: verbs over HTTP, whole clusters, DRA, watches, and the worst case."""
