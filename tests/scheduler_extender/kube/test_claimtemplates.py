"""The leader's ResourceClaimTemplates: made, made anew, removed; those of others are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import MANAGED, PREFIX
from scheduler_extender.claims import LABEL, WANTED, template_name
from scheduler_extender.kube.claimtemplates import (
    AGAIN,
    AT_ONCE,
    EARLY_BURST,
    EARLY_RATE,
    LISTED_FOR,
    MANAGER,
    MOST,
    MOST_FAILURES,
    MOST_IN_ALL,
    OURS,
    PAGE,
    SECONDS,
    SETS,
    SETTLED,
    Claimants,
    ClaimTemplates,
    claimant_of,
)
from scheduler_extender.kube.sinks import PodSink
from scheduler_extender.state.cluster.cluster import Cluster
from scheduler_extender.wire import Pod
from tests.dranodes import NODE, DraWorld, a_slice, device, device_class, raw
from tests.fakes.apiserver import FakeApiServer
from topology.core.devices import PodUid
from topology.core.report import Report
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

Json = dict[str, Any]
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"
PAIR = "gpu-topology-2.link.nvlink"


def pod(name: str, count: int = 2, template: str = "", **asked: str) -> Json:
    """A pod as the policy leaves it; annotations come without our prefix."""
    ours = {PREFIX + key.replace("_", "-"): value for key, value in asked.items()}
    named = template or template_name(count, ours)
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "labels": {LABEL: WANTED},
            "annotations": ours,
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "0"}}}],
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": named}],
        },
    }


def serve(world: DraWorld, kind: str) -> DraWorld:
    """The one node is such a machine now, and its driver publishes all its GPUs."""
    node = machine(kind).topology(NODE)
    world.nodes.put_record(node, Report("boot", 2, allocatable=frozenset()))
    named = [{"type": {"string": "gpu"}, "uuid": {"string": gpu.uuid}} for gpu in node.gpus]
    devices = [{**device(index), "attributes": each} for index, each in enumerate(named)]
    world.slices.apply(a_slice(*devices))
    return world


class World:
    """A leader before a fake API server, with one node of two bridged pairs."""

    def __init__(self, fake: FakeApiServer, api: ApiServer, dra: DraWorld) -> None:
        self.fake, self.dra = fake, dra
        self.told: list[tuple[str, str]] = []
        self.now = self.spent = 0.0
        self.step = 0.0  # seconds that pass at each look at the clock within a round
        self.claimants = Claimants(MANAGED)
        self.sink = PodSink(dra.cluster, claimants=self.claimants)
        self.leader = self.another(api, dra.cluster)
        self.label("team")

    def another(self, api: ApiServer, cluster: Cluster) -> ClaimTemplates:
        return ClaimTemplates(
            cluster,
            api,
            self.claimants,
            lambda pod, text: self.told.append((pod.name, text)),
            self.clock,
        )

    def clock(self) -> float:
        self.spent += self.step
        return self.spent

    def label(self, name: str, value: str = WANTED) -> None:
        metadata = {"name": name, "labels": {LABEL: value}}
        self.fake.put("/api/v1/namespaces", {"metadata": metadata})

    def add(self, *pods: Json) -> None:
        for each in pods:
            self.sink.apply(raw(each))

    def rounds(self, seconds: float = 1.0) -> None:
        """So many seconds pass, with a round in each."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1.0
            self.leader.round(self.now)

    @property
    def names(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.fake.items(TEMPLATES)]

    def template(self, name: str = PAIR) -> Json:
        return self.fake.read(f"{TEMPLATES}/{name}")

    def lists(self) -> int:
        return sum(each.path == "/api/v1/namespaces" for each in self.fake.requests)

    def writes(self) -> int:
        return sum(each.method != "GET" for each in self.fake.requests)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakeApiServer() as fake:
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        world = DraWorld()
        world.classes.apply(device_class())
        yield World(fake, api, serve(world, "a100-pcie-4-bridged"))
        api.close()


