"""Pods that a reader can fill into the page *what if* with one click."""

_PAIR = """\
apiVersion: v1
kind: Pod
metadata:
  name: pair
  annotations:
    gpu-topology.io/link: nvlink
spec:
  containers:
  - name: main
    resources:
      limits: {nvidia.com/gpu: 2}
"""
_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec:
  replicas: 6
  template:
    metadata:
      annotations:
        gpu-topology.io/min-gpu-memory: 40G
    spec:
      containers:
      - name: main
        resources:
          limits: {nvidia.com/gpu: 1}
"""
_JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  completions: 2
  template:
    metadata:
      annotations:
        gpu-topology.io/link: nvlink
        gpu-topology.io/same-numa: "true"
        gpu-topology.io/policy: preferred
    spec:
      containers:
      - name: main
        resources:
          limits: {nvidia.com/gpu: 4}
"""
# The examples by their names on the page.
EXAMPLES = {
    "a pair with NVLinks": _PAIR,
    "a Deployment of six": _DEPLOYMENT,
    "a Job that prefers linked quads": _JOB,
    "a Pod and a Job": f"{_PAIR}---\n{_JOB}",
}
