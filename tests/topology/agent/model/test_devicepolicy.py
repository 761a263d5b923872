"""How devices are chosen, and what the plugin is seen to do with pods that want several shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.topology.agent.entries import entry, pod, pods
from topology.agent.model.devicepolicy import (
    CONFIGURATION_LABEL,
    SharesTracker,
    allocator_of,
    lacks_shares,
    resources_of,
)
from topology.agent.model.holders import Holders
from topology.agent.model.nodecontext import (
    KubeletConfig,
    NodeContext,
    Plugin,
    kubelet_config,
    plugin_of,
)
from topology.agent.model.observations import Unseen
from topology.agent.model.podentries import NodePod
from topology.core.devices import DeviceId, GpuResource, PodUid

WHOLE = (GpuResource(),)
MIG = GpuResource("nvidia.com/mig-1g.10gb", "mig")
SHARED = (GpuResource(strategy="time-slicing", replicas=4),)
NVIDIA = Plugin("v0.20.0", {})
KNOWN = KubeletConfig("none", "container", "none", "None", False, False, False)


def ids(*names: str) -> frozenset[DeviceId]:
    return frozenset(map(DeviceId, names))


@pytest.mark.parametrize(
    ("allocatable", "labels", "expected"),
    [
        pytest.param({}, {}, WHOLE, id="no plugin: the usual resource"),
        pytest.param({"nvidia.com/gpu": ids()}, {}, WHOLE, id="a plugin that serves nothing"),
        pytest.param({"nvidia.com/gpu": ids("GPU-1", "GPU-2")}, {}, WHOLE, id="whole GPUs"),
        pytest.param(
            {"nvidia.com/gpu.shared": ids("GPU-1::0", "GPU-1::1", "GPU-2::0")},
            {},
            (GpuResource("nvidia.com/gpu.shared", "time-slicing", 2),),
            id="replicas",
        ),
        pytest.param(
            {"nvidia.com/gpu": ids("GPU-1::0", "GPU-1::1")},
            {"nvidia.com/gpu.sharing-strategy": "mps"},
            (GpuResource(strategy="mps", replicas=2),),
            id="MPS",
        ),
        pytest.param(
            {"nvidia.com/mig-1g.10gb": ids("MIG-1"), "nvidia.com/gpu": ids("GPU-2")},
            {},
            (GpuResource(), GpuResource("nvidia.com/mig-1g.10gb", "mig")),
            id="mixed MIG",
        ),
        pytest.param(
            {"nvidia.com/gpu": ids("MIG-1::0", "MIG-1::1", "MIG-1::2", "MIG-2::0")},
            {},
            (GpuResource(strategy="mig", replicas=3),),
            id="MIG instances that are time-sliced",
        ),
    ],
)
def test_resources_show_in_device_ids(
    allocatable: dict[str, frozenset[DeviceId]],
    labels: dict[str, str],
    expected: tuple[GpuResource, ...],
) -> None:
    assert resources_of(allocatable, labels) == expected


@pytest.mark.parametrize("sick", [0, 3])
@pytest.mark.parametrize("strategy", ["time-slicing", "mig"])
def test_a_share_that_is_not_handed_out_is_a_share(sick: int, strategy: str) -> None:
    """NVIDIA's plugin calls one share of a GPU unhealthy for an Xid: of four, three are left."""
    device = "MIG-1" if strategy == "mig" else "GPU-1"
    left = ids(*(f"{device}::{i}" for i in range(4) if i != sick))
    (served,) = resources_of({"nvidia.com/gpu": left}, {}, counted={"nvidia.com/gpu": 4})
    assert served == GpuResource(strategy=strategy, replicas=4)
    assert lacks_shares(left, served)
    assert not lacks_shares(left | ids(f"{device}::{sick}"), served)


def test_the_number_of_a_share_shows_that_there_are_more() -> None:
    left = ids("GPU-1::1", "GPU-1::3")
    assert resources_of({"nvidia.com/gpu": left}, {})[0].replicas == 4


@pytest.mark.parametrize(
    ("image", "version"),
    [
        pytest.param("registry.example/nvidia/k8s-device-plugin:v0.17.1", "v0.17.1", id="tag"),
        pytest.param("k8s-device-plugin:v0.20.0-ubi9", "v0.20.0", id="suffix"),
        pytest.param("r:5000/nvidia/k8s-device-plugin", None, id="no tag, a port"),
        pytest.param("r/k8s-device-plugin:v0.17.1@sha256:ab", "v0.17.1", id="digest"),
        pytest.param("r/k8s-device-plugin:latest", None, id="no version"),
    ],
)
def test_nvidias_plugin_is_recognised_by_its_image(image: str, version: str | None) -> None:
    found = plugin_of(image, (), {})
    assert found is not None
    assert found.version == version


