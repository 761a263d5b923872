"""What pods' own claims get on a node: objects as the API server has them, and GPUs."""

import json
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest

from scheduler_extender.kube import devicetracker
from scheduler_extender.kube.draobjects import Claim
from scheduler_extender.kube.drasinks import AGAIN
from scheduler_extender.kube.nodedevices import NodeDevices
from tests.dranodes import (
    DRIVER,
    IS_GPU,
    NODE,
    DraWorld,
    Json,
    a_slice,
    asking,
    claim,
    device,
    device_class,
    exactly,
    raw,
    two_pairs,
)
from topology.core.placement import Reason, Rejection

A = f'device.attributes["{DRIVER}"]'


@pytest.fixture
def world() -> DraWorld:
    return two_pairs()


def gpus(world: DraWorld, *names: str) -> list[int] | Reason:
    predicted = world.cluster.foresees("ns", names or ("c",))(world.cluster.node_info(NODE))
    if isinstance(predicted, Rejection):
        return predicted.reason
    return [int(each.removeprefix("GPU-")) for each in predicted]


def put_nics(world: DraWorld, *nics: Json, **where: Any) -> None:
    """Publish devices of another driver, and a class of them."""
    of_pool = {"name": "nics", "generation": 1, "resourceSliceCount": 1}
    where = where or {"nodeName": NODE}
    spec = {"driver": "nics.example.com", **where, "pool": of_pool, "devices": nics}
    world.slices.apply(raw({"metadata": {"name": "n"}, "spec": spec}))
    selectors = [{"cel": {"expression": "device.driver == 'nics.example.com'"}}]
    world.classes.apply(raw({"metadata": {"name": "nics"}, "spec": {"selectors": selectors}}))


def test_the_next_devices_come(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(2)))
    assert gpus(world) == [3, 1]
    world.claims.apply(claim("other", 3, pod="p"))
    assert gpus(world) == [1, 0]


def test_selectors_and_common_attributes_are_kept(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(1, f"{A}.number < 2")))
    assert gpus(world) == [1]
    world.claims.apply(asking("c", exactly(2), alike=f"{DRIVER}/pair"))
    assert gpus(world) == [3, 2]
    world.claims.apply(asking("c", exactly(2), alike=f"{DRIVER}/nothing"))
    assert gpus(world) is Reason.CLAIMS
    large = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("81Gi")) > 0'
    world.claims.apply(asking("c", exactly(1, large)))
    assert gpus(world) is Reason.CLAIMS


def test_a_selector_as_public_examples_have_it_is_read(world: DraWorld) -> None:
    """In a claim, and in the DeviceClass that serves the node."""
    products = ("NVIDIA A100-SXM4-40GB", "Tesla V100", "NVIDIA A100-PCIE-80GB")
    devices = [device(n) for n in range(3)]
    for each, product in zip(devices, products, strict=True):
        each["attributes"]["productName"] = {"string": product}
    world.slices.apply(a_slice(*devices, generation=2))
    a100 = f"{A}.productName.lowerAscii().matches('^.*a100.*$')"
    world.claims.apply(asking("c", exactly(1, a100, allocationMode="All")))
    assert gpus(world) == [0, 2]
    world.classes.apply(device_class(expression=f"{IS_GPU} && {a100}", made="2"))
    assert not world.problem
    world.claims.apply(asking("c", exactly(1, allocationMode="All")))
    assert gpus(world) == [0, 2]


def test_devices_that_differ_in_what_a_name_is_looked_up_by_are_distinguished(
    world: DraWorld,
) -> None:
    """They are judged once where they are alike in all that a selector names."""
    devices = [device(n) for n in range(2)]
    for number, each in enumerate(devices):
        each["attributes"] |= {"which": {"string": "hidden"}, "hidden": {"int": number}}
    world.slices.apply(a_slice(*devices, generation=2))
    for name in f"{A}.which", '"hid" + "den"':
        world.claims.apply(asking("c", exactly(1, f"{A}[{name}] == 1", allocationMode="All")))
        assert gpus(world) == [1]


def test_a_quantity_that_cannot_be_read_costs_no_more_than_its_comparison(world: DraWorld) -> None:
    odd = device(0, capacity={"memory": {"value": "lots"}})
    world.slices.apply(a_slice(odd, generation=2))
    world.claims.apply(asking("c", exactly(1)))
    assert gpus(world) == [0]
    large = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("81Gi")) > 0'
    world.claims.apply(asking("c", exactly(1, large)))
    assert gpus(world) is Reason.UNDECIDED


