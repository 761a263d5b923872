"""docs/reference/metrics.md names the metrics of a replica that runs, and no others."""

import re
from pathlib import Path

from scheduler_extender.kube.bindable import OwnPod
from scheduler_extender.leader.address import Address
from scheduler_extender.leader.leader import Replication
from scheduler_extender.serving import replica_service
from scheduler_extender.state.answers.decision import Settings
from tests.fakes.apiserver import FakeApiServer
from topology.kubeapi.apiserver import ApiServer

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
WITH_TLS = {"tls_expires_timestamp_seconds", "tls_reload_failing"}
WITH_TLS |= {"tls_reloads_total", "tls_reloads_failed_total"}
IN_SHADOW = {"shadow", "would_have_rejected_total", "would_have_waited_total"}


def test_the_page_names_every_metric(tmp_path: Path) -> None:
    page = PAGE.read_text().partition("\n## The agents")[0]
    named = set(re.findall(r"^\|`gpu_topology_([a-z_]+)[`{]", page, re.MULTILINE))
    with FakeApiServer() as fake:
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        replication = Replication(
            OwnPod("ns", "a"), seconds=2.0, address=Address("10.0.0.1", 8888, "x")
        )
        with replica_service(api, Settings(), replication) as (service, _):
            families = list(service.metrics.registry.collect())
    total = {"counter": "_total"}
    found = {family.name + total.get(family.type, "") for family in families}
    ours = {n.removeprefix("gpu_topology_") for n in found if n.startswith("gpu_topology_")}
    assert named == ours | WITH_TLS | IN_SHADOW
