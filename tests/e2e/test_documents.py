"""Commands of the documents that need a cluster, on a real API server with the extender in a real
kube-scheduler, and emulated kubelets.

The pages run in an order that leaves each what it needs; tests/documents/exceptions.py says which
statements are not run, and what stands in for what is not here.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.documents import exceptions
from tests.documents.blocks import INSTALLING, SECOND, Block, shell_blocks, statements, steps
from tests.documents.running import Ran, checkout, run, tools
from tests.e2e import building
from tests.e2e.cluster import PODS, ROOT, RealCluster
from tests.e2e.conftest import programs
from tests.e2e.controlplane import ControlPlane
from tests.e2e.emulated import Kubelets
from tests.e2e.hookjobs import jobs_run
from topology.machines import machine

pytestmark = pytest.mark.e2e

# tests/e2e/test_install.py runs these; what they install is there in the cluster of this file.
INSTALLED = [block for kind in INSTALLING for block in steps(kind)[:-1]]
CERTIFICATES = steps("kubeadm")[2]  # which another page renews
ASKING = [
    block
    for block in shell_blocks()
    if block.asks_a_cluster and (block not in INSTALLED or block == CERTIFICATES)
]
# Pages that go on from a release of Helm's.
CHART = ("docs/install/upgrade.md", "docs/install/managed.md")
PLAYED = "docs/install/kind.md"  # tests/e2e/test_play.py runs it
# The first two need an empty cluster, the third pods that wait; the fourth lets one of them in.
FIRST = [
    "docs/install/kubeadm.md",
    "docs/reference/map.md",
    "docs/tasks/why.md",
    "docs/tasks/idle-gpus.md",
]
RUN = {b.page for b in ASKING if any(not exceptions.why_not_run(b, s) for s in statements(b))}
PAGES = [*FIRST, *sorted(RUN - {*CHART, *FIRST, PLAYED})]
TRAINER = machine("a100-pcie-4-bridged").topology("train-07")
OTHER = machine("hgx-h100-8").topology("h100-00")
TEAM = "/api/v1/namespaces/team-a"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Two nodes; and the pods and their owners of which the pages speak."""
    with RealCluster(tmp_path_factory.mktemp("documents"), control_plane_binaries) as cluster:
        controllers = ("resourcequota-controller", "disruption-controller")
        cluster.control_plane.start_controllers(controllers)
        for node in (TRAINER, OTHER):
            cluster.add_machine(node)
        with Kubelets(cluster, [TRAINER, OTHER], seed=1):
            people_of(cluster)
            yield cluster


def people_of(cluster: RealCluster) -> None:
    """Node train-07 is full; team-a/train waits for a pair there and evicts no pod by itself."""
    cluster.add_priority_class("patient", 1000, preemptionPolicy="Never")
    for number in range(4):
        cluster.add_pod(f"serve-{number}", 1, **THERE)
        assert cluster.node_of(f"serve-{number}") == TRAINER.name
    cluster.create("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    cluster.create(f"{TEAM}/serviceaccounts", {"metadata": {"name": "default"}})
    cluster.create(f"{TEAM}/pods", pod("train", priorityClassName="patient"))
    cluster.until(lambda: waits(cluster), "team-a/train waits")
    for path, body in owners():
        cluster.create(path, body)
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / VALIDATION))
    wrong = pod("tried", link="nvlnk")
    dry = {"dryRun": "All"}
    cluster.until(
        lambda: not cluster.api.post(PODS, json=wrong, params=dry).is_success,
        "the policy on annotations is in force",
    )


VALIDATION = "manifests/base/options/validation/policies.yaml"


def pod(name: str, link: str = "nvlink", **spec: Any) -> dict[str, Any]:
    """A pod that asks for a pair of GPUs such as train-07 has."""
    annotations = {"gpu-topology.io/link": link, "gpu-topology.io/gpu-model": "A100*"}
    container = {"name": "main", "image": "example/work", "resources": {"limits": {GPU: "2"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [container], **spec},
    }


def waits(cluster: RealCluster) -> bool:
    """Whether kube-scheduler has said that team-a/train fits nowhere."""
    found = cluster.api.get(f"{TEAM}/pods/train").json()["status"].get("conditions", [])
    return any(condition.get("reason") == "Unschedulable" for condition in found)


THERE = {"nodeSelector": {"kubernetes.io/hostname": TRAINER.name}}


def owners() -> list[tuple[str, dict[str, Any]]]:
    """A Deployment and a Job called train, which have made no pods yet; and the DeviceClass that
    comes with NVIDIA's driver."""
    labels = {"app": "train"}
    asked = pod("train")
    template = {"metadata": {**asked["metadata"], "labels": labels}, "spec": asked["spec"]}
    once = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
    named = {"metadata": {"name": "train"}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    of_driver = {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}
    return [
        (
            "/apis/resource.k8s.io/v1/deviceclasses",
            {"metadata": {"name": "gpu.nvidia.com"}, "spec": of_driver},
        ),
        ("/apis/apps/v1/namespaces/default/deployments", {**named, "spec": spec}),
        ("/apis/batch/v1/namespaces/default/jobs", {**named, "spec": {"template": once}}),
    ]


def reader(folder: Path) -> Path:
    """A checkout with programs beside it."""
    beside = tools(folder / "bin")
    (beside / "helm").symlink_to(programs(building.HELM) / "helm")
    return checkout(folder)


def ran(asking: list[Block], here: Path, given: Mapping[str, str]) -> list[Ran]:
    """What commands of the pages did; all of them ended well."""
    beside = here.parent
    home = {f"HELM_{k}_HOME": str(beside / k) for k in ("CACHE", "CONFIG", "DATA")}
    every = run(asking, here, [beside / "bin"], {**home, **given})
    assert every
    failed = [str(one) for one in every if not one.is_well()]
    assert not failed, "\n\n".join(failed)
    return every


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reader(tmp_path_factory.mktemp("reader"))


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(page: str, real: RealCluster, here: Path) -> None:
    given = {
        "KUBECONFIG": str(real.control_plane.kubeconfig()),
        "ADMIN_PORT": str(real.ports[1]),
    }
    for one in ran([block for block in ASKING if block.page == page], here, given):
        if one.block.language == "console":
            assert one.stdout + one.stderr == one.block.text.partition("\n")[2]


def test_the_chart_is_installed_as_the_pages_say(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("chart")
    with (
        ControlPlane(folder, control_plane_binaries) as plane,
        jobs_run(plane, "gpu-topology-system"),
    ):
        given = {"KUBECONFIG": str(plane.kubeconfig())}
        release = steps(SECOND)[:2]
        asking = [block for page in CHART for block in ASKING if block.page == page]
        ran([*release, *asking], reader(tmp_path_factory.mktemp("reader")), given)
