"""What real kubelets with NVIDIA's device plugin do to pods that are bound to them by hand."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.e2e.building import NEWEST
from tests.e2e.controlplane import ControlPlane
from tests.e2e.kubelet import Kubelet, kubelet_users
from tests.e2e.pods import PODS, gpu_pod
from tests.e2e.replay import Step, remove, replay, settle, until
from tests.e2e.singlepod import Shown
from tests.nodes import gpus
from tests.waiting import PATIENCE
from topology.core.admission import DeviceManager
from topology.core.allocators import Call
from topology.core.allocators.best_effort import PADDED
from topology.core.availability import Availability, Unacknowledged, unacknowledged_order
from topology.core.devices import NodeName
from topology.core.graph import AllocatorConfig, NodeTopology, plugin_version
from topology.core.links import Link, LinkKind
from topology.core.placement import predicted
from topology.core.requests import Role
from topology.machines import machine

pytestmark = pytest.mark.e2e
MACHINES = {"dgx1": "dgx1-v100", "bridged": "a100-pcie-4-bridged", "pcie": "l40s-4"}
STEPS = 60


@pytest.fixture(scope="module")
def control_plane(
    control_plane_binaries: Path,
    node_binaries: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    """No scheduler, no extender: pods come with their node."""
    folder = tmp_path_factory.mktemp("kubelets")
    users = kubelet_users([*MACHINES, "padding", "slow"])
    with ControlPlane(folder, control_plane_binaries, users) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def kubelets(
    control_plane: ControlPlane, node_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Kubelet]]:
    """One node per machine."""
    logs = tmp_path_factory.mktemp("logs")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_observed(control_plane, kind, name, node_binaries, logs))
            for name, kind in MACHINES.items()
        }


@pytest.fixture
def padding(control_plane: ControlPlane, node_binaries: Path, tmp_path: Path) -> Iterator[Kubelet]:
    """Five GPUs: 0-1 with two NVLinks, 2-3-4 behind one PCIe switch."""
    links = [
        Link(a, b, LinkKind.PIX if a > 1 else LinkKind.SYS) for a, b in combinations(range(5), 2)
    ]
    links[0] = Link(0, 1, LinkKind.SYS, nvlinks=2)
    topology = NodeTopology(
        NodeName("padding"), gpus(5), tuple(links), allocator=AllocatorConfig("best-effort")
    )
    with Kubelet(control_plane, topology, node_binaries, tmp_path, observed=True) as kubelet:
        yield kubelet


class Polls:
    """Counts how often a kubelet was asked who has what."""

    def __init__(self) -> None:
        self._done = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        """One more has its answer."""
        with self._changed:
            self._done += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait for the answer of a poll that begins now or later: one may be under way."""
        with self._changed:
            enough = self._done + 2
            self._changed.wait_for(lambda: self._done >= enough, PATIENCE)


@pytest.fixture
def polls() -> Polls:
    return Polls()


@pytest.fixture
def slow(
    control_plane: ControlPlane, node_binaries: Path, tmp_path: Path, polls: Polls
) -> Iterator[Kubelet]:
    """A DGX-1V whose allocator takes longer than a poll."""
    with _observed(
        control_plane, "dgx1-v100", "slow", node_binaries, tmp_path, polls.wait
    ) as kubelet:
        yield kubelet


def _observed(
    control_plane: ControlPlane,
    kind: str,
    name: str,
    node_binaries: Path,
    logs: Path,
    pause: Callable[[], object] = lambda: None,
) -> Kubelet:
    """A node with a machine of the catalogue that tells what its plugin was asked."""
    described = machine(kind)
    return Kubelet(
        control_plane,
        described.topology(name),
        node_binaries,
        logs,
        machine=described,
        observed=True,
        pause=pause,
    )


@pytest.fixture
def client(control_plane: ControlPlane) -> Iterator[httpx.Client]:
    with control_plane.client() as client:
        yield client


