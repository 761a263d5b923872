"""The three ports: for kube-scheduler, for people, and for metrics and probes.

``app``, ``admin`` and ``metricsport`` are the ports; ``bothports`` is what the first two share. The
other files hold one guard or one part of a port each: the queue of requests, the connections, the
certificates, the limits for browsers, the schemas and the metrics.
"""
