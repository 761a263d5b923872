"""The three ports: for kube-scheduler, for people, and for metrics and probes."""