def test_an_init_containers_devices_are_used_again(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    """The plugin is not asked for what an ordinary init container had, nor is that one shown."""
    shown = Shown(kubelets["dgx1"], client, [2], init=[2])
    assert shown.questions() == [(8, (), 2)]
    assert shown.containers == {"c0": shown.calls[0].answer}


def test_two_containers_share_what_the_init_container_had(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    shown = Shown(kubelets["dgx1"], client, [1, 1], init=[2])
    assert shown.questions() == [(8, (), 2)]
    assert list(shown.containers) == ["c0", "c1"]
    assert sorted((*shown.containers["c0"], *shown.containers["c1"])) == list(shown.calls[0].answer)


def test_a_container_that_needs_more_must_keep_the_init_containers(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    """All eight are available to it: those of the init container count among them."""
    shown = Shown(kubelets["dgx1"], client, [3], init=[1])
    first, second = shown.calls
    assert shown.questions() == [(8, (), 1), (8, first.answer, 3)]
    assert shown.containers == {"c0": second.answer}
    assert set(first.answer) < set(second.answer)


def test_a_container_that_needs_less_gets_an_arbitrary_part(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    shown = Shown(kubelets["dgx1"], client, [2], init=[3])
    assert shown.questions() == [(8, (), 3)]
    assert list(shown.containers) == ["c0"]
    assert len(shown.containers["c0"]) == 2
    assert set(shown.containers["c0"]) < set(shown.calls[0].answer)


def test_what_it_does_not_use_stays_allocated_unseen(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    kubelet = kubelets["dgx1"]
    settle(kubelet, client, [gpu_pod("less", [2], init=[3], node="dgx1")])
    held = set(kubelet.calls()[-1].answer)
    settle(kubelet, client, [gpu_pod("next", [1], node="dgx1")])
    assert len(held) == 3
    assert set(kubelet.calls()[-1].available) == set(range(8)) - held
    remove(kubelet, client, ["less", "next"])


def test_a_sidecars_devices_are_not_used_again(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    shown = Shown(kubelets["dgx1"], client, [2], sidecars=[1])
    first, second = shown.calls
    assert shown.questions() == [(8, (), 1), (7, (), 2)]
    assert shown.containers == {"i0": first.answer, "c0": second.answer}


def test_of_two_init_containers_the_second_uses_the_firsts(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    shown = Shown(kubelets["dgx1"], client, [2], init=[2, 1])
    assert shown.questions() == [(8, (), 2)]
    assert shown.containers == {"c0": shown.calls[0].answer}


def test_beside_a_sidecar_the_init_containers_are_used_again(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    shown = Shown(kubelets["dgx1"], client, [2], init=[2], sidecars=[1])
    first, second = shown.calls
    assert shown.questions() == [(8, (), 1), (7, (), 2)]
    assert shown.containers == {"i0": first.answer, "c0": second.answer}


def test_a_restarted_kubelet_knows_which_pod_has_which_device(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    kubelet = kubelets["bridged"]
    settle(kubelet, client, [gpu_pod("before", [1], node="bridged")])
    before = kubelet.pod_resources.holdings()
    kubelet.restart_kubelet()
    # At first it shows no pods at all, though every device is allocatable again by now.
    until(lambda: kubelet.pod_resources.holdings() == before, "all is shown again", kubelet)
    settle(kubelet, client, [gpu_pod("after", [2], node="bridged")])
    held = kubelet.positions(before["default", "before"]["c0"])
    assert set(kubelet.calls()[-1].available) == set(range(4)) - set(held)
    remove(kubelet, client, ["before", "after"])


def test_a_restarted_kubelet_refuses_pods_bound_meanwhile_though_enough_is_free(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    """Its checkpoint is of the last admission, and it reads it before it looks who has ended.

    Where the pod is quicker than the device plugin's registration, that is the reason told.
    """
    kubelet = kubelets["pcie"]
    settle(kubelet, client, [gpu_pod("ended", [3], node="pcie")])
    remove(kubelet, client, ["ended"])
    until(lambda: client.get(f"{PODS}/ended").status_code == 404, "ended is gone", kubelet)
    kubelet.stop_kubelet()
    client.post(PODS, json=gpu_pod("meanwhile", [2], node="pcie")).raise_for_status()
    kubelet.start_kubelet()
    until(lambda: _phase(client, "meanwhile") == "Failed", "meanwhile is refused", kubelet)
    status = client.get(f"{PODS}/meanwhile").json()["status"]
    assert status["reason"] == "UnexpectedAdmissionError"
    reasons = ("Requested: 2, Available: 1", "no healthy devices present")
    assert any(reason in status["message"] for reason in reasons), status["message"]
    settle(kubelet, client, [gpu_pod("afterwards", [2], node="pcie")])
    assert kubelet.calls()[-1].available == (0, 1, 2, 3)
    remove(kubelet, client, ["afterwards"])


def test_the_status_of_a_pod_names_its_devices_but_a_sidecars(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    """The API server learns them too (1.36 has ResourceHealthStatus on), of app containers only."""
    kubelet = kubelets["dgx1"]
    settle(kubelet, client, [gpu_pod("named", [1, 2], sidecars=[1], node="dgx1")])
    shown = kubelet.pod_resources.holdings()["default", "named"]
    expected = {name: set(ids) for name, ids in shown.items()} | {"i0": set()}
    assert list(expected) == ["i0", "c0", "c1"]
    until(lambda: _answered(client, "named") == expected, "the status names the devices", kubelet)
    remove(kubelet, client, ["named"])


def _answered(client: httpx.Client, name: str) -> dict[str, set[str]]:
    """What a pod's status says its containers hold."""
    status = client.get(f"{PODS}/{name}").json()["status"]
    containers = [
        *status.get("initContainerStatuses", []),
        *status.get("containerStatuses", []),
    ]
    return {
        container["name"]: {
            entry["resourceID"]
            for resource in container.get("allocatedResourcesStatus", [])
            for entry in resource["resources"]
        }
        for container in containers
    }


def test_a_pod_that_ends_gives_its_devices_back(
    kubelets: dict[str, Kubelet], client: httpx.Client
) -> None:
    kubelet = kubelets["pcie"]
    settle(kubelet, client, [gpu_pod("short", [4], node="pcie", finish_after=0.5)])
    until(lambda: not kubelet.pod_resources.holdings(), "short has ended", kubelet)
    settle(kubelet, client, [gpu_pod("next", [4], node="pcie")])
    until(lambda: _phase(client, "short") == "Succeeded", "short has Succeeded", kubelet)
    remove(kubelet, client, ["next"])


def test_the_padding_defect_refuses_a_pod_though_enough_is_free(
    padding: Kubelet, client: httpx.Client
) -> None:
    """Three of five: the allocator scores the pair 0-1 and a nil highest, and the plugin dies."""
    settle(padding, client, [gpu_pod("triple", [3], node="padding")])
    status = client.get(f"{PODS}/triple").json()["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert [call.died for call in padding.calls()] == [True]
    assert padding.heal_plugin()
    settle(padding, client, [gpu_pod("pair", [2], node="padding")])
    held = padding.pod_resources.holdings()["default", "pair"]
    assert padding.positions(held["c0"]) == (0, 1)
    remove(padding, client, ["pair"])
    until(lambda: client.get(f"{PODS}/pair").status_code == 404, "pair is gone", padding)


@pytest.mark.parametrize("name", MACHINES)
def test_random_pods_get_their_count_of_what_is_free(
    kubelets: dict[str, Kubelet], client: httpx.Client, name: str
) -> None:
    """Nothing is given twice, and the plugin decides alone which GPUs a container gets."""
    admitted, refused = _check_random_pods(kubelets[name], client, STEPS)
    assert admitted > refused


def test_random_pods_where_the_plugin_dies_now_and_then(
    padding: Kubelet, client: httpx.Client
) -> None:
    admitted, refused = _check_random_pods(padding, client, 25, seed=3)
    assert admitted > refused
    assert any(call.died for call in padding.calls())


def _check_random_pods(
    kubelet: Kubelet, client: httpx.Client, steps: int, seed: int = 7
) -> tuple[int, int]:
    """Check every step of a replay; how many pods were admitted and refused."""
    free = frozenset(range(len(kubelet.topology.gpus)))
    admitted = refused = out_of_order = 0
    for step in replay(kubelet, client, Random(seed), steps):
        assert step.free == free
        served = step.order()
        _check_predicted(kubelet, step)
        out_of_order += served != tuple(pod for pod in step.pods if pod.got)
        given = [got for pod in served for got in pod.got or ()]
        if not step.crashed:  # a refused pod's first container may have been served, too
            assert [call.answer for call in step.calls] == given
        for pod in served:
            assert pod.got is not None
            assert tuple(map(len, pod.got)) == pod.containers
            taken = frozenset(p for got in pod.got for p in got)
            assert len(taken) == sum(pod.containers)
            assert taken <= free
            free -= taken
        for pod in step.pods:
            assert (pod.got is None) == (pod.reason != "")
            assert pod.got is not None or step.crashed, pod
        assert not step.freed & free
        free |= step.freed
        admitted += len(served)
        refused += len(step.pods) - len(served)
    assert free == frozenset(range(len(kubelet.topology.gpus)))
    summary = f"{admitted} admitted, {out_of_order} bursts out of order, {refused} refused"
    print(f"{kubelet.name}: {summary}")
    return admitted, refused


def _check_predicted(kubelet: Kubelet, step: Step) -> None:
    """Each answer of NVIDIA's allocator, and each pod's GPUs, lie in what the model foresees."""
    model = DeviceManager(kubelet.topology.shape, kubelet.topology.allocator)
    dead = False
    for call in step.calls:
        asked = Call(
            model.shape,
            _mask(call.available),
            call.size,
            _mask(call.must),
            version=plugin_version(NEWEST),
        )
        found = model.allocator.outcomes(asked)
        if call.died:
            assert dead or PADDED in found.hazards, call  # a dead plugin answers nobody
            dead = True
        else:
            assert _mask(call.answer) in (found.sets or ()), call
    waiting = [tuple((Role.APP, n) for n in pod.containers) for pod in step.pods]
    for i, pod in enumerate(step.pods):
        if pod.got is not None and not step.crashed:
            others = unacknowledged_order(
                Unacknowledged(counts) for counts in waiting[:i] + waiting[i + 1 :]
            )
            now = Availability(_mask(step.free), unacknowledged=others)
            sets, _ = predicted(model, now, Unacknowledged(waiting[i]))
            assert sum(map(_mask, pod.got)) in (sets or ()), step


def _mask(positions: Iterable[int]) -> int:
    return sum(1 << p for p in positions)


def test_half_admitted_pods_are_shown(slow: Kubelet, client: httpx.Client, polls: Polls) -> None:
    """A pod's containers get their devices one after the other, and a poll falls in between."""
    names = [f"half-{i}" for i in range(4)]
    seen = _watched_burst(slow, client, names, polls)
    for snapshot in seen:
        assert set(snapshot.values()) <= {(0, 0), (1, 0), (1, 1)}
        assert list(snapshot.values()).count((1, 0)) <= 1
    for earlier, later in pairwise(seen):
        assert all(later[name] >= counts for name, counts in earlier.items())
    assert any((1, 0) in snapshot.values() for snapshot in seen)


def _phase(client: httpx.Client, name: str) -> str:
    return str(client.get(f"{PODS}/{name}").json()["status"]["phase"])


def _watched_burst(
    kubelet: Kubelet, client: httpx.Client, names: list[str], polls: Polls
) -> list[dict[str, tuple[int, ...]]]:
    """Counts per container, by pod, in every poll until all pods have their two devices."""
    for name in names:
        client.post(PODS, json=gpu_pod(name, [1, 1], node=kubelet.name)).raise_for_status()
    seen: list[dict[str, tuple[int, ...]]] = []

    def all_have_theirs() -> bool:
        holdings = kubelet.pod_resources.holdings()
        seen.append({n: tuple(map(len, found.values())) for (_, n), found in holdings.items()})
        polls.add()
        return len(seen[-1]) == len(names) and set(seen[-1].values()) == {(1, 1)}

    until(all_have_theirs, f"{', '.join(names)} have their devices", kubelet)
    return seen
