"""What an allocator's traits say of a node decides about pods there, and not the policy's name."""

from dataclasses import replace

import pytest

from scheduler_extender.framework.evaluator import evaluate
from scheduler_extender.framework.question import Purpose, Question
from scheduler_extender.framework.setrules.claims import HAD_CLAIM
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.node.objects import NodeObject
from tests.nodes import bridged, pod, record_of
from topology.core.allocators import ALLOCATORS
from topology.core.allocators.dra import Dra
from topology.core.devices import GpuResource, NodeName, PodUid
from topology.core.dra import Claimed, Published, served
from topology.core.graph import AllocatorConfig
from topology.core.placement import NOT_SERVED_BY_DRA
from topology.core.report import Report

NODE = NodeName("node-a")
UID = PodUid("nominee")
MAPPING = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}


class WithClaims(Dra):
    """First fit of another vendor, to claims."""

    name = "third-with-claims"


class WithPlugin(Dra):
    """The same by a device plugin."""

    name = "third-with-plugin"
    serves_claims = False
    allocates_before_bind = False


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for planted in (WithClaims(), WithPlugin()):
        monkeypatch.setitem(ALLOCATORS, planted.name, planted)


def cluster_of(policy: str) -> Cache:
    """One node of four GPUs, which this policy hands out."""
    cluster = Cache(lambda: 0.0)
    topology, report = bridged(name=NODE), Report("boot", 1)
    if ALLOCATORS[policy].serves_claims:
        published = [Published("pool", f"gpu-{i}", f"GPU-{i}") for i in range(4)]
        claimed = [Claimed("pool", "gpu-0", PodUid("other"), "default", "other", claim="its")]
        bare = replace(topology, resources=())
        topology, report = served(bare, report, "nvidia.com/gpu", published, claimed)
        config = replace(topology.allocator, policy=policy)
    else:
        config = AllocatorConfig(policy)
    topology = topology.served(GpuResource("nvidia.com/gpu"), config)
    cluster.put_node(NODE, NodeObject(exists=True))
    cluster.put_record(topology, report)
    return cluster


def why(cluster: Cache, manifest: dict[str, object]) -> object:
    question = Question(record_of(manifest), Purpose.FILTER)
    return evaluate(cluster.snapshot(), question).decisions[NODE].rejection


@pytest.mark.parametrize("policy", ["dra", WithClaims.name, "any", WithPlugin.name])
def test_nominee(policy: str) -> None:
    """Where devices are allocated before the bind it has some; elsewhere a place is kept for it."""
    cluster, manifest = cluster_of(policy), pod(1, {}, name=UID, uid=UID)
    manifest["status"]["nominatedNodeName"] = NODE
    cluster.put_pod(record_of(manifest))
    info = cluster.node_info(NODE)
    assert (UID in info.pods.assumed) == info.allocates_before_bind
    assert info.is_reserved_for(UID) == (not info.allocates_before_bind)
    assert info.allocates_before_bind == ALLOCATORS[policy].allocates_before_bind


@pytest.mark.parametrize("policy", ["dra", WithClaims.name, "any", WithPlugin.name])
def test_pod_that_asks_by_a_device_class(policy: str) -> None:
    """Only where claims are served."""
    asked = pod(1, {}, name="p", uid="p")
    (container,) = asked["spec"]["containers"]
    resource = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    container["resources"] = {"limits": {resource: "1"}}
    found = why(cluster_of(policy), asked)
    assert (found == NOT_SERVED_BY_DRA) == (not ALLOCATORS[policy].serves_claims)


@pytest.mark.parametrize("policy", ["dra", WithClaims.name, "any", WithPlugin.name])
def test_pod_whose_status_names_a_claim(policy: str) -> None:
    """A kubelet beside a plugin does not start it."""
    asked = pod(1, {}, name="p", uid="p")
    named = {"resourceClaimName": "former", "requestMappings": [MAPPING]}
    asked["status"]["extendedResourceClaimStatus"] = named
    found = why(cluster_of(policy), asked)
    assert (found == HAD_CLAIM) == (not ALLOCATORS[policy].serves_claims)


@pytest.mark.parametrize("policy", ["dra", WithClaims.name])
def test_which_pod_has_a_device(policy: str) -> None:
    """A claim lasts: what it has is not about to become free, though its pod is not known."""
    offer = cluster_of(policy).node_info(NODE).last_offer("nvidia.com/gpu")
    expected = cluster_of("dra").node_info(NODE).last_offer("nvidia.com/gpu")
    assert not hasattr(offer, "reason")
    assert not hasattr(expected, "reason")
    assert offer.availability == expected.availability
