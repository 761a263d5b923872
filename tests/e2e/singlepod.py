"""One pod alone on an observed node: what is shown of it, and what the plugin was asked for it."""

import httpx

from tests.e2e.kubelet import Kubelet
from tests.e2e.pods import gpu_pod
from tests.e2e.replay import Positions, remove, settle


class Shown:
    """A pod that was admitted and removed: its GPUs by container, and the plugin's calls."""

    def __init__(
        self,
        kubelet: Kubelet,
        client: httpx.Client,
        containers: list[int],
        init: list[int] | None = None,
        sidecars: list[int] | None = None,
    ) -> None:
        asked = len(kubelet.calls())
        name = f"alone-{asked}"
        pod = gpu_pod(name, containers, init=init or [], sidecars=sidecars or [], node=kubelet.name)
        settle(kubelet, client, [pod])
        found = kubelet.pod_resources.holdings()[("default", name)]
        self.containers: dict[str, Positions] = {
            name: kubelet.positions(ids) for name, ids in found.items()
        }
        self.calls = kubelet.calls()[asked:]
        remove(kubelet, client, [name])

    def questions(self) -> list[tuple[int, Positions, int]]:
        """How many were available, which had to be among the answer, how many were wanted."""
        return [(len(call.available), call.must, call.size) for call in self.calls]