def test_values_of_two_kinds_are_distinguished(world: DraWorld) -> None:
    """To Python a 1 equals a true."""
    kinds: tuple[Json, ...] = ({"int": 1}, {"bool": True})
    for first, second in (kinds, kinds[::-1]):
        devices = [device(0), device(1)]
        devices[0]["attributes"]["flag"], devices[1]["attributes"]["flag"] = first, second
        world.slices.apply(a_slice(*devices, generation=2))
        world.claims.apply(asking("c", exactly(1, f"{A}.flag == 1", allocationMode="All")))
        assert gpus(world) == [0 if "int" in first else 1]


def test_an_attribute_that_is_not_read_is_not_one_that_is_not_there(world: DraWorld) -> None:
    """As a list of values: kube-scheduler may give devices that have one in common."""
    devices = [device(0), device(1)]
    for each in devices:
        each["attributes"]["roots"] = {"strings": ["pci0000:00", "pci0000:80"]}
    world.slices.apply(a_slice(*devices, generation=2))
    world.claims.apply(asking("c", exactly(2), alike=f"{DRIVER}/roots"))
    assert gpus(world) is Reason.UNDECIDED


def test_devices_of_no_one_node_will_do_on_any(world: DraWorld) -> None:
    """They are not followed, so no answer says that a claim lacks them."""
    nic = exactly(1, deviceClassName="nics")
    put_nics(world, {"name": "nic"}, allNodes=True)
    world.claims.apply(asking("c", exactly(1), nic))
    assert gpus(world) is Reason.UNDECIDED
    world.claims.apply(asking("c", exactly(1)))
    assert gpus(world) == [3]
    put_nics(world, *({"name": f"nic-{n}"} for n in range(2001)), allNodes=True)
    assert gpus(world) is Reason.UNDECIDED
    put_nics(world, {"name": "nic"}, nodeName="another")
    assert gpus(world) == [3]
    world.claims.apply(asking("c", exactly(1), nic))
    assert gpus(world) is Reason.CLAIMS


