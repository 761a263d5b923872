"""How fast: verbs over HTTP, single evaluations, whole clusters, the agent, and the worst case."""