def test_a_template_is_made_for_a_waiting_pod(world: World) -> None:
    world.add(pod("a", link="nvlink"), pod("b", link="nvlink"))
    world.rounds(5)
    assert world.names == [PAIR]
    made = world.template()
    assert made["metadata"]["labels"] == {MANAGER: OURS}
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    assert [each["count"] for each in request["firstAvailable"]] == [2, 2]
    assert (world.told, world.writes()) == ([], 1)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (pod("a", template=PAIR, link="pix"), f"{PAIR} is not the name for 2 GPUs"),
        (pod("a", template=PAIR, link="nvlnk"), 'link="nvlnk": allowed are nvlink, pix'),
        (pod("a", template="gpu-topology-2"), "no annotation of it requires anything"),
        (pod("a", template=PAIR, link="nvlink", policy="preferred"), "requires anything"),
        (pod("a", link="nvlink", min_nvlinks="18"), "no set of 2 GPUs with link=nvlink min-nvlin"),
        (pod("a", 3, link="nvlink"), "no set of 3 GPUs with link=nvlink can be named"),
    ],
    ids=["annotation", "unreadable", "nothing", "preferred", "no-such-links", "no-three"],
)
def test_why_no_template_is_made_is_told_once(world: World, asked: Json, why: str) -> None:
    world.add(asked)
    world.rounds(LISTED_FOR)
    ((name, text),) = world.told
    assert name == "a"
    assert text.startswith("no ResourceClaimTemplate is made for it: ")
    assert why in text
    assert world.writes() == 0


@pytest.mark.parametrize("labels", [None, {LABEL: "yes"}, {"claims": WANTED}])
def test_a_pod_that_does_not_want_a_claim_is_no_concern(labels: Json | None) -> None:
    found = pod("a", link="nvlink")
    found["metadata"]["labels"] = labels
    assert claimant_of(msgspec.convert(found, Pod), MANAGED) is None


def test_an_unlabelled_namespace_gets_none(world: World) -> None:
    world.label("team", "no")
    world.add(pod("a", link="nvlink"))
    world.rounds(5)
    ((_, text),) = world.told
    assert text.endswith("the namespace team has no label gpu-topology.io/claims=dra")
    world.label("team")
    world.rounds(LISTED_FOR)
    assert world.names == [PAIR]


def test_what_no_pod_names_is_removed_and_what_one_names_stays(world: World) -> None:
    world.add(pod("a", link="nvlink"), pod("b", gpu_model="A100*"))
    world.rounds()
    running = pod("a", link="nvlink")
    running["spec"]["nodeName"] = "node"
    world.add(running)
    ended = pod("b", gpu_model="A100*")
    world.add({**ended, "status": {"phase": "Succeeded"}})
    world.rounds(SETTLED - 1)
    assert len(world.names) == 2, "it may be named again soon"
    world.rounds(2 * SETTLED)
    assert world.names == [PAIR]
    world.sink.delete(raw(running))
    world.rounds(2 * SETTLED)
    assert world.names == []


def test_a_list_of_pods_forgets_those_that_are_gone(world: World) -> None:
    world.add(pod("a", link="nvlink"))
    world.rounds()
    world.sink.replace([], "1")
    world.rounds(2 * SETTLED)
    assert world.names == []


def test_it_is_made_anew_where_the_machines_have_other_sets(world: World) -> None:
    world.add(pod("a", link="nvlink"))
    world.rounds()
    before = world.template()
    serve(world.dra, "hgx-h100-8")
    world.rounds(SETTLED - 1)
    assert world.template() == before, "the machines may be as they were again soon"
    world.rounds(10)
    after = world.template()
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert "NVIDIA H100" in str(after["spec"])
    assert world.writes() == 3
    world.rounds(3 * LISTED_FOR)
    assert world.template() == after


def test_what_could_not_be_made_again_stays(world: World) -> None:
    """The namespace has lost its label, and the machines have other sets."""
    world.add(pod("a", link="nvlink"))
    world.rounds(2)
    before = world.template()
    world.fake.put("/api/v1/namespaces", {"metadata": {"name": "team"}})
    world.rounds(LISTED_FOR + 1)
    serve(world.dra, "hgx-h100-8")
    world.rounds(2 * SETTLED)
    assert world.template() == before, "the policy beside the role would refuse another"


