"""The two ports: kube-scheduler's and people's."""
