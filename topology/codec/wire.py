"""The fields of a GPUTopology object, and the values that are allowed in each.

The CRD (``manifests/base/crd.yaml``) defines the same fields and values, and
``tests/manifests/test_crd.py`` compares the two.
"""

from collections import Counter
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from topology.core.graph import MAX_GPUS
from topology.core.memo import memoized
from topology.core.numa import MOST_CPUS, CpuSet, cpu_set

API_VERSION = "gpu-topology.io/v1alpha1"
KIND = "GPUTopology"

PcieClass = Literal["BOARD", "PIX", "PXB", "PHB", "NODE", "SYS"]
Index = Annotated[int, Field(ge=0, lt=1024)]
NumaId = Annotated[int, Field(ge=0, lt=64)]
MemoryType = Annotated[str, Field(min_length=1, max_length=63)]
DISTANCES = r"^[0-9]{1,3}( [0-9]{1,3})*$"
# The allowed values of a pattern, in words for people.
ALLOWED = {DISTANCES: "allowed are numbers such as 10 21"}
Text = Annotated[str, Field(max_length=512)]
Name = Annotated[str, Field(min_length=1, max_length=253)]


def cpus_of(text: str) -> CpuSet:
    """Return the CPUs of a list in the kernel's notation (0-3,8; empty is no CPU).

    Short lists are cached, because a cluster's records have the same lists again and again. Raises
    :class:`ValueError`.
    """
    return _remembered_cpus(text) if len(text) <= LONGEST_REMEMBERED else cpu_set(text)


LONGEST_REMEMBERED = 64
_remembered_cpus = memoized(cpu_set)


def _cpu_list(text: str) -> str:
    """Return the text if it is a list of CPUs; otherwise raise an error that pydantic collects."""
    try:
        cpus_of(text)
    except ValueError as error:
        raise PydanticCustomError("cpu_list", "{why}", {"why": str(error)}) from error
    return text


# The longest list, every second of 4,096 CPUs, has 9,684 characters.
CpuList = Annotated[str, Field(max_length=10240), AfterValidator(_cpu_list)]

MOST_LINKS = MAX_GPUS * (MAX_GPUS - 1) // 2
Part = TypeVar("Part")


def _take_turns(part: Part) -> Part:
    """Return the part unchanged, and let other threads run.

    pydantic's core checks a whole record without letting another thread run. CPython may switch to
    a waiting thread whenever a Python function begins. pydantic calls this function for each part
    of a long list, so a large record does not block other threads. (``fail_fast`` of a list has the
    same purpose, because it takes longer to report a hundred thousand faults than to find them.)
    """
    return part


IN_TURNS = AfterValidator(_take_turns)


class Wire(BaseModel):
    """The base class of all parts: camelCase on the wire, and unknown fields are ignored."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )


class Resource(Wire):
    """An entry of ``spec.resources``."""

    name: Name = "nvidia.com/gpu"
    strategy: Literal["none", "time-slicing", "mps", "mig"] = "none"
    replicas: Annotated[int, Field(ge=1, le=1024)] = 1
    fail_requests_greater_than_one: bool | None = None


class Allocator(Wire):
    """``spec.allocator``: how kubelet and device plugin choose devices."""

    policy: Literal["best-effort", "distributed", "packed", "any", "exact", "dra"] = "any"
    plugin_version: Text | None = None
    topology_manager_policy: Literal[
        "none", "best-effort", "restricted", "single-numa-node", "unknown"
    ] = "none"
    topology_manager_scope: Literal["container", "pod"] = "container"
    cpu_manager_policy: Literal["none", "static"] | None = None
    memory_manager_policy: Literal["None", "Static"] | None = None
    prefer_closest_numa_nodes: bool | None = None
    full_pcpus_only: bool | None = None
    align_by_socket: bool | None = None
    published: Annotated[list[int], Field(max_length=64, fail_fast=True)] | None = None
    by_number: bool | None = None


class Memory(Wire):
    """An entry of a NUMA node's ``memory``: the memory that pods may have exclusively."""

    type: MemoryType
    bytes: Annotated[int, Field(ge=0)]


class NumaNode(Wire):
    """An entry of ``spec.numaNodes``: a NUMA node's CPUs, memory and distances to the others."""

    id: NumaId
    distances: Annotated[str, Field(max_length=256, pattern=DISTANCES)] | None = None
    cpus: CpuList | None = None
    socket: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    memory: Annotated[list[Memory], Field(max_length=16, fail_fast=True)] | None = None


class Cpus(Wire):
    """``spec.cpus``: the CPUs that pods may have exclusively."""

    allocatable: CpuList
    whole_cores: CpuList
    threads_per_core: Annotated[int, Field(ge=1, le=MOST_CPUS)]


class MigInstance(Wire):
    """An entry of a device's ``migInstances``."""

    uuid: Name
    profile: Text
    memory_bytes: Annotated[int, Field(ge=0)]


class Device(Wire):
    """An entry of ``spec.devices``: one GPU."""

    index: Index
    vendor: Text = "nvidia"
    uuid: Name
    product: Name
    memory_bytes: Annotated[int, Field(ge=0)]
    pci_bus_id: Text | None = None
    numa_node: Index | None = None
    mig_mode: Literal["disabled", "enabled"] = "disabled"
    mig_instances: Annotated[list[MigInstance], Field(max_length=16, fail_fast=True)] | None = None
    topology_nodes: Annotated[list[NumaId], Field(max_length=64, fail_fast=True)] | None = None


