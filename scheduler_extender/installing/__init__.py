"""The edits that ``gpu-topology install`` makes to kube-scheduler's files, as functions on texts.

``schedulerconfig`` edits a KubeSchedulerConfiguration, and ``staticpod`` edits kubeadm's static
pod. ``k3s`` finds the flags with which k3s starts its scheduler. ``flags`` moves flags into a
configuration. ``yamledit`` changes a YAML text at one place.
"""
