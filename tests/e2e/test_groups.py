"""Groups on a real kube-scheduler: two NVL72 racks of 18 trays, and machines without a fabric.

Kubelets and agents are emulated; everything between a pod's creation and its Binding is real.
"""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest

from scheduler_extender.state.groups.groups import (
    ELSEWHERE,
    NEVER,
    NO_DOMAIN,
    NO_LONGER,
    TOO_SMALL,
)
from tests.e2e.cluster import PODS, RECORDS, ROOT, RealCluster
from tests.e2e.emulated import Kubelets
from topology.machines import machine

pytestmark = pytest.mark.e2e
RACK = {"link": "nvlink", "group-domain": "nvlink-domain"}
TRAYS = {name: [f"{name}-{i:02}" for i in range(18)] for name in ("east", "west")}
BLOCKS = {"hgx-0": "one", "hgx-1": "two", "hgx-2": "two"}
GANG = "scheduling.x-k8s.io/pod-group"


@pytest.fixture(scope="module")
def kubelets(real: RealCluster) -> Iterator[Kubelets]:
    """Both racks, and three machines in two blocks."""
    trays = [
        machine("gb200-tray").topology(tray, group=name)
        for name, names in TRAYS.items()
        for tray in names
    ]
    others = [machine("hgx-h100-8").topology(name) for name in BLOCKS]
    for node in (*trays, *others):
        real.add_machine(node)
        # These agents do not say which pods they knew: a pod is gone two reports later.
        real.patch(f"{RECORDS}/{node.name}/status", {"status": {"podsResourceVersion": None}})
    for name, block in BLOCKS.items():
        real.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"example.com/b": block}}})
    with Kubelets(real, [*trays, *others], seed=14) as found:
        yield found
    assert found.refused == []


