"""The leader election of two replicas, and the fence that prevents a second bind (ADR 12)."""