@pytest.mark.parametrize(
    "image",
    ["rocm/k8s-device-plugin:1", "gke/nvidia-gpu-device-plugin:1", "k8s-device-plugin-x:1", ""],
)
def test_other_plugins_are_not(image: str) -> None:
    assert plugin_of(image, (), {}) is None


@pytest.mark.parametrize(
    ("resources", "plugin", "policy"),
    [
        pytest.param(WHOLE, NVIDIA, "best-effort", id="whole GPUs"),
        pytest.param(WHOLE, None, "any", id="nobody knows the plugin"),
        pytest.param(SHARED, NVIDIA, "distributed", id="shared, by default"),
        pytest.param(SHARED, Plugin("v0.17.1", {"ALLOCATION_POLICY": "packed"}), "distributed",
                     id="shared, a version that knows no other"),
        pytest.param(SHARED, Plugin("v0.20.0", {"allocation-policy": "packed"}), "packed",
                     id="shared, by flag"),
        pytest.param(SHARED, Plugin("v0.21.0", {"SHARED_DEVICES_ALLOCATION_POLICY": "packed"}),
                     "packed", id="shared, by environment"),
        pytest.param(SHARED, Plugin("v0.22.0", {"allocation-policy": "spread"}), "any",
                     id="shared, a policy we do not know"),
        pytest.param(SHARED, Plugin("v0.20.0", {"CONFIG_FILE": "/config.yaml"}), "any",
                     id="shared, told by a file"),
        pytest.param((*WHOLE, GpuResource("nvidia.com/gpu.shared", "mps", 2)), NVIDIA, "any",
                     id="two allocators on one node"),
        pytest.param((*WHOLE, MIG), NVIDIA, "best-effort", id="whole GPUs beside MIG instances"),
        pytest.param((MIG,), Plugin("v0.20.0", {"CONFIG_FILE": "/config.yaml"}), "distributed",
                     id="MIG instances, among which it has no preference"),
        pytest.param((replace(MIG, replicas=2),), NVIDIA, "distributed",
                     id="MIG instances that are time-sliced"),
    ],
)  # fmt: skip
def test_the_plugins_policy(
    resources: tuple[GpuResource, ...], plugin: Plugin | None, policy: str
) -> None:
    config, unseen = allocator_of(resources, plugin, KNOWN)
    assert config.policy == policy
    assert [u.fact for u in unseen] == (["device plugin's policy"] if policy == "any" else [])


def test_an_operators_word_wins() -> None:
    config, unseen = allocator_of(WHOLE, None, KNOWN, "packed")
    assert (config.policy, unseen) == ("packed", ())


@pytest.mark.parametrize(
    "words",
    [
        ["gpu-feature-discovery"],
        ["config-manager"],
        ["mps-control-daemon"],
        ["bash", "-c", "until ready; do :; done; exec gpu-feature-discovery --oneshot"],
    ],
    ids=lambda words: words[0],
)
def test_what_else_the_image_runs_is_no_plugin(words: list[str]) -> None:
    assert plugin_of("k8s-device-plugin:v0.17.1", words, {}) is None
    assert plugin_of("k8s-device-plugin:v0.17.1", ["nvidia-device-plugin"], {}) is not None


def test_in_doubt_the_plugins_preference_is_unknown() -> None:
    config, unseen = allocator_of(WHOLE, NVIDIA, KNOWN, doubt="it sees more")
    assert config.policy == "any"
    assert [str(u) for u in unseen] == ["device plugin's preference: it sees more"]
    assert allocator_of(SHARED, NVIDIA, KNOWN, doubt="it sees more")[0].policy == "distributed"


def test_a_word_that_we_do_not_know_is_as_good_as_none() -> None:
    found = kubelet_config(
        {"topologyManagerPolicy": "new", "cpuManagerPolicy": "new", "memoryManagerPolicy": "new"}
    )
    assert found == KubeletConfig("unknown", "container", None, None, False, False, False)


def test_options_are_read_as_the_kubelet_reads_them() -> None:
    found = kubelet_config(
        {
            "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
            "cpuManagerPolicyOptions": {"full-pcpus-only": "1", "align-by-socket": "true"},
        }
    )
    assert (found.prefers_closest, found.full_cores_only) == (True, True)
    assert found.socket_aligned is True
    unread = kubelet_config({"topologyManagerPolicyOptions": "prefer-closest-numa-nodes=true"})
    assert (unread.prefers_closest, unread.full_cores_only) == (None, False)
    assert unread.over(found).prefers_closest is True


