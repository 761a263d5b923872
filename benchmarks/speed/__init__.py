"""How fast: verbs over HTTP, whole clusters, DRA, what the watches bring, and the worst case."""
