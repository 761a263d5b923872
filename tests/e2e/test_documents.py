"""Commands of the documents that need a cluster, on a real API server with the extender in a real
kube-scheduler, and emulated kubelets.

The pages run in an order that leaves each what it needs; tests/documents/exceptions.py says which
statements are not run, and what stands in for what is not here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.blocks import shell_blocks
from tests.documents.running import BINARIES, Ran, checkout, run, tools
from tests.e2e import building
from tests.e2e.cluster import PODS, ROOT, RealCluster
from tests.e2e.conftest import programs
from tests.e2e.emulated import Kubelets
from topology.machines import machine

pytestmark = pytest.mark.e2e

ASKING = [block for block in shell_blocks() if block.asks_a_cluster]
PAGES = sorted({block.page for block in ASKING}, key=lambda page: page != "docs/install.md")
TRAINER = machine("a100-pcie-4-bridged").topology("train-07")
OTHER = machine("hgx-h100-8").topology("h100-00")
NVLINK = {"link": "nvlink"}
DOCKER = f"""#!/bin/sh
# The image's entry point is gpu-topology; its folder /tls is the one that is mounted there.
[ "$1" = run ] || exit 0
while [ "$1" != --volume ]; do shift; done
tls="${{2%:/tls}}"
shift 3
for word do shift; [ "$word" = /tls ] && word="$tls"; set -- "$@" "$word"; done
exec {BINARIES}/gpu-topology "$@"
"""


@pytest.fixture(scope="module")
def real(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Two nodes; the pods of which the pages speak."""
    with RealCluster(tmp_path_factory.mktemp("documents"), control_plane_binaries) as cluster:
        cluster.control_plane.start_controllers(
            ("serviceaccount-controller", "resourcequota-controller", "namespace-controller")
        )
        for node in (TRAINER, OTHER):
            cluster.add_machine(node)
        with Kubelets(cluster, [TRAINER, OTHER], seed=1):
            yield cluster


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with programs beside it."""
    folder = tmp_path_factory.mktemp("reader")
    bin_ = tools(folder / "bin", docker=DOCKER)
    (bin_ / "helm").symlink_to(programs(building.HELM) / "helm")
    found = checkout(folder)
    shutil.copy(ROOT / "manifests/samples/pair-nvlink.yaml", found / "pair.yaml")
    text = (found / "pair.yaml").read_text().replace("link: nvlink", "link: nvlnk")
    (found / "pair.yaml").write_text(text)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(page: str, real: RealCluster, here: Path) -> None:
    home = {f"HELM_{k}_HOME": str(here.parent / k) for k in ("CACHE", "CONFIG", "DATA")}
    given = {
        "KUBECONFIG": str(real.control_plane.kubeconfig()),
        "ADMIN_PORT": str(real.ports[1]),
        "IMAGE": "registry.example.com/team/gpu-topology",
        **home,
    }
    every = run([b for b in ASKING if b.page == page], here, [here.parent / "bin"], given)
    assert every
    failed = [str(ran) for ran in every if not ran.is_well()]
    assert not failed, "\n\n".join(failed)
