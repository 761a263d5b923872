"""What the agent asks the machine, the kubelet and the API server. Everything here does I/O."""
