"""Record binds in file mode in memory, for pods from filter requests or from the file."""

import threading
from collections import OrderedDict
from dataclasses import replace

from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import PodRecord, pod_record
from scheduler_extender.verbs import Binding, NotWrittenError
from scheduler_extender.wire import Pod
from topology.core.devices import PodUid

CACHED_PODS = 4096


class FileBinder:
    """A binder in memory.

    It caches a bounded number of pods from filter requests. The cache decides nothing.
    """

    def __init__(self, cluster: Cache) -> None:
        self._cluster = cluster
        self._seen: OrderedDict[PodUid, PodRecord] = OrderedDict()
        self._lock = threading.Lock()

    def saw(self, pod: Pod) -> None:
        """Cache the pod of a filter request."""
        record = pod_record(pod, self._cluster.settings.managed)
        if record is None:
            return
        with self._lock:
            self._seen[record.uid] = record
            self._seen.move_to_end(record.uid)
            while len(self._seen) > CACHED_PODS:
                self._seen.popitem(last=False)

    def find(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """Return the pod with this UID from the file or filter requests; None if it is unknown."""
        known = self._cluster.pod(uid)
        if known is not None:
            return known
        with self._lock:
            return self._seen.get(uid)

    def write(self, binding: Binding) -> None:
        """Record the pod as bound. Raises :class:`NotWrittenError` if it is unknown."""
        pod = self.find(binding.namespace, binding.name, binding.uid)
        if pod is None:
            raise NotWrittenError(
                f"pod {binding.namespace}/{binding.name} was never sent to filter"
            )
        bound = replace(pod, node=binding.node, called_unschedulable=False)
        self._cluster.put_pod(bound)  # with the promise of the assumed pod
        with self._lock:
            self._seen.pop(binding.uid, None)