def test_without_machines_it_stays_as_it_is(world: World) -> None:
    world.add(pod("a", link="nvlink"))
    world.rounds()
    world.dra.slices.replace([], "2")
    world.rounds(LISTED_FOR + SETTLED)
    assert world.names == [PAIR]
    assert world.writes() == 1


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({}, id="no-label"),
        pytest.param({"labels": {MANAGER: "Helm"}, "annotations": {SETS: "1"}}, id="helms"),
        pytest.param({"labels": {MANAGER: OURS}}, id="no-digest"),
    ],
)
@pytest.mark.parametrize("name", [PAIR, "gpu-topology-mine", "gpu-topology-2"])
def test_a_template_of_others_is_left_alone(world: World, metadata: Json, name: str) -> None:
    theirs = {"metadata": {"name": name, **metadata}, "spec": {"theirs": True}}
    world.fake.put(TEMPLATES, theirs)
    before = world.template(name)
    world.add(pod("a", link="nvlink"))
    world.rounds(3 * LISTED_FOR)
    assert world.template(name) == before
    assert (PAIR in world.names) is True
    texts = [text for _, text in world.told]
    assert (len(texts) == 1 and "is not ours, and is left" in texts[0]) == (name == PAIR)


def test_a_namespace_has_so_many_at_most(world: World) -> None:
    """A thousand requests of one namespace; another namespace does not suffer."""
    world.add(*(pod(f"p-{i}", gpu_model=f"A100*,X{i}") for i in range(1000)))
    other = pod("other", link="nvlink")
    other["metadata"]["namespace"] = "elsewhere"
    world.label("elsewhere")
    world.add(other)
    world.rounds(10)
    assert len(world.names) == MOST
    assert world.fake.items("/apis/resource.k8s.io/v1/namespaces/elsewhere/resourceclaimtemplates")
    assert {text for _, text in world.told} == {
        "no ResourceClaimTemplate is made for it: for pods of the namespace team there are 50, "
        "and no more are allowed"
    }
    assert world.writes() == MOST + 1
    for i in range(1000):
        if f"p-{i}" not in {name for name, _ in world.told} and i < 500:
            world.sink.delete(raw(pod(f"p-{i}")))
    world.rounds(3 * SETTLED)
    assert len(world.names) == MOST, "others have taken the places of those that are gone"
    assert world.writes() > MOST + 1


@pytest.mark.parametrize("forged", [MOST_IN_ALL, 2 * MOST_IN_ALL + PAGE])
def test_templates_where_nobody_opted_in_use_up_no_bound(world: World, forged: int) -> None:
    """They look like ours, and come first in the list; somebody who may write them made them."""
    metadata = {"labels": {MANAGER: OURS}, "annotations": {SETS: "forged"}}
    where = TEMPLATES.replace("/team/", "/a/")
    for i in range(forged):
        world.fake.put(where, {"metadata": {"name": f"gpu-topology-1.link.x{i}", **metadata}})
    ours = {"metadata": {"name": PAIR, **metadata}}
    world.fake.put(TEMPLATES, ours)
    world.add(pod("a", link="nvlink"), pod("b", gpu_model="A100*"))
    world.rounds(2)
    assert len(world.names) == 2
    assert world.told == []


