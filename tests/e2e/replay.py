"""Random pods on a real kubelet, step by step: free devices, pods, and what each pod got."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from tests.e2e.kubelet import Call, Kubelet
from tests.e2e.pods import PODS, gpu_pod
from tests.waiting import eventually

POLL = 0.06

Positions = tuple[int, ...]  # GPUs by position in the node's topology, ascending


@dataclass(frozen=True)
class Admission:
    """One pod of a step: its containers' counts, and what each got.

    ``got`` is None where the kubelet refused the pod, and ``reason`` says how it called that.
    """

    name: str
    containers: tuple[int, ...]
    got: tuple[Positions, ...] | None
    reason: str = ""


@dataclass(frozen=True)
class Step:
    """Pods created together, or pods deleted together, on a node that was at rest before.

    ``pods`` are in order of creation; within a second the kubelet admits them in an order of its
    own, and :meth:`order` tells it. ``calls`` are the questions to the device plugin meanwhile.
    Of a deletion only ``free`` (before) and ``freed`` are set. ``crashed`` says that the device
    plugin died during the step; it has been started again.
    """

    free: frozenset[int]
    pods: tuple[Admission, ...] = ()
    freed: frozenset[int] = frozenset()
    calls: tuple[Call, ...] = ()
    crashed: bool = False

    def order(self) -> tuple[Admission, ...]:
        """The pods that got their devices, in the order in which the kubelet served them.

        The plugin is asked once for every container without init containers before it, and its
        answers are distinct sets of GPUs within a step.
        """
        turn = {call.answer: i for i, call in enumerate(self.calls)}
        served = [(turn[pod.got[0]], pod) for pod in self.pods if pod.got]
        return tuple(pod for _, pod in sorted(served, key=lambda pair: pair[0]))


def replay(
    kubelet: Kubelet, client: httpx.Client, random: Random, steps: int, burst: int = 3
) -> Iterator[Step]:
    """Random admissions and deletions until ``steps`` of them are done; then all are deleted.

    A step creates up to ``burst`` pods of one or two containers, never asking for more than is
    free, or deletes up to two of its pods.
    """
    held: dict[str, frozenset[int]] = {}
    everything = frozenset(range(len(kubelet.topology.gpus)))
    count = 0
    for _ in range(steps):
        free = everything.difference(*held.values())
        if held and (not free or random.random() < 0.4):
            names = random.sample(sorted(held), random.randint(1, min(2, len(held))))
            yield _delete(kubelet, client, held, names, free)
            continue
        wanted: list[tuple[str, tuple[int, ...]]] = []
        left = len(free)
        most = random.randint(1, burst)
        while left and len(wanted) < most:
            counts = _counts(random, left)
            wanted.append((f"{kubelet.name}-{count}", counts))
            left -= sum(counts)
            count += 1
        step = _admit(kubelet, client, wanted, free)
        for pod in step.pods:
            if pod.got is not None:
                held[pod.name] = frozenset(p for got in pod.got for p in got)
        yield step
    if held:
        yield _delete(kubelet, client, held, list(held), everything.difference(*held.values()))


def settle(kubelet: Kubelet, client: httpx.Client, pods: Sequence[dict[str, Any]]) -> None:
    """Create pods and wait until each one's app and sidecar containers show all they asked for.

    A pod that the kubelet refused is settled too, and one that has ended by itself.
    """
    for pod in pods:
        client.post(PODS, json=pod).raise_for_status()
    names = {pod["metadata"]["name"]: pod for pod in pods}

    def settled() -> bool:
        holdings = kubelet.pod_resources.holdings()
        shown = {name: found for (_, name), found in holdings.items()}
        return all(
            _complete(pod, shown.get(name, {})) or _phase(client, name) in ("Succeeded", "Failed")
            for name, pod in names.items()
        )

    until(settled, f"{', '.join(names)} are settled", kubelet)


def remove(kubelet: Kubelet, client: httpx.Client, names: Sequence[str]) -> None:
    """Delete pods and wait until the kubelet has ended them, which frees their devices.

    The API server has them for a second or so longer.
    """
    for name in names:
        client.delete(f"{PODS}/{name}").raise_for_status()

    def ended() -> bool:
        return not {name for _, name in kubelet.pod_resources.holdings()}.intersection(names)

    until(ended, f"{', '.join(names)} have ended", kubelet)


def until(condition: Callable[[], bool], what: str, kubelet: Kubelet) -> None:
    """Wait until something holds; a failure says what, with the end of the kubelet's log."""
    eventually(
        condition, what, every=POLL, detail=lambda: f"--- kubelet\n{kubelet.log('kubelet')[-4000:]}"
    )


def _admit(
    kubelet: Kubelet,
    client: httpx.Client,
    wanted: Sequence[tuple[str, tuple[int, ...]]],
    free: frozenset[int],
) -> Step:
    asked = len(kubelet.calls())
    pods = [gpu_pod(name, counts, node=kubelet.name) for name, counts in wanted]
    settle(kubelet, client, pods)
    shown = {name: found for (_, name), found in kubelet.pod_resources.holdings().items()}
    admitted = []
    for name, counts in wanted:
        reason = _failure(client, name)
        got = None
        if reason is None:
            got = tuple(kubelet.positions(ids) for ids in shown[name].values())
        admitted.append(Admission(name, counts, got, reason or ""))
    crashed = kubelet.heal_plugin()
    refused = [pod.name for pod in admitted if pod.got is None]
    if refused:
        remove(kubelet, client, refused)
    return Step(free, tuple(admitted), calls=tuple(kubelet.calls()[asked:]), crashed=crashed)


def _delete(
    kubelet: Kubelet,
    client: httpx.Client,
    held: dict[str, frozenset[int]],
    names: Sequence[str],
    free: frozenset[int],
) -> Step:
    remove(kubelet, client, names)
    return Step(free, freed=frozenset().union(*(held.pop(name) for name in names)))


def _counts(random: Random, left: int) -> tuple[int, ...]:
    first = random.randint(1, min(4, left))
    if left > first and random.random() < 0.3:
        return (first, random.randint(1, min(2, left - first)))
    return (first,)


def _complete(pod: dict[str, Any], shown: dict[str, tuple[str, ...]]) -> bool:
    staying = [c for c in pod["spec"]["initContainers"] if c.get("restartPolicy") == "Always"]
    for container in [*staying, *pod["spec"]["containers"]]:
        limits = container.get("resources", {}).get("limits", {})
        if len(shown.get(container["name"], ())) != int(limits.get("nvidia.com/gpu", 0)):
            return False
    return True


def _phase(client: httpx.Client, name: str) -> str:
    return str(client.get(f"{PODS}/{name}").json()["status"]["phase"])


def _failure(client: httpx.Client, name: str) -> str | None:
    """Why a pod Failed; None where it did not."""
    status = client.get(f"{PODS}/{name}").json()["status"]
    return str(status.get("reason", "")) if status.get("phase") == "Failed" else None