def add(
    real: RealCluster,
    name: str,
    gpus: int,
    annotations: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
) -> None:
    """A pod with labels of other programs."""
    container = {
        "name": "main",
        "image": "example/work",
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    ours = {f"gpu-topology.io/{key}": value for key, value in annotations.items()}
    metadata: dict[str, Any] = {"name": name, "annotations": ours, "labels": dict(labels or {})}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    real.create(PODS, {**pod, "spec": {"containers": [container]}})


def group(
    real: RealCluster, name: str, size: int, gpus: int = 4, more: Mapping[str, str] | None = None
) -> list[str]:
    """The names of a group's pods, all created at once."""
    names = [f"{name}-{i}" for i in range(size)]
    for each in names:
        add(real, each, gpus, {**RACK, "group": name, "group-size": str(size), **(more or {})})
    return names


def remove(real: RealCluster, kubelets: Kubelets, names: list[str]) -> None:
    """Delete pods, and wait until their GPUs are seen to be free."""
    nodes = {real.pod(name).get("spec", {}).get("nodeName") for name in names} - {None}
    for name in names:
        real.api.delete(f"{PODS}/{name}", params={"gracePeriodSeconds": 1})

    def none_named() -> bool:
        assert kubelets.errors == []
        for node in nodes:
            kubelets.report_again(node)
        known = [real.admin.get(f"/v1/nodes/{node}").json() for node in nodes]
        return not any(pod["name"] in names for node in known for pod in node["pods"])

    real.until(none_named, f"{names} have let go")


def closed(real: RealCluster, node: str) -> None:
    """Wait until the extender and kube-scheduler have heard that a node is cordoned.

    kube-scheduler has heard of it once it binds no pod to the node any more.
    """
    page = f"/map/nodes/{node}"
    real.until(lambda: "cordoned" in real.admin.get(page).text, f"{node} is shown as cordoned")
    numbers = count()

    def keeps_out() -> bool:
        name = f"asks-{node}-{next(numbers)}"
        real.add_pod(name, 0, nodeSelector={"kubernetes.io/hostname": node})
        real.until(lambda: real.pod(name)["status"].get("conditions"), f"{name} is looked at")
        kept_out = not real.pod(name)["spec"].get("nodeName")
        real.remove_pod(name)
        return kept_out

    real.until(keeps_out, f"{node} takes no pod any more")


def unbound(real: RealCluster, names: list[str]) -> list[str]:
    return [name for name in names if not real.pod(name)["spec"].get("nodeName")]


def test_a_group_of_eighteen_fills_one_rack_and_the_next_one_the_other(
    real: RealCluster, kubelets: Kubelets
) -> None:
    first = group(real, "first", 18)
    nodes = {real.node_of(name) for name in first}
    assert nodes in (set(TRAYS["east"]), set(TRAYS["west"]))
    # One tray of the other rack is held, so the next group fits nowhere whole: nobody is bound.
    (other,) = (name for name in TRAYS if not nodes & set(TRAYS[name]))
    add(real, "alone", 4, {"link": "nvlink", "gpu-model": "GB200"})
    assert real.node_of("alone") in TRAYS[other]
    second = group(real, "second", 18)
    for name in second:
        message = real.unschedulable(name)
        assert f"17 {TOO_SMALL.message}" in message
        assert f"1 {NO_DOMAIN.message}" in message or f"3 {NO_DOMAIN.message}" in message
    assert unbound(real, second) == second
    remove(real, kubelets, ["alone"])
    assert {real.node_of(name) for name in second} == set(TRAYS[other])
    remove(real, kubelets, [*first, *second])


def test_groups_that_race_for_a_rack_do_not_share_what_holds_one(
    real: RealCluster, kubelets: Kubelets
) -> None:
    """Three groups of ten, and two racks: two are whole, each in one rack, and one waits whole."""
    names = ["red", "green", "blue"]
    pods = {name: [f"{name}-{i}" for i in range(10)] for name in names}
    for i in range(10):  # their pods come mixed
        for name in names:
            ours = {**RACK, "group": name, "group-size": "10"}
            add(real, f"{name}-{i}", 4, ours)
    real.until(
        lambda: sum(not unbound(real, found) for found in pods.values()) == 2,
        "two groups are bound",
    )
    (waiting,) = (name for name in names if unbound(real, pods[name]))
    assert unbound(real, pods[waiting]) == pods[waiting]
    homes: list[str] = []
    for name in names:
        if name != waiting:
            found = {real.node_of(pod).rpartition("-")[0] for pod in pods[name]}
            assert len(found) == 1
            homes += found
    assert len(set(homes)) == 2
    remove(real, kubelets, pods[next(name for name in names if name != waiting)])
    for pod in pods[waiting]:
        real.node_of(pod)
    assert len({real.node_of(pod).rpartition("-")[0] for pod in pods[waiting]}) == 1
    remove(
        real,
        kubelets,
        [pod for name in names for pod in pods[name] if real.pod(pod).get("metadata")],
    )


def test_a_restart_in_the_middle_of_a_group_forgets_nothing(
    real: RealCluster, kubelets: Kubelets
) -> None:
    early = [f"half-{i}" for i in range(5)]
    for name in early:
        add(real, name, 4, {**RACK, "group": "half", "group-size": "12"})
    (home,) = {real.node_of(name).rpartition("-")[0] for name in early}
    real.kill_extender()
    real.start_extender()
    # Seven of the home's thirteen free trays are spoken for: six are left for others there.
    other = group(real, "seven", 7)
    (elsewhere,) = {real.node_of(name).rpartition("-")[0] for name in other}
    assert elsewhere != home
    late = [f"half-{i}" for i in range(5, 12)]
    for name in late:
        add(real, name, 4, {**RACK, "group": "half", "group-size": "12"})
    assert {real.node_of(name).rpartition("-")[0] for name in late} == {home}
    remove(real, kubelets, [*early, *other, *late])


def test_a_rack_that_loses_a_tray_takes_no_more_of_the_group(
    real: RealCluster, kubelets: Kubelets
) -> None:
    for i in range(2):
        add(real, f"lost-{i}", 4, {**RACK, "group": "lost", "group-size": "18"})
    home = real.node_of("lost-0").rpartition("-")[0]
    assert real.node_of("lost-1").rpartition("-")[0] == home
    taken = {real.node_of("lost-0"), real.node_of("lost-1")}
    broken = next(tray for tray in TRAYS[home] if tray not in taken)
    real.kubectl("cordon", broken)
    closed(real, broken)
    add(real, "lost-2", 4, {**RACK, "group": "lost", "group-size": "18"})
    message = real.unschedulable("lost-2")
    assert f"15 {NO_LONGER.message}" in message
    assert f"18 {ELSEWHERE.message}" in message
    real.kubectl("uncordon", broken)
    assert real.node_of("lost-2") in TRAYS[home]
    remove(real, kubelets, ["lost-0", "lost-1", "lost-2"])


def test_a_node_label_names_the_domain(real: RealCluster, kubelets: Kubelets) -> None:
    """Two machines of eight GPUs stand in block two; the group needs two whole ones."""
    pods = group(real, "block", 2, 8, {"group-domain": "example.com/b"})
    assert {real.node_of(name) for name in pods} == {"hgx-1", "hgx-2"}
    remove(real, kubelets, pods)


def test_a_group_on_one_node(real: RealCluster, kubelets: Kubelets) -> None:
    pods = group(real, "close", 4, 2, {"group-domain": "node", "gpu-model": "H100*"})
    assert len({real.node_of(name) for name in pods}) == 1
    too_many = group(real, "wide", 5, 2, {"group-domain": "node", "gpu-model": "H100*"})
    assert NEVER.message in real.unschedulable(too_many[0])
    assert unbound(real, too_many) == too_many
    remove(real, kubelets, pods)
    for name in too_many:
        real.remove_pod(name)


def test_a_preferred_rack_refuses_no_pod(real: RealCluster, kubelets: Kubelets) -> None:
    """Nineteen members and racks of eighteen: all are bound, and most of them in one rack."""
    pods = group(real, "soft", 19, more={"policy": "preferred", "gpu-model": "GB200"})
    assert len({real.node_of(name) for name in pods}) == 19
    remove(real, kubelets, pods)


def test_a_gang_that_fits_is_bound_whole(real: RealCluster, kubelets: Kubelets) -> None:
    """Four pairs on one machine, and a gang over a rack: its one domain is chosen beforehand."""
    pods = [f"quads-{i}" for i in range(4)]
    for name in pods:
        add(real, name, 4, {"link": "nvlink", "gpu-model": "H100*"}, {GANG: "quads"})
    for name in pods:
        real.node_of(name)
    remove(real, kubelets, pods)
    pods = [f"gang-{i}" for i in range(18)]
    for name in pods:
        add(real, name, 4, {**RACK, "group-size": "18"}, {GANG: "gang"})
    assert {real.node_of(name) for name in pods} in (set(TRAYS["east"]), set(TRAYS["west"]))
    remove(real, kubelets, pods)


def test_the_sample_fills_a_rack(real: RealCluster, kubelets: Kubelets) -> None:
    """``kubectl apply`` of the manifest that we ship, with the Job controller. Its pods stay: this
    is the last test of the module."""
    controllers = real.control_plane.start_controllers(("job-controller",))
    real.kubectl("apply", "-f", str(ROOT / "manifests" / "samples" / "groups" / "nvl72-job.yaml"))

    def pods() -> list[dict[str, Any]]:
        selected = {"labelSelector": "batch.kubernetes.io/job-name=nvl72-job"}
        return list(real.api.get(PODS, params=selected).json()["items"])

    real.until(
        lambda: sum("nodeName" in pod["spec"] for pod in pods()) == 18, "eighteen pods are bound"
    )
    nodes = {pod["spec"]["nodeName"] for pod in pods()}
    assert nodes in (set(TRAYS["east"]), set(TRAYS["west"]))
    controllers.stop()
