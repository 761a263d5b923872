"""What ``gpu-topology install`` changes of kube-scheduler: texts of files in, texts out.

``schedulerconfig`` edits a KubeSchedulerConfiguration, ``staticpod`` kubeadm's static pod, ``k3s``
says what k3s starts its scheduler with. ``yamledit`` changes a YAML text at one place.
"""