class Link(Wire):
    """An entry of ``spec.links``: the link of the GPUs with the indices ``a`` and ``b``."""

    a: Index
    b: Index
    pcie: PcieClass | None = None
    nvlinks: Annotated[int, Field(ge=0, le=64)] = 0
    via: Literal["direct", "switch"] = "direct"
    nvlink_gbps: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False, alias="nvlinkGBps")] = (
        0.0
    )
    one_sided: bool | None = None
    uneven: bool | None = None


class Distance(Wire):
    """An entry of a NIC's ``distances``."""

    index: Index
    pcie: PcieClass


class Nic(Wire):
    """An entry of ``spec.nics``."""

    name: Name
    numa_node: Index | None = None
    distances: Annotated[list[Distance], Field(max_length=MAX_GPUS, fail_fast=True)] = []


class Fabric(Wire):
    """``spec.fabric``: the multi-node NVLink domain."""

    cluster_uuid: Name = Field(alias="clusterUUID")
    clique_id: Annotated[int, Field(ge=0)]


class Spec(Wire):
    """``spec``: the node's hardware."""

    resources: Annotated[list[Resource], Field(max_length=16, fail_fast=True)] = [Resource()]
    allocator: Allocator = Allocator()
    devices: Annotated[list[Device], Field(max_length=MAX_GPUS, fail_fast=True)] = []
    links: Annotated[list[Link], Field(max_length=MOST_LINKS, fail_fast=True)] = []
    nics: Annotated[list[Annotated[Nic, IN_TURNS]], Field(max_length=64, fail_fast=True)] = []
    fabric: Fabric | None = None
    numa_nodes: Annotated[list[NumaNode], Field(max_length=64, fail_fast=True)] | None = None
    cpus: Cpus | None = None


class Allocation(Wire):
    """An entry of ``status.allocations``: the devices of one container."""

    pod_uid: Text = Field("", alias="podUID")
    namespace: Text = ""
    pod: Text = ""
    container: Text = ""
    resource: Text = "nvidia.com/gpu"
    idle_since: Text | None = None
    device_ids: Annotated[list[Name], Field(max_length=4096, fail_fast=True)] = []


class MemoryBlock(Wire):
    """An entry of the ``memory`` of a pod in ``status.exclusive``."""

    type: MemoryType
    bytes: Annotated[int, Field(ge=0)]
    numa_nodes: Annotated[list[NumaId], Field(max_length=64, fail_fast=True)] = []


class Exclusive(Wire):
    """An entry of ``status.exclusive``: exclusive CPUs and memory of one pod."""

    namespace: Text
    pod: Text
    cpus: CpuList | None = None
    memory: Annotated[list[MemoryBlock], Field(max_length=1024, fail_fast=True)] | None = None


def _one_each(pods: list[Exclusive]) -> list[Exclusive]:
    for (namespace, pod), times in Counter((p.namespace, p.pod) for p in pods).items():
        if times > 1:
            why = f"{namespace}/{pod} occurs {times} times, but only once is allowed"
            raise PydanticCustomError("twice", "{why}", {"why": why})
    return pods


class Health(Wire):
    """An entry of ``status.health``: one GPU."""

    uuid: Name
    healthy: bool
    reason: Text = ""
    since: Text | None = None
    links_down: (
        Annotated[list[Annotated[int, Field(ge=0, lt=64)]], Field(max_length=64, fail_fast=True)]
        | None
    ) = None
    energy_millijoules: Annotated[int, Field(ge=0)] | None = None


class MissingGpu(Wire):
    """An entry of ``status.missing``: a GPU that does not answer the driver."""

    name: Name
    counted: bool
    since: Text | None = None


class SeveralShares(Wire):
    """``status.severalShares``: the plugin's answer to a pod that requested several GPU shares."""

    refused: bool
    pod_started: Text
    plugin_started: Text
    configuration: Text | None = None


class Refused(Wire):
    """An entry of ``status.history``: a pod that the kubelet has refused."""

    pod_uid: Name = Field(alias="podUID")
    namespace: Text = ""
    pod: Text = ""
    resource: Text = "nvidia.com/gpu"
    devices: Annotated[int, Field(ge=0)] = 0
    reason: Text
    at: Text


class Condition(Wire):
    """An entry of ``status.conditions``."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=1024)] = ""
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: Text | None = None


class Summary(Wire):
    """``status.summary``: the columns that ``kubectl get`` prints."""

    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS)]
    free: Annotated[int, Field(ge=0, le=MAX_GPUS)]
    links: str


class Status(Wire):
    """``status``: the agent's report."""

    boot_id: Text = Field("", alias="bootID")
    sequence: Annotated[int, Field(ge=0)] = 0
    observed_at: Text | None = None
    pods_resource_version: Text | None = None
    allocatable: Annotated[list[Name], Field(max_length=4096, fail_fast=True)] | None = None
    allocations: Annotated[
        list[Annotated[Allocation, IN_TURNS]], Field(max_length=4096, fail_fast=True)
    ] = []
    exclusive: (
        Annotated[
            list[Annotated[Exclusive, IN_TURNS]],
            Field(max_length=4096, fail_fast=True),
            AfterValidator(_one_each),
        ]
        | None
    ) = None
    health: Annotated[list[Health], Field(max_length=64, fail_fast=True)] = []
    missing: Annotated[list[MissingGpu], Field(max_length=64, fail_fast=True)] | None = None
    several_shares: SeveralShares | None = None
    history: Annotated[list[Refused], Field(max_length=32, fail_fast=True)] | None = None
    conditions: Annotated[list[Condition], Field(max_length=16, fail_fast=True)] = []
    summary: Summary | None = None


class Metadata(Wire):
    """The part of ``metadata`` that is read."""

    name: Name


class Object(Wire):
    """A GPUTopology object as a whole."""

    metadata: Metadata
    spec: Spec
    status: Status | None = None