def test_requests_that_no_machine_meets_hold_up_no_other_namespace(world: World) -> None:
    world.step = 0.6 * SECONDS  # two requests in a round
    world.add(*(pod(f"p-{i}", gpu_model=f"X{i}") for i in range(20)))
    other = pod("other", link="nvlink")
    other["metadata"]["namespace"] = "elsewhere"
    world.label("elsewhere")
    world.add(other)
    world.rounds(2)
    assert world.fake.items("/apis/resource.k8s.io/v1/namespaces/elsewhere/resourceclaimtemplates")


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_template_that_cannot_be_deleted_holds_up_no_other(world: World, status: int) -> None:
    world.add(*(pod(f"p-{i}", gpu_model=f"A100*,X{i}") for i in range(3)))
    world.rounds()
    world.claimants.keep(set())
    world.fake.refuse(status, None, path=f"{world.names[0]}$")
    world.rounds(SETTLED + (3 if status < 500 else 2 * AGAIN))
    assert len(world.names) == 1
    deletes = sum(each.method == "DELETE" for each in world.fake.requests)
    assert deletes == 3, "it is not tried again at once"
    world.fake.allow()
    world.rounds(LISTED_FOR + AGAIN)
    assert world.names == []


def test_a_template_that_somebody_keeps_from_going_is_made_anew_once_it_is_gone(
    world: World,
) -> None:
    world.add(pod("a", link="nvlink"))
    world.rounds()
    going = world.template()
    going["metadata"] |= {"finalizers": ["x/y"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.fake.put(TEMPLATES, going)
    world.rounds(LISTED_FOR + AGAIN)
    ((_, text),) = world.told
    assert text.endswith(f"the ResourceClaimTemplate {PAIR} is being deleted")
    writes = world.writes()
    assert writes == 1, "it is deleted already"
    world.fake.remove(f"{TEMPLATES}/{PAIR}")
    world.rounds(AGAIN + 1)
    assert "deletionTimestamp" not in world.template()["metadata"]


def test_a_round_writes_so_much_at_most(world: World) -> None:
    world.add(*(pod(f"p-{i}", gpu_model=f"A100*,X{i}") for i in range(40)))
    world.rounds(1)
    assert len(world.names) == AT_ONCE


def test_a_round_works_out_so_much_at_most(world: World) -> None:
    world.step = 0.6 * SECONDS
    world.add(*(pod(f"p-{i}", gpu_model=f"A100*,X{i}") for i in range(10)))
    world.rounds(1)
    assert len(world.names) == 1
    world.rounds(10)
    assert len(world.names) == 10
    serve(world.dra, "hgx-h100-8")
    world.rounds(2 * SETTLED)
    assert len(world.names) == 10, "what has not been worked out stays"


@pytest.mark.parametrize("status", [403, 429, 500, 503])
@pytest.mark.parametrize("path", ["/api/v1/namespaces", ".*resourceclaimtemplates"])
def test_it_goes_on_after_failures(world: World, status: int, path: str) -> None:
    world.fake.refuse(status, None, path=path)
    world.add(pod("a", link="nvlink"))
    world.rounds(AGAIN)
    assert world.names == []
    asked = len(world.fake.requests)
    assert asked <= 4, "it does not ask all the time"
    world.fake.allow()
    world.rounds(AGAIN + LISTED_FOR)
    assert world.names == [PAIR]


def test_a_namespace_whose_webhook_is_down_holds_up_no_other(world: World) -> None:
    world.fake.refuse(500, None, path=f"{TEMPLATES}$")
    world.add(*(pod(f"p-{i}", gpu_model=f"A100*,X{i}") for i in range(20)))
    other = pod("other", link="nvlink")
    other["metadata"]["namespace"] = "elsewhere"
    world.label("elsewhere")
    world.add(other)
    world.rounds(3 * AGAIN)
    assert world.fake.items("/apis/resource.k8s.io/v1/namespaces/elsewhere/resourceclaimtemplates")
    assert world.names == []
    assert any("the API server fails: " in text for _, text in world.told)
    world.fake.allow()
    world.rounds(AGAIN + LISTED_FOR)
    assert len(world.names) == 20


def test_what_the_api_server_refuses_holds_up_no_other(world: World) -> None:
    world.fake.refuse(403, 1, path=f"{TEMPLATES}$")
    world.add(pod("a", link="nvlink"), pod("b", gpu_model="A100*"))
    world.rounds(2)
    assert len(world.names) == 1
    ((_, text),) = world.told
    assert "the API server refuses it: " in text
    world.rounds(LISTED_FOR + 2)
    assert len(world.names) == 2


def test_an_answer_that_was_lost(world: World) -> None:
    world.fake.commit_then_hang(f"{TEMPLATES}$")
    world.add(pod("a", link="nvlink"))
    world.rounds(1)
    world.fake.allow()
    world.rounds(2 * AGAIN)
    assert world.names == [PAIR]
    assert world.told == []


def test_two_that_lead_in_turn(world: World, tmp_path: Path) -> None:
    """The former leader, which believes for a while that it leads, harms nothing."""
    api = ApiServer.from_kubeconfig(world.fake.write_kubeconfig(tmp_path / "second"))
    former = world.another(api, world.dra.cluster)
    former.round(0.0)
    world.add(pod("a", link="nvlink"))
    world.rounds(1)
    made = world.template()
    for now in range(1, int(LISTED_FOR)):
        former.round(float(now))
    assert world.template() == made
    assert world.told == []
    world.sink.delete(raw(pod("a")))
    world.rounds(2 * SETTLED)
    world.add(pod("b", link="nvlink"))
    world.rounds(2)
    fresh = world.template()
    assert fresh["metadata"]["uid"] != made["metadata"]["uid"]
    world.claimants.keep(set())
    for now in range(200, 230):
        former.round(float(now))
    assert world.template() == fresh, "what it knows by another UID it does not remove"
    api.close()


def forge(world: World, namespace: str, count: int, first: int = 0) -> None:
    """Templates that look like ours; somebody who may write them made them."""
    world.label(namespace)
    metadata = {"labels": {MANAGER: OURS}, "annotations": {SETS: "forged"}}
    where = TEMPLATES.replace("/team/", f"/{namespace}/")
    for i in range(first, first + count):
        world.fake.put(where, {"metadata": {"name": f"gpu-topology-1.link.x{i}", **metadata}})


def elsewhere(name: str, namespace: str, count: int = 2, **asked: str) -> Json:
    found = pod(name, count, **asked)
    found["metadata"]["namespace"] = namespace
    return found


def test_a_labelled_namespace_uses_up_no_more_than_its_share(world: World) -> None:
    forge(world, "a", MOST_IN_ALL)
    world.add(pod("p", link="nvlink"))
    world.rounds(2)
    assert world.names == [PAIR]
    assert world.told == []


def test_removals_in_one_namespace_hold_up_none_of_another(world: World) -> None:
    """Somebody forges as many as a round removes, all the time."""
    world.add(pod("p", link="nvlink"))
    world.rounds()
    before = world.template()["metadata"]["uid"]
    forge(world, "a", 40 * AT_ONCE)
    world.rounds(LISTED_FOR + 1)
    serve(world.dra, "hgx-h100-8")
    world.rounds(SETTLED + 7)
    assert world.template()["metadata"]["uid"] != before


def test_pods_of_one_namespace_delay_no_word_to_another(world: World) -> None:
    world.label("a")
    world.add(*(elsewhere(f"p-{i}", "a", 3, link="nvlink") for i in range(100)))
    world.add(pod("other", 3, link="nvlink"))
    world.rounds(2)
    assert "other" in {name for name, _ in world.told}


def test_that_there_are_too_many_is_told_once(world: World) -> None:
    """Their number falls with each round; the text does not say it."""
    forge(world, "team", 10 * AT_ONCE)
    world.add(pod("p", link="nvlink"))
    world.rounds(SETTLED + 10)
    assert len(world.told) == 1


@pytest.mark.parametrize("status", [409, 429])
def test_what_passes_by_itself_is_tried_again_soon(world: World, status: int) -> None:
    """A quota that others write at the same time ends in 409, too, and not as AlreadyExists."""
    world.fake.refuse(status, 1, path=f"{TEMPLATES}$")
    world.add(pod("p", link="nvlink"))
    world.rounds(AGAIN + 2)
    assert world.names == [PAIR]
    assert not any("is not ours" in text for _, text in world.told)


def test_one_of_ours_is_not_called_anothers_while_it_goes(world: World) -> None:
    """We have deleted it, and somebody's finalizer keeps it: a new pod finds it in the way."""
    world.add(pod("p", link="nvlink"))
    world.rounds()
    going = world.template()
    world.claimants.keep(set())
    world.rounds(SETTLED + 2)
    assert world.names == []
    going["metadata"] |= {"finalizers": ["x/y"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.fake.put(TEMPLATES, going)
    world.add(pod("q", link="nvlink"))
    world.rounds(AGAIN)
    world.fake.remove(f"{TEMPLATES}/{PAIR}")
    world.rounds(AGAIN + 2)
    assert world.names == [PAIR]
    assert {text.rpartition(": ")[2] for _, text in world.told} == {
        f"the ResourceClaimTemplate {PAIR} is being deleted"
    }


def test_a_leader_that_leads_again_looks_first(world: World) -> None:
    """Meanwhile another has removed what it knew."""
    world.add(pod("p", link="nvlink"))
    world.rounds(2)
    world.fake.remove(f"{TEMPLATES}/{PAIR}")
    world.now += 20
    world.rounds(2)
    assert world.names == [PAIR]


def exists(world: World, namespace: str, name: str = PAIR) -> bool:
    where = TEMPLATES.replace("/team/", f"/{namespace}/")
    return any(each["metadata"]["name"] == name for each in world.fake.items(where))


@pytest.mark.parametrize("lost", [False, True])
def test_a_failure_in_one_namespace_does_not_end_the_round(world: World, lost: bool) -> None:
    """Its webhook is down, and it came first."""
    world.label("a")
    where = TEMPLATES.replace("/team/", "/a/")
    if lost:
        world.fake.commit_then_hang(where)
    else:
        world.fake.refuse(500, None, path=where)
    world.add(*(elsewhere(f"p-{i}", "a", gpu_model=f"A100*,X{i}") for i in range(20)))
    world.add(pod("other", link="nvlink"))
    world.rounds(1)
    assert world.names == [PAIR]
    if lost:
        return  # each write takes two seconds
    world.claimants.drop(PodUid("other"))
    world.rounds(SETTLED + 1)
    assert world.names == []


def test_a_removal_that_fails_does_not_end_the_round(world: World) -> None:
    world.label("a")
    world.add(elsewhere("p", "a", link="nvlink"), pod("q", link="nvlink"))
    world.rounds()
    world.fake.refuse(500, None, path="/a/resourceclaimtemplates/")
    world.claimants.keep(set())
    world.rounds(SETTLED + 1)
    assert exists(world, "a")
    assert world.names == []


def test_namespaces_that_fail_come_last(world: World) -> None:
    """There are more of them than failures in a round."""
    for i in range(40):
        world.label(f"a{i}")
        world.add(elsewhere(f"p-{i}", f"a{i}", link="nvlink"))
    world.fake.refuse(500, None, path="/a[0-9]*/resourceclaimtemplates")
    world.add(pod("q", link="nvlink"))
    world.rounds(20)
    for i in range(1, int(LISTED_FOR)):
        world.add(pod(f"q-{i}", gpu_model=f"A100*,X{i}"))
        world.rounds()
        assert len(world.names) == min(i + 1, MOST)


def test_removals_that_fail_come_last(world: World) -> None:
    """There are more of them than a round makes, and than are held up at a time."""
    for i in range(40):
        forge(world, f"a{i}", 10)
    world.fake.refuse(500, None, path="/a[0-9]*/resourceclaimtemplates/")
    world.add(pod("q", link="nvlink"))
    world.rounds(4 * AGAIN + SETTLED)
    world.claimants.keep(set())
    world.rounds(SETTLED)
    before = world.writes()
    world.rounds(2)
    assert world.names == []
    assert world.writes() - before <= 2 * MOST_FAILURES + 1


def test_a_template_at_which_the_server_fails_holds_up_no_other_for_long(world: World) -> None:
    world.fake.refuse(500, 1, path=f"{TEMPLATES}$")
    world.add(pod("a", link="nvlink"), pod("b", gpu_model="A100*"))
    world.rounds(AGAIN + 2)
    assert len(world.names) == 1
    assert PAIR not in world.names
    world.rounds(LISTED_FOR)
    assert len(world.names) == 2


def test_where_the_server_no_longer_fails_it_goes_on_though_it_fails_elsewhere(
    world: World,
) -> None:
    for i in range(26):
        forge(world, f"a{i:02}", 10)
    world.fake.refuse(500, None, path="/a[0-9]*/resourceclaimtemplates/")
    world.rounds(SETTLED + AGAIN)
    world.fake.allow()
    world.fake.refuse(500, None, path="/a([01][0-9]|2[0-4])/resourceclaimtemplates/")
    world.rounds(2 * LISTED_FOR)
    assert not world.fake.items(TEMPLATES.replace("/team/", "/a25/"))


def test_a_server_that_writes_nothing_is_asked_little(world: World) -> None:
    for i in range(40):
        world.label(f"a{i}")
        world.add(elsewhere(f"p-{i}", f"a{i}", link="nvlink"))
    world.fake.refuse(500, None, path="/namespaces/.*/resourceclaimtemplates")
    world.rounds(1)
    assert world.writes() == MOST_FAILURES
    world.rounds(LISTED_FOR - 1)
    assert world.writes() == 40


def alternate(world: World, second: int) -> None:
    """A pod goes, and one in another namespace comes."""
    world.claimants.keep(set())
    world.add(elsewhere(f"p-{second}", f"a{second % 4}", link="nvlink"))


def occupy(world: World, second: int) -> None:
    """Pods name templates that somebody has made before, in all of their namespaces."""
    asked = elsewhere(f"p-{second}", f"a{second % 4}", gpu_model=f"A100*,X{second}")
    name = asked["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    where = TEMPLATES.replace("/team/", f"/a{second % 4}/")
    world.fake.put(where, {"metadata": {"name": name}})
    world.add(asked)


def snatch(world: World, second: int) -> None:
    """Somebody deletes a template that looks like ours right before we do."""
    if second == 0:
        for i in range(4):
            forge(world, f"a{i}", 500)
            world.add(elsewhere(f"p-{i}", f"a{i}", link="nvlink"))
        world.rounds(SETTLED)
    where = TEMPLATES.replace("/team/", f"/a{second % 4}/")
    ((_, first), *_) = (key for key in world.leader._own if key[0] == f"a{second % 4}")
    world.fake.remove(f"{where}/{first}")


@pytest.mark.parametrize("annoy", [alternate, occupy, snatch])
def test_nobody_makes_us_list_all_the_time(
    world: World, annoy: Callable[[World, int], None]
) -> None:
    for i in range(4):
        world.label(f"a{i}")
    annoy(world, 0)
    before = world.lists()
    for second in range(1, 61):
        annoy(world, second)
        world.rounds()
    assert world.lists() - before <= 60 * EARLY_RATE + EARLY_BURST + 2
    world.label("new")
    world.add(elsewhere("p", "new", link="nvlink"))
    for second in range(61, 67):
        annoy(world, second)
        world.add(elsewhere("p", "new", link="nvlink"))
        world.rounds()
    assert exists(world, "new")
    assert not any("has no label" in text for _, text in world.told)


def test_a_namespace_that_is_remade_gets_its_template_soon(world: World) -> None:
    world.add(pod("p", link="nvlink"), elsewhere("q", "b", link="nvlink"))
    world.label("b")
    world.rounds(20)
    world.sink.delete(raw(pod("p", link="nvlink")))
    world.fake.remove(f"{TEMPLATES}/{PAIR}")
    world.rounds(2)
    world.add(pod("new", link="nvlink"))
    world.rounds(2)
    assert world.names == [PAIR]


def test_a_namespace_with_less_than_its_share_gets_more(world: World) -> None:
    for i in range(80):
        forge(world, f"a{i}", MOST_IN_ALL // 80)
    world.add(elsewhere("more", "a0", link="nvlink"), pod("p", link="nvlink"))
    world.rounds(2)
    assert world.names == [PAIR]
    assert not exists(world, "a0")
