"""What a kubelet may do with a pod: every way its containers can get their devices, or a refusal.

The kubelet hands out devices container by container, init containers first, and asks the device
plugin's allocator for its preference. Its own stages come before the plugin's, as read from
``devicemanager/manager.go`` and ``topologymanager`` of Kubernetes 1.36 and seen on a running one.
For each container:

1. *Reuse.* What an ordinary init container got is *reusable* by the pod's later containers, and is
   taken first. If it covers the container's count, the kubelet takes an arbitrary part of it and
   does not ask the plugin. Otherwise it takes all of it, and asks the plugin with it as required.
2. *Alignment.* Under a policy of the Topology Manager the container has a *hint*, a set of NUMA
   nodes (:mod:`.topologymanager`). If more devices are free there than needed, the plugin is asked
   over them alone; otherwise all of them are taken and the plugin is asked over everything for the
   rest.
3. *Preference.* The plugin chooses (:mod:`topology.core.allocators`).
4. *Rest.* Reusable devices that no later container took show in no report and stay held until the
   pod ends.

``kubelet`` says how one node hands out. ``topologymanager`` models step 2: ``topologyhints`` has
the rule by which hints are combined, ``staticmanagers`` those of the CPU Manager and the Memory
Manager, ``hintproviders`` their answers to one pod. ``admissions`` goes through the containers and
answers.
"""

from topology.core.admission.admissions import (
    SEVERAL,
    TOO_FEW,
    Admission,
    Admissions,
    admissions,
    container_sets,
)
from topology.core.admission.hintproviders import (
    AFFINITY,
    MANAGERS,
    NO_ANSWERS,
    ProviderAnswers,
    provider_answers,
)
from topology.core.admission.kubelet import (
    UNKNOWN_CONFIG,
    Kubelet,
    kubelet_of,
    opaque,
    widened,
)
from topology.core.admission.topologymanager import TOO_MANY_NODES

__all__ = [
    "AFFINITY",
    "MANAGERS",
    "NO_ANSWERS",
    "SEVERAL",
    "TOO_FEW",
    "TOO_MANY_NODES",
    "UNKNOWN_CONFIG",
    "Admission",
    "Admissions",
    "Kubelet",
    "ProviderAnswers",
    "admissions",
    "container_sets",
    "kubelet_of",
    "opaque",
    "provider_answers",
    "widened",
]
