"""Pods that ask for GPUs by the name of their DeviceClass."""

import msgspec
import pytest

from scheduler_extender import verbs
from scheduler_extender.annotations import IMPLICIT_NAME, MANAGED
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.state.pods.record import requesting_record
from scheduler_extender.verbs import BindError
from scheduler_extender.verbs.assume import assume
from scheduler_extender.wire import Pod
from tests.dranodes import NODE, claim, two_pairs
from tests.nodes import bridged, pod
from topology.core.devices import NodeName
from topology.core.report import Report


@pytest.mark.parametrize("zero", [True, False])
def test_a_pod_that_names_the_device_class_is_judged_as_one_that_names_the_resource(
    zero: bool,
) -> None:
    """Where kube-scheduler asks about it at all; no device plugin serves it."""
    world = two_pairs()
    limits = {IMPLICIT_NAME: "2", **({"nvidia.com/gpu": "0"} if zero else {})}
    manifest = pod(
        annotations={"link": "nvlink"},
        name="a",
        uid="a",
        containers=[{"name": "main", "resources": {"limits": limits}}],
    )
    manifest["metadata"]["namespace"] = "ns"
    wanted = msgspec.convert(manifest, Pod)
    plugin = NodeName("plugin")
    world.cluster.put_node(plugin, NodeObject(exists=True))
    world.cluster.put_record(bridged(name=plugin), Report("boot", 1))
    for held, why in (("", "the next free GPUs do not meet link=nvlink"), ("other", None)):
        if held:
            world.claims.apply(claim(held, 1, pod="b"))
            world.claims.apply(claim("another", 0, pod="c"))
        answered = verbs.filter_nodes(world.cluster, wanted, [NODE, plugin])
        assert (answered.failed or {}).get(NODE) == why
        assert answered.unresolvable == {plugin: "the node's GPUs are not served by DRA"}
    record = requesting_record(wanted, MANAGED)
    assert record is not None
    world.cluster.put_pod(record)
    mapping = {"containerName": "main", "resourceName": IMPLICIT_NAME, "requestName": "r"}
    status = {"requestMappings": [mapping], "resourceClaimName": "mine"}
    manifest["status"]["extendedResourceClaimStatus"] = status
    record = requesting_record(msgspec.convert(manifest, Pod), MANAGED)
    assert record is not None
    assert (record.has_extended_resource_claim, record.extended_resource_claim) == (True, "mine")
    world.cluster.put_pod(record)
    world.claims.delete(claim("another"))
    world.claims.apply(claim("mine", 3, 0, pod="a"))
    with pytest.raises(BindError, match="link=nvlink"):
        assume(world.cluster, record, NODE, lambda: "")
    world.claims.apply(claim("mine", 3, 2, pod="a"))
    decided = assume(world.cluster, record, NODE, lambda: "")
    assert decided is not None
    assert decided.request.count == 2