def test_flags_and_environment_of_a_container_are_read() -> None:
    plugin = plugin_of(
        "k8s-device-plugin:v0.20.0",
        ["--config-file=/c.yaml", "--allocation-policy", "packed"],
        {"MIG_STRATEGY": "none"},
    )
    assert plugin is not None
    assert plugin.options == {
        "MIG_STRATEGY": "none", "config-file": "/c.yaml", "allocation-policy": "packed",
    }  # fmt: skip
    assert allocator_of(SHARED, plugin, KNOWN)[0].policy == "packed"


def test_an_unknown_kubelet_may_have_any_policy() -> None:
    config, unseen = allocator_of(WHOLE, NVIDIA, KubeletConfig())
    assert config.topology_manager_policy == "unknown"
    assert [u.fact for u in unseen] == [
        "Topology Manager's policy", "CPU and Memory Managers' policies",
    ]  # fmt: skip


def test_the_topology_managers_policy_says_nothing_of_the_other_managers() -> None:
    config, unseen = allocator_of(WHOLE, NVIDIA, KubeletConfig("none", "container", "static"))
    assert (config.cpu_manager_policy, config.memory_manager_policy) == ("static", None)
    assert [u.fact for u in unseen] == ["CPU and Memory Managers' policies"]
    assert not allocator_of(WHOLE, NVIDIA, KNOWN)[1]


def test_what_a_configuration_leaves_out_is_the_kubelets_default() -> None:
    assert kubelet_config({}) == KNOWN
    found = kubelet_config({"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"})
    assert found.over(KNOWN) == replace(
        KNOWN, topology_manager_policy="restricted", topology_manager_scope="pod"
    )


def test_later_observations_override_earlier_ones() -> None:
    config = KubeletConfig(topology_manager_policy="none")
    assert config.over(KubeletConfig("restricted", "pod", "static", "Static")) == KubeletConfig(
        "none", "pod", "static", "Static"
    )


MESSAGE = (
    "Allocate failed due to rpc error: code = Unknown desc = invalid allocation request for "
    '"nvidia.com/gpu": invalid request: maximum request size for shared resources is 1; found 2, '
    "which is unexpected"
)
LOST = "Allocate failed due to device plugin GetPreferredAllocation rpc failed: GPU is lost"

LABELS = {"kubernetes.io/hostname": "n"}  # every Node has some


@dataclass
class Node:
    """A node as the agent sees it; times are texts that ascend."""

    plugin: str = "10:00"
    labels: Mapping[str, str] = field(default_factory=lambda: dict(LABELS))
    pods: tuple[NodePod, ...] = ()
    held: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unseen: tuple[Unseen, ...] = ()
    tracker: SharesTracker = field(default_factory=SharesTracker)

    def look(self, now: str = "13:00") -> bool | None:
        """What is known after one more look."""
        plugin = Plugin("v0.19.3", {}, self.plugin)
        context = NodeContext(pods(*self.pods), plugin, self.labels, unseen=self.unseen)
        held = {PodUid(uid): entry(uid, *devices) for uid, devices in self.held.items()}
        self.tracker.look(context, Holders(held), now)
        return self.tracker.refuses_several


def started(at: str, refusal: str = "") -> NodePod:
    return NodePod(PodUid(at), "ns", at, {("main", "nvidia.com/gpu"): 2}, True, False,
                   bool(refusal), at, refusal)  # fmt: skip


TWO = ("GPU-0::0", "GPU-1::0")
ONE_POD = [
    # name, the pod, what it holds, whether the plugin refuses several then
    ("nothing was ever seen", (), {}, None),
    ("two shares were given", (started("11:00"),), {"11:00": TWO}, False),
    ("two shares of one GPU were given", (started("11:00"),), {"11:00": ("G::0", "G::1")}, False),
    ("one share says nothing", (started("11:00"),), {"11:00": ("GPU-0::0",)}, None),
    ("two whole GPUs say nothing", (started("11:00"),), {"11:00": ("GPU-0", "GPU-1")}, None),
    ("two shares were refused", (started("11:00", MESSAGE),), {}, True),
    ("another refusal says nothing", (started("11:00", LOST),), {}, None),
    ("given before this plugin started", (started("09:59"),), {"09:59": TWO}, None),
    ("given while it started", (started("10:00"),), {"10:00": TWO}, None),
    ("refused before this plugin started", (started("09:59", MESSAGE),), {}, None),
    ("a pod that nobody knows", (), {"11:00": TWO}, None),
    (
        "of both the later counts",
        (started("11:00"), started("12:00", MESSAGE)),
        {"11:00": TWO},
        True,
    ),
    (
        "whichever it is",
        (started("12:00"), started("11:00", MESSAGE)),
        {"12:00": TWO},
        False,
    ),
]


@pytest.mark.parametrize(
    ("seen", "held", "refuses"), [pytest.param(*row[1:], id=row[0]) for row in ONE_POD]
)
def test_what_is_learnt(
    seen: tuple[NodePod, ...], held: dict[str, tuple[str, ...]], refuses: bool | None
) -> None:
    assert Node(pods=seen, held=held).look() is refuses


