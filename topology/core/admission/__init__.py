"""How a kubelet may admit a pod: every way in which its containers can get devices, or a refusal.

The kubelet allocates devices container by container, init containers first. It asks the device
plugin which devices the plugin prefers. The kubelet's own stages come before the plugin's. They are
read from ``devicemanager/manager.go`` and ``topologymanager`` of Kubernetes 1.36, and were seen on
a running kubelet. For each container:

1. *Reuse.* The devices of an ordinary init container are *reusable* by the pod's later containers.
   The kubelet takes them first. If they cover the container's count, it takes an arbitrary part of
   them and does not ask the plugin. Otherwise it takes all of them, and asks the plugin with them
   as the required devices.
2. *Alignment.* Under a policy of the Topology Manager the container has a *hint*, a set of NUMA
   nodes (:mod:`.topologymanager`). If more devices are free there than the container needs, the
   plugin chooses among these alone. Otherwise the kubelet takes all of them, and the plugin chooses
   the rest among all free devices.
3. *Preference.* The plugin chooses (:mod:`topology.core.allocators`).
4. *Rest.* No report shows the reusable devices that no later container took. The pod holds them
   until it ends.

``devicemanager`` describes how one node allocates devices. ``topologymanager`` models step 2. It
builds on three modules: ``topologyhints`` combines hints, ``staticmanagers`` gives the hints of the
CPU Manager and of the Memory Manager, and ``hintproviders`` collects these managers' answers to one
pod. ``admissions`` goes through the containers and returns the result.
"""

from topology.core.admission.admissions import (
    SEVERAL,
    TOO_FEW,
    Admission,
    Admissions,
    admissions,
    container_sets,
)
from topology.core.admission.devicemanager import (
    UNKNOWN_CONFIG,
    DeviceManager,
    device_manager_of,
    opaque,
    widened,
)
from topology.core.admission.hintproviders import (
    AFFINITY,
    MANAGERS,
    NO_ANSWERS,
    ProviderAnswers,
    provider_answers,
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
    "DeviceManager",
    "ProviderAnswers",
    "admissions",
    "container_sets",
    "device_manager_of",
    "opaque",
    "provider_answers",
    "widened",
]
