"""``why`` scores the node of a nominated pod as prioritize does."""

import msgspec

from scheduler_extender import verbs
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.wire import Pod
from tests.dranodes import NODE, two_pairs
from tests.nodes import pod, record_of, switched
from tests.scheduler_extender.evictions.scenes import cluster_of


def test_a_node_that_kube_scheduler_has_nominated_under_dra_has_its_score() -> None:
    world = two_pairs()
    asks = {"min-gpu-memory": "1Gi"}
    waits = pod(1, asks, name="w", uid="w", nominatedNodeName=NODE)
    world.cluster.put_pod(record_of(waits))
    wire = msgspec.convert(waits, Pod)
    assert verbs.filter_nodes(world.cluster, wire, [NODE]).node_names == [NODE]
    (scored,) = verbs.prioritize(world.cluster, wire, [NODE])
    (answer,) = answers_to(world.cluster.snapshot(), record_of(waits))
    assert answer.may_come
    assert answer.score == scored.score


def test_a_node_to_which_a_nominated_pod_is_being_bound_has_no_score() -> None:
    """With the device plugin a pod counts as assumed only from its bind on."""
    node = switched(4, "n")
    cluster = cluster_of({node: {}})
    waits = record_of(pod(1, name="w", uid="w", nominatedNodeName=node.name))
    cluster.put_pod(waits)
    assert [answer.score for answer in answers_to(cluster.snapshot(), waits)] == [10]
    assert cluster.assume(node.name, waits)
    assert [answer.score for answer in answers_to(cluster.snapshot(), waits)] == [None]