def test_a_refusal_is_remembered_when_the_pod_is_gone() -> None:
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    node.pods, node.held = (), {}
    assert node.look() is False
    node.pods = (started("12:00", MESSAGE),)
    assert node.look() is True


def test_it_is_forgotten_when_the_plugin_starts_anew() -> None:
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    node.plugin = "12:00"
    assert node.look() is None
    node.plugin = ""
    assert node.look() is None
    node.plugin = "10:00"
    assert node.look() is False


def test_it_is_forgotten_when_the_configuration_is_another() -> None:
    """It is unknown when the plugin read it: what came before it was seen does not count."""
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    node.labels = {**LABELS, CONFIGURATION_LABEL: "other"}
    assert node.look("12:00") is None
    node.pods = (*node.pods, started("12:01", MESSAGE))
    assert node.look("12:02") is True


def restarted(node: Node) -> Node:
    """Another agent on the node; no pod is left that would tell it what the plugin did."""
    return Node(node.plugin, dict(node.labels), tracker=SharesTracker(node.tracker.learnt))


def test_an_agent_that_starts_anew_knows_what_the_former_one_has_learnt() -> None:
    node = Node(pods=(started("11:00", MESSAGE),))
    assert node.look() is True
    node = restarted(node)
    assert node.look() is True
    node.pods, node.held = (started("12:00"),), {"12:00": TWO}
    assert node.look() is False, "and learns on"
    assert restarted(node).look() is False


def test_what_the_former_agent_has_learnt_holds_for_the_same_plugin_alone() -> None:
    node = Node(pods=(started("11:00", MESSAGE),))
    assert node.look() is True
    for plugin, labels in (("12:00", LABELS), ("10:00", LABELS | {CONFIGURATION_LABEL: "other"})):
        other = restarted(node)
        other.plugin, other.labels = plugin, labels
        assert other.look() is None
    other = restarted(node)
    other.plugin = ""
    assert other.look() is None, "the plugin's pod is not known yet"
    other.plugin = "10:00"
    assert other.look() is True


@pytest.mark.parametrize("seen_before", [False, True], ids=["meanwhile", "by the former agent"])
def test_an_agent_that_starts_anew_counts_no_pod_of_another_configuration(
    *, seen_before: bool
) -> None:
    """A pod got two shares; since then the label has changed, and the plugin refuses them."""
    node = Node(pods=(started("11:00"),), held={"11:00": TWO})
    assert node.look() is False
    labels = LABELS | {CONFIGURATION_LABEL: "other"}
    if seen_before:
        node.labels = labels
        assert node.look("12:00") is None
    other = restarted(node)
    other.labels, other.pods, other.held = labels, node.pods, node.held
    assert other.look("13:00") is None
    other.pods = (*other.pods, started("13:01", MESSAGE))
    assert other.look("13:02") is True
    assert restarted(other).look("14:00") is True


def test_an_agent_that_knows_nothing_counts_no_pod_of_before_where_a_label_chooses() -> None:
    """It is unknown since when the Node has the label."""
    labels = LABELS | {CONFIGURATION_LABEL: "other"}
    node = Node(pods=(started("11:00"),), held={"11:00": TWO}, labels=labels)
    assert node.look("13:00") is None
    node.pods = (*node.pods, started("13:01", MESSAGE))
    assert node.look("13:02") is True


def test_nothing_is_reported_before_the_nodes_labels_are_known() -> None:
    labels = LABELS | {CONFIGURATION_LABEL: "shared"}
    node = Node(labels=labels)
    assert node.look("10:30") is None
    node.pods = (started("11:00", MESSAGE),)
    assert node.look() is True
    node = restarted(node)
    node.labels = {}
    assert node.look() is None
    node.labels = labels
    assert node.look() is True, "they do not come as another configuration"
    node.unseen = (Unseen("Node", "403 Forbidden"),)
    node.labels, node.tracker = {}, SharesTracker()
    node.pods = (started("11:00", MESSAGE),)
    assert node.look() is True, "where nobody may read the Node, none is known"


def test_a_deed_that_says_the_same_again_makes_no_other_record() -> None:
    node = Node(pods=(started("11:00", MESSAGE),))
    node.look()
    before = node.tracker.answer
    node.pods = (started("12:00", MESSAGE),)
    assert node.look() is True
    assert node.tracker.answer == before


def test_without_a_plugin_nothing_is_learnt() -> None:
    tracker = SharesTracker()
    known = {PodUid("11:00"): entry("11:00", *TWO)}
    tracker.look(NodeContext(pods(started("11:00")), None), Holders(known), "13:00")
    assert tracker.refuses_several is None
    assert pod("1", "a").started == ""