def test_devices_of_no_one_node_are_looked_at_once_for_all_nodes(
    world: DraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are too many, too: a filter took milliseconds a node."""
    put_nics(world, *({"name": f"nic-{n}"} for n in range(2001)), allNodes=True)
    world.claims.apply(asking("c", exactly(1)))
    made = 0

    def counted(*given: Any) -> NodeDevices:
        nonlocal made
        made += 1
        return NodeDevices(*given)

    monkeypatch.setattr(devicetracker, "NodeDevices", counted)
    see = world.cluster.foresees("ns", ["c"])
    info = world.cluster.node_info(NODE)
    found = [see(info) for _ in range(5)]
    assert all(isinstance(each, Rejection) for each in found)
    assert made == 1


def test_a_device_that_is_shared_may_come_again(world: DraWorld) -> None:
    """Several pods may have a part of it; which GPU goes with it is unknown."""
    shared = {"name": "nic-0", "allowMultipleAllocations": True}
    nics: list[Json] = [shared, {"name": "nic-1"}]
    for number, each in enumerate(nics):
        each["attributes"] = {f"{DRIVER}/pair": {"string": f"pair-{number}"}}
    put_nics(world, *nics)
    both = (exactly(1, deviceClassName="nics"), exactly(1))
    world.claims.apply(asking("c", *both, alike=f"{DRIVER}/pair"))
    assert gpus(world) is Reason.UNDECIDED
    held = json.loads(bytes(claim("other", 0, pod="p", driver="nics.example.com", pool="nics")))
    held["status"]["allocation"]["devices"]["results"][0]["device"] = "nic-0"
    world.claims.apply(raw(held))
    assert gpus(world) is Reason.UNDECIDED


def test_a_device_that_is_shared_may_come_twice_to_one_pod(world: DraWorld) -> None:
    """One that two requests ask for, or one request twice, is not one too few."""
    put_nics(world, {"name": "nic-0", "allowMultipleAllocations": True})
    nic = exactly(1, deviceClassName="nics")
    world.claims.apply(asking("c", exactly(2), nic, nic))
    assert gpus(world) is Reason.UNDECIDED


def test_another_pool_that_is_not_complete_costs_its_own_devices_alone(world: DraWorld) -> None:
    of_pool = {"name": "nics", "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": "nics.example.com", "nodeName": NODE, "pool": of_pool}
    nics = {"metadata": {"name": "n"}, "spec": {**spec, "devices": [{"name": "nic"}]}}
    world.slices.apply(raw(nics))
    assert world.problem == ""
    selectors = [{"cel": {"expression": "device.driver == 'nics.example.com'"}}]
    world.classes.apply(raw({"metadata": {"name": "nics"}, "spec": {"selectors": selectors}}))
    nic = exactly(1, deviceClassName="nics")
    for asked, expected in (
        ([exactly(2)], [3, 1]),
        ([exactly(2), nic], Reason.CLAIMS),
        ([exactly(1, allocationMode="All")], Reason.UNDECIDED),
    ):
        world.claims.apply(asking("c", *asked))
        assert gpus(world) == expected
    of_pool["resourceSliceCount"] = 1
    world.slices.apply(raw(nics))
    assert gpus(world) == [3, 1, 0, 2]


@pytest.mark.parametrize(
    "whole", ['"x.com" in device.attributes', f'device.attributes["x.com"] != {A}', "[1] == [true]"]
)
def test_what_speaks_of_no_single_value_is_not_followed(world: DraWorld, whole: str) -> None:
    """Devices are alike where they have the same values of the attributes that are named."""
    odd = device(0)
    odd["attributes"]["x.com/there"] = {"int": 1}
    world.slices.apply(a_slice(odd, device(1), generation=2))
    world.claims.apply(asking("c", exactly(1, whole, allocationMode="All")))
    assert gpus(world) is Reason.UNDECIDED


def test_the_list_that_a_claim_came_in_is_not_stored(world: DraWorld) -> None:
    waiting, given = bytes(asking("c", exactly(1))), bytes(claim("d", 3, pod="p"))
    page = b"[" + waiting + b"," + given + b"]"
    objects = msgspec.json.decode(page, type=list[msgspec.Raw])
    with_objects = sys.getrefcount(page)
    world.claims.replace(objects, "9")
    assert gpus(world) == [1]
    del objects
    assert sys.getrefcount(page) < with_objects
    assert sys.getrefcount(page) == 2


def test_texts_of_a_claim_are_not_stored() -> None:
    """A client may create thousands of claims, each as large as the API server takes."""
    texts = {"long": "x" * 100_000}
    for given in asking("c", exactly(1)), claim("d", 3, pod="p"):
        obj = json.loads(bytes(given))
        obj["metadata"] |= {"annotations": texts, "labels": texts}
        assert len(repr(msgspec.json.decode(raw(obj), type=Claim))) < 2000


def test_a_fault_of_ours_costs_the_foresight_of_one_node(
    world: DraWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.claims.apply(asking("c", exactly(1)))
    noted: list[str] = []
    monkeypatch.setattr(world.cluster.faults, "note", lambda node, _: noted.append(node))
    monkeypatch.setattr("scheduler_extender.kube.nodedevices.MOST", None)
    assert gpus(world) is Reason.UNDECIDED
    assert noted == [NODE]


def test_alternatives_and_several_claims_come_in_order(world: DraWorld) -> None:
    sets = [
        {"name": f"s{n}", "deviceClassName": DRIVER, "count": 2, "selectors": selectors}
        for n, selectors in enumerate(
            [{"cel": {"expression": f"{A}.number in {pair}"}}] for pair in ([0, 1], [2, 3])
        )
    ]
    world.claims.apply(asking("c", {"name": "r", "firstAvailable": sets}))
    assert gpus(world) == [1, 0]
    world.claims.apply(asking("first", exactly(1, f"{A}.number == 1")))
    assert gpus(world, "first", "c") == [1, 3, 2]
    world.claims.apply(claim("first", 1))
    assert gpus(world, "first", "c") == [3, 2], "the first has its device already"


def test_a_pool_with_a_device_that_is_bound_late_comes_last(world: DraWorld) -> None:
    late = device(4, kind="nic", bindingConditions=["there"], bindingFailureConditions=["gone"])
    world.slices.apply(a_slice(*map(device, (1, 0))))
    world.slices.apply(a_slice(device(2), late, name="t", pool="a"))
    world.claims.apply(asking("c", exactly(3)))
    assert gpus(world) == [1, 0, 2]


def test_all_devices_are_those_that_there_are(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(1, f"{A}.number < 2", allocationMode="All")))
    assert gpus(world) == [1, 0]


UNPREDICTED = {
    "adminAccess": exactly(1, adminAccess=True),
    "tolerations": exactly(1, tolerations=[{"operator": "Exists"}]),
    "capacity": exactly(1, capacity={"requests": {"memory": "1Gi"}}),
    "another class": exactly(1, deviceClassName="nobody's"),
    "cel": exactly(1, f'{A}.uuid.substring(1) == "PU"'),
    "no value": exactly(1, f"{A}.nothing == 1"),
    "too many": exactly(33),
}


@pytest.mark.parametrize("name", UNPREDICTED)
def test_nothing_is_predicted_where_it_is_unknown(world: DraWorld, name: str) -> None:
    world.claims.apply(asking("c", UNPREDICTED[name]))
    assert gpus(world) is Reason.UNDECIDED
    world.claims.apply(asking("c", exactly(1)))
    assert gpus(world) == [3]


def test_nothing_is_predicted_for_claims_that_are_unseen_or_unreadable(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(1)))
    assert gpus(world, "c", "unseen") is Reason.UNDECIDED
    bad = {"devices": {"requests": 7, "constraints": []}}
    world.claims.apply(raw({"metadata": {"namespace": "ns", "name": "c"}, "spec": bad}))
    assert gpus(world) is Reason.UNDECIDED


def test_nothing_is_reported_of_constraints_of_another_kind(world: DraWorld) -> None:
    devices = {"requests": [exactly(1)], "constraints": [{"distinctAttribute": f"{DRIVER}/pair"}]}
    spec = {"metadata": {"namespace": "ns", "name": "c"}, "spec": {"devices": devices}}
    world.claims.apply(raw(spec))
    assert gpus(world) is Reason.UNDECIDED


def test_slices_that_change_are_read_anew(world: DraWorld) -> None:
    world.claims.apply(asking("c", exactly(1, f"{A}.number == 2")))
    assert gpus(world) == [2]
    world.slices.apply(a_slice(*map(device, (0, 1)), generation=2))
    assert gpus(world) is Reason.CLAIMS


def small_quota(monkeypatch: pytest.MonkeyPatch, most: int) -> DraWorld:
    """A world with room for so many bytes of what claims ask for."""
    monkeypatch.setattr("scheduler_extender.kube.drasinks.MOST_WANTED", most)
    return two_pairs()


def of_namespace(namespace: str, name: str, *requests: Json) -> msgspec.Raw:
    obj = json.loads(bytes(asking(name, *requests)))
    obj["metadata"]["namespace"] = namespace
    return raw(obj)


def test_what_waiting_claims_say_is_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = small_quota(monkeypatch, 300)
    world.claims.apply(asking("c", exactly(1)))
    world.claims.apply(asking("d", exactly(1)))
    assert (gpus(world), gpus(world, "d")) == ([3], Reason.UNDECIDED)
    world.claims.delete(asking("c", exactly(1)))
    world.claims.apply(asking("d", exactly(1)))
    assert gpus(world, "d") == [3]


@pytest.mark.parametrize("listed", [False, True])
def test_claims_of_one_namespace_take_no_room_of_another(
    monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    world = small_quota(monkeypatch, 2000)
    flood = [of_namespace("flood", f"f{number}", exactly(1)) for number in range(50)]
    ours = [asking(name, exactly(1)) for name in "cd"]
    if listed:
        world.claims.replace(iter([*flood, *ours]), "1")
    else:
        for each in (*flood, *ours):
            world.claims.apply(each)
    assert (gpus(world), gpus(world, "d")) == ([3], [3])
    assert 30 < world.claims.outside < 50
    predicted = world.cluster.foresees("flood", ["f0"])(world.cluster.node_info(NODE))
    assert predicted == ("GPU-3",), "the first of those that are too many"


def test_claims_that_found_no_room_are_read_again_once_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = small_quota(monkeypatch, 300)
    late = [asking(name, exactly(1)) for name in "de"]
    world.claims.replace(iter([asking("c", exactly(1)), *late]), "1")
    assert world.claims.outside == 2
    assert not world.claims.again()
    world.claims.delete(asking("c", exactly(1)))
    world.now += AGAIN
    assert world.claims.again()
    assert not world.claims.again(), "there is one list in a while"
    world.claims.replace(iter(late), "2")
    assert (gpus(world, "d"), gpus(world, "e")) == ([3], Reason.UNDECIDED)
    world.now += AGAIN
    assert not world.claims.again()
    world.claims.apply(claim("e", 1))
    assert world.claims.outside == 0


def test_a_claim_that_is_larger_than_is_followed_is_counted_and_never_read_again(
    world: DraWorld,
) -> None:
    long = exactly(1, "true || " * 10_000 + "true")
    world.claims.apply(asking("c", long))
    assert gpus(world) is Reason.UNDECIDED
    assert world.claims.outside == 1
    world.now += AGAIN
    assert not world.claims.again()


def test_a_list_of_claims_takes_no_more_than_the_bound_while_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = small_quota(monkeypatch, 100_000)
    world.claims.replace(iter([asking("first", exactly(1))]), "1")
    long = exactly(1, "true || " * 5_000 + "true")
    names = ("first", *(f"c{number}" for number in range(200)))
    tracemalloc.start()
    world.claims.replace((asking(name, long) for name in names), "2")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000
    assert gpus(world, "c199") is Reason.UNDECIDED
    world.claims.replace(iter([asking("c199", exactly(1))]), "3")
    assert gpus(world, "c199") == [3]


def test_what_the_claims_of_one_pod_say_is_read_up_to_a_bound(world: DraWorld) -> None:
    """A pod may have hundreds of claims: to hold them all against the devices of one node took a
    minute."""
    long = exactly(1, "true || " * 1_000 + "true")
    names = [f"c{number}" for number in range(9)]
    for name in names:
        world.claims.apply(asking(name, long))
    assert gpus(world, *names[:2]) == [3, 1]
    assert gpus(world, *names) is Reason.UNDECIDED
