"""Bugs that are planted on purpose: the checker of :mod:`tests.chaos` finds each of them.

The late bind is done with the extender as it is, too: then nothing is found. So is a chaos run.
"""

from pathlib import Path

import pytest

from tests.chaos.checks import findings
from tests.e2e.chaos import sources
from tests.e2e.chaos.planted import VARIABLE, WRAPPER
from tests.e2e.chaos.replicas import Replica, ReplicatedCluster
from tests.e2e.chaos.workload import Workload
from tests.e2e.chaos.worlds import CUT_OFF, World, judged, kept_at, world

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings(CUT_OFF)]

LABEL = "e2e/takes-the-late-pod"
# Shorter than the one that we ship, and no slow machine lets it run out by itself.
LEASE_SECONDS = 6.0


def with_bug(cluster: ReplicatedCluster, bug: str) -> None:
    """Run the extender with a bug, or as it is where there is no name."""
    if bug:
        cluster.replace_replicas(LEASE_SECONDS, WRAPPER, **{VARIABLE: bug})
    else:
        cluster.replace_replicas(LEASE_SECONDS)


@pytest.mark.parametrize(
    ("bug", "code", "found"),
    [
        pytest.param("", 409, set(), id="as it is"),
        pytest.param("no-fence", 201, {"overbooked", "bound by deposed"}, id="no fence"),
    ],
)
def test_a_bind_that_arrives_after_another_replica_has_taken_over(
    cluster: ReplicatedCluster, tmp_path: Path, bug: str, code: int, found: set[str]
) -> None:
    """It is held up on its way. Meanwhile the GPUs that it was for are given to another pod."""
    with_bug(cluster, bug)
    kind = bug or "as-it-is"
    path = kept_at(f"late-bind-{kind}", tmp_path)
    with world(cluster, path, [("l40s-4", 1)], seed=1) as answer:
        node = next(iter(answer.kubelets.nodes))
        cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: "yes"}}})
        for i in range(4):  # so that the leader has connections that are open
            answer.submitter.create(f"{kind}-first-{i}", 1, 0.1, linked=False)
        cluster.until(lambda: not answer.unfinished(), "the first pods are over")
        leader, standby = cluster.leader(), cluster.standby()
        cluster.service.on_bind = lambda uid: leader.uplink.hold()
        answer.submitter.create(
            f"{kind}-late", 4, 0.1, linked=False, spec={"nodeSelector": {LABEL: "yes"}}
        )
        cluster.until(lambda: cluster.endpoint.port == standby.port, "the other replica leads")
        cluster.service.on_bind = None
        cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: None}}})
        answer.submitter.create(f"{kind}-other", 4, 1e6, linked=False)
        cluster.node_of(f"{kind}-other")
        leader.uplink.mend()
        cluster.until(
            lambda: late_codes(cluster, leader, f"{kind}-late"), "the late bind has its answer"
        )
        assert late_codes(cluster, leader, f"{kind}-late") == {code}
        answer.submitter.remove(f"{kind}-other")
        cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: "yes"}}})
        seen = {finding.check for finding in judged(answer.finish(), answer.history)}
    if bug:
        assert seen >= found
    else:
        assert seen == set()


def late_codes(cluster: ReplicatedCluster, writer: Replica, name: str) -> set[int]:
    """What the API server has answered to the binds of a pod by one replica."""
    return {
        write.code
        for write in sources.audited(cluster.audit)
        if (write.kind, write.name, write.source) == ("bind", name, writer.uplink.source)
        and write.code
    }


# Seconds until the agents report, on average: until then a bind in flight is all that is known.
SLOW = 2.0


@pytest.mark.parametrize("bug", ["lost-bind", "double-release"])
def test_it_finds_what_is_promised_on_a_wrong_count(
    cluster: ReplicatedCluster, tmp_path: Path, bug: str
) -> None:
    with_bug(cluster, bug)
    fleet = [("dgx1-v100", 2), ("a100-pcie-4-bridged", 1)]
    plane = cluster.control_plane
    with world(cluster, kept_at(bug, tmp_path), fleet, seed=2, look=SLOW) as answer:
        with Workload(plane, answer.history, 2, rate=8.0, prefix=bug):
            cluster.until(lambda: broken(answer), f"{bug} breaks a promise")
        judged(answer.story(), answer.history)


def broken(answer: World) -> bool:
    """Whether a promise is broken by now."""
    return "promise broken" in {finding.check for finding in findings(answer.story())}
