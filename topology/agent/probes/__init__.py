"""The probes of the machine, the kubelet and the API server. Everything here does I/O."""
