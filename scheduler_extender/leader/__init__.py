"""Two replicas, of which one leads: who that is, and why a bind is never written twice (ADR 12)."""
