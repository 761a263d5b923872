"""Read a pod's manifest as the request that it makes (:class:`PodRequest`).

The contract of the annotations is one table, :data:`KEYS`. For each key it says how the value is
read and which values are allowed. A pod with an unreadable value or an unknown key is refused
(:class:`Malformed`); the reason names the key and the value. The reason is always the same text,
since kube-scheduler compares it. It is short, since it stands in the answer of every node.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import msgspec

from scheduler_extender.exclusive import amounts_of, containers_with_roles, exclusive_of
from scheduler_extender.groupreference import GROUP_KEYS, GroupReference, group_ref_of
from scheduler_extender.podlimits import MOST_CLAIMS, exceeded_limit
from scheduler_extender.quantities import (
    BadValueError,
    annotation,
    cut,
    memory,
    quantity,
    shortened,
)
from scheduler_extender.wire import Container, ObjectMeta, Pod, PodStatus, Resources
from topology.core.links import GBps, LinkKind, canonical_product
from topology.core.memo import Memo
from topology.core.requests import (
    NO_CONSTRAINTS,
    Constraints,
    ContainerRequest,
    Demand,
    Exclusive,
    GpuRequest,
    Pattern,
    Policy,
    Role,
    memory_text,
)

PREFIX = "gpu-topology.io/"
PLACEMENT = PREFIX + "placement"
WAKE = PREFIX + "wake"
# On a Node, not on a pod: a time in RFC 3339. Refusals before it are forgiven; an operator sets it.
RESUME = PREFIX + "resume"
# On the extender's own pod: the number of the latest term in which this replica began to lead.
TERM = PREFIX + "term"
# On a waiting pod: the node that is reserved for it (:mod:`.state.pods.reservation`).
RESERVED = PREFIX + "reserved"
# On a pod of a snapshot: why the pod's request could not be read. In a cluster it may not be
# written: there it is an unknown key.
MALFORMED = PREFIX + "malformed"
# The number of seconds after which `gpu-topology play` ends the pod.
PLAY_SECONDS = PREFIX + "play-seconds"
# The extender writes these annotations. On a request they are ignored.
OURS_TO_WRITE = frozenset({PLACEMENT, WAKE, RESERVED})
IGNORED = OURS_TO_WRITE | {PLAY_SECONDS}

# The resources that the extender places. A star stands for the rest of a name.
MANAGED = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")
# The implicit extended resource of NVIDIA's DeviceClass, of which kube-scheduler makes a claim.
# kube-scheduler accepts no such name among the resources for which it calls an extender.
IMPLICIT_NAME = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
UNASKED = (
    f"kube-scheduler does not send the extender a pod that requests only {IMPLICIT_NAME}, so "
    'nothing is promised: add nvidia.com/gpu: "0" to its limits, or set extendedResourceName: '
    "nvidia.com/gpu in the DeviceClass and request nvidia.com/gpu"
)
MAX_COUNT = 1024
MAX_CONTAINERS = 4096  # containers of one pod that ask for GPUs; an API server allows hundreds
MAX_TEMPLATE = 16_384  # bytes of a pod that is cached with its request
MAX_MODELS = 32  # different models in one gpu-model annotation
MODELS = "allowed are product names or globs, comma-separated, such as H100 or A100*"


_encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Malformed:
    """A pod whose request cannot be read. No node may take it."""

    reason: str  # always the same text, and short
    # What its containers ask for, without constraints, if at least that can be read. Another
    # scheduler may have bound the pod all the same.
    holds: GpuRequest | None = None


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A pod's request (devices, and the constraints on them) and the group that the pod is in."""

    request: GpuRequest
    group_ref: GroupReference | None = None

    @property
    def shared_bytes(self) -> int:
        """The approximate number of bytes that it takes in the memos that share it."""
        return 500 + self.request.shared_bytes


@dataclass(frozen=True, slots=True)
class Template:
    """What all pods made from one template have in common.

    It stays the same while a pod is bound, runs and ends.
    """

    pod: Pod
    too_much: str | None  # why only the pod's containers are read, if it exceeds a limit
    manifest: bytes | None  # the pod encoded; None if nothing of it is cached


def template_of(pod: Pod) -> Template:
    """Return the template of a pod."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    given, too_much = metadata.annotations or {}, exceeded_limit(pod)
    kept = ObjectMeta(
        namespace=metadata.namespace,
        annotations={key: value for key, value in given.items() if key not in IGNORED},
        labels=metadata.labels,
        owner_references=metadata.owner_references,
    )
    asked = msgspec.structs.replace(
        spec, node_name=None, scheduling_gates=None, topology_spread_constraints=None
    )
    template = Pod(kept, asked, PodStatus(qos_class=status.qos_class))
    try:
        manifest = _encode(template) if too_much is None else b""
    except (OverflowError, RecursionError):  # a number or a list that no reasonable pod has
        manifest = b""
    return Template(template, too_much, manifest if 0 < len(manifest) <= MAX_TEMPLATE else None)


Managed = tuple[str, ...]


def once(read: Callable[[Template, Managed], T]) -> Callable[[Template, Managed], T]:
    """Return a function that caches what ``read`` returns for each template."""
    known = Memo[tuple[bytes, Managed], T]()

    @wraps(read)
    def read_once(template: Template, managed: Managed) -> T:
        if template.manifest is None:
            return read(template, managed)
        found = known.get((template.manifest, managed))
        if found is None:
            found = read(template, managed)
            known.put((template.manifest, managed), found)
        return found

    return read_once


def parse(pod: Pod, managed: tuple[str, ...] = MANAGED) -> PodRequest | Malformed | None:
    """Return what the pod asks of the ``managed`` resources; None if it asks for none of them.

    A pod without our annotations is read as plain, whatever else it carries. Pod-level resources
    and ephemeral containers carry no GPUs.
    """
    return request_in(template_of(pod), managed)


@once
def request_in(template: Template, managed: Managed) -> PodRequest | Malformed | None:
    """Return what pods of a template ask for, as :func:`parse` does."""
    pod, too_much = template.pod, template.too_much
    try:
        containers, only_gpu_plugin = _asking(pod, managed)
    except BadValueError as error:
        return Malformed(str(error))
    if not containers:
        return None
    resource = managed_among(containers, managed)[0]
    asking = sum(map(len, containers.values()))
    if asking > MAX_CONTAINERS:
        return Malformed(
            f"{asking} containers request GPUs; at most {MAX_CONTAINERS} are allowed in a pod"
        )
    by_implicit_name = uses_implicit_name(pod)
    named = IMPLICIT_NAME if by_implicit_name else resource
    counted = GpuRequest(
        resource,
        tuple(containers[resource]),
        only_gpu_plugin=only_gpu_plugin and len(containers) == 1,
        exclusive=exclusive_of(pod, named) if too_much is None else Exclusive.CPUS,
        by_implicit_name=by_implicit_name,
    )
    if too_much is not None:
        return Malformed(too_much, counted)
    try:
        values = _values(pod)
        group_ref = group_ref_of(pod)
    except BadValueError as error:
        return Malformed(str(error), counted)
    policy = values.pop("policy", Policy.REQUIRED)
    constraints = Constraints(**values)
    if len(containers) > 1 and constraints != NO_CONSTRAINTS:
        kinds = " and ".join(sorted(containers))
        return Malformed(
            f"constraints work with one GPU resource, but the pod requests {kinds}", counted
        )
    if constraints.same_gpu and constraints.spread_gpus and counted.count > 1:
        both = f"{PREFIX}same-gpu and {PREFIX}spread-gpus"
        return Malformed(f"annotations {both}: only one of them is allowed", counted)
    return PodRequest(replace(counted, constraints=constraints, policy=policy), group_ref)


@dataclass(frozen=True, slots=True)
class ClaimConstraints:
    """The constraints on the devices that a pod's own ResourceClaims have."""

    namespace: str
    names: tuple[str, ...]  # these claims, in the pod's order; empty for one that is not made yet
    constraints: Constraints


def claim_constraints(
    pod: Pod, managed: tuple[str, ...] = MANAGED
) -> ClaimConstraints | Malformed | None:
    """Return the constraints on the pod's own claims.

    Return None if the pod has no claims or no constraints. Return None, too, if it names no
    ``managed`` resource: kube-scheduler does not call the extender about such a pod.
    """
    if not pod.spec.resource_claims or not asks_for_any(pod, managed):
        return None
    if too_much := exceeded_limit(pod):
        return Malformed(too_much)
    given = pod.metadata.annotations or {}
    for key in (PREFIX + name for name in GROUP_KEYS):
        if key in given:
            return Malformed(
                f"annotation {key}: a pod with its own ResourceClaims cannot be in a group"
            )
    try:
        values = _values(pod)
    except BadValueError as error:
        return Malformed(str(error))
    required = values.pop("policy", Policy.REQUIRED) is Policy.REQUIRED
    constraints = Constraints(**values)
    if not required or constraints == NO_CONSTRAINTS:
        return None
    return ClaimConstraints(pod.metadata.namespace, claims_of(pod), constraints)


def claims_of(pod: Pod) -> tuple[str, ...]:
    """Return the names of the pod's own claims in its order.

    The name of a claim that is not made yet is empty. At most :data:`.MOST_CLAIMS` names are
    returned; a pod with more claims is refused.
    """
    made = {each.name: each for each in pod.status.resource_claim_statuses or ()}
    names = [
        made[each.name].resource_claim_name if each.name in made else each.resource_claim_name or ""
        for each in (pod.spec.resource_claims or ())[:MOST_CLAIMS]
    ]
    return tuple(name for name in names if name is not None)  # None: the pod needs no such claim


def _asking(
    pod: Pod, managed: tuple[str, ...]
) -> tuple[Mapping[str, list[ContainerRequest]], bool]:
    """Return the containers that ask for each of the ``managed`` resources.

    The second value is True if the pod asks for nothing from other device plugins or DRA drivers.
    Raises :class:`BadValueError`.
    """
    containers: dict[str, list[ContainerRequest]] = {}
    only_gpu_plugin = not pod.spec.resource_claims
    for container, role in containers_with_roles(pod):
        names = _resources(container)
        # Resources of other device plugins have a domain of their own in their names.
        others = [name for name in names if "/" in name and ".kubernetes.io/" not in name]
        only_gpu_plugin &= len(others) == len(managed_among(others, managed))
        of_class = [IMPLICIT_NAME] if IMPLICIT_NAME in names and MANAGED[0] in managed else []
        for resource in (*managed_among(names, managed), *of_class):
            try:
                count = _count(container, resource)
            except BadValueError as error:
                raise BadValueError(
                    f"container {cut(container.name)}: {resource} {error}"
                ) from error
            if count:
                found = ContainerRequest(container.name, count, role)
                served = MANAGED[0] if resource == IMPLICIT_NAME else resource
                containers.setdefault(served, []).append(found)
    return containers, only_gpu_plugin


def _values(pod: Pod) -> dict[str, Any]:
    """Return the values of the annotations by field of :class:`Constraints`, and ``policy``.

    Raises :class:`BadValueError` for the first key, in the order of names, that cannot be read.
    """
    values: dict[str, Any] = {}
    ours = {k: v for k, v in (pod.metadata.annotations or {}).items() if k.startswith(PREFIX)}
    for key in sorted(ours.keys() - IGNORED):
        name = key.removeprefix(PREFIX)
        if name in GROUP_KEYS:
            continue
        if name not in KEYS:
            allowed = ", ".join((*KEYS, *GROUP_KEYS))
            raise BadValueError(f"annotation {cut(key)}: unknown key, allowed are {allowed}")
        field, read = KEYS[name]
        values[field] = annotation(ours, key, read)
    if "link" not in values and "min_nvlinks" not in values:
        values.pop("pattern", None)  # a pattern alone constrains nothing
    return values


def asks_for_any(pod: Pod, managed: tuple[str, ...]) -> bool:
    """Check whether a container of the pod names a ``managed`` resource, even with the amount 0."""
    return any(
        managed_among(_resources(container), managed) for container, _ in containers_with_roles(pod)
    )


def uses_implicit_name(pod: Pod) -> bool:
    """Check whether a container of the pod asks for GPUs by the name of their DeviceClass."""
    return any(
        IMPLICIT_NAME in _resources(container) for container, _ in containers_with_roles(pod)
    )


def is_unasked(pod: Pod, managed: tuple[str, ...]) -> bool:
    """Check whether the pod asks for GPUs but kube-scheduler calls no extender about it."""
    return uses_implicit_name(pod) and not asks_for_any(pod, managed)


def managed_among(names: Iterable[str], managed: tuple[str, ...]) -> list[str]:
    """Return the names that are ``managed``, in the order of ``managed``, then by name.

    >>> managed_among(["cpu", "nvidia.com/mig-2g.10gb", "nvidia.com/gpu"], MANAGED)
    ['nvidia.com/gpu', 'nvidia.com/mig-2g.10gb']
    """
    found = []
    for name in names:
        for place, entry in enumerate(managed):
            if name == entry or (entry[-1] == "*" and name.startswith(entry[:-1])):
                found.append((place, name))
                break
    return [name for _, name in sorted(found)]


def _resources(container: Container) -> set[str]:
    """Return the names of the resources that a container asks for."""
    resources = container.resources or Resources()
    return {*(resources.requests or {}), *(resources.limits or {})}


def _count(container: Container, resource: str) -> int:
    """Return how many devices a container asks for.

    It is the container's request, or its limit if it has no request.
    """
    resources = container.resources or Resources()
    for amounts in (resources.requests, resources.limits):
        if amounts and resource in amounts:
            amount = quantity(str(amounts[resource]))
            if amount != int(amount) or not 0 <= amount <= MAX_COUNT:
                given = shortened(str(amounts[resource]))
                raise BadValueError(f"{given} is not a whole number from 0 to {MAX_COUNT}")
            return int(amount)
    return 0


def _one_of(words: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        word = text.lower()
        if not text.isascii() or word not in words:
            raise BadValueError(f"allowed are {', '.join(words)}")
        return words[word]

    return read


def _nvlinks(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,2}", text) or not 1 <= int(text) <= 18:
        raise BadValueError("allowed are whole numbers from 1 to 18")
    return int(text)


def _bandwidth(text: str) -> GBps:
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or float(text) <= 0:
        raise BadValueError("allowed are GB/s above 0, such as 100 or 37.5")
    return GBps(float(text))


def _models(text: str) -> tuple[str, ...]:
    if not "".join(text.split()).isascii():  # the Kelvin sign folds to the ASCII letter k
        raise BadValueError(MODELS)
    models = [canonical_product(model) for model in text.split(",")]
    if not all(re.fullmatch(r"[a-z0-9*?.()+/-]{1,64}", model) for model in models):
        raise BadValueError(MODELS)
    # Every product here is NVIDIA's, so "NVIDIA*" matches the same as "*". "**" also does.
    models = [re.sub(r"^nvidia(\*|$)", "*", model) for model in models]
    found = tuple(sorted({re.sub(r"\*+", "*", model) for model in models}))
    if len(found) > MAX_MODELS:
        raise BadValueError(f"{len(found)} different models; at most {MAX_MODELS} are allowed")
    return found


_LINK_LEVELS = {
    "nvlink": LinkKind.NVLINK,
    "pix": LinkKind.PIX,
    "pxb": LinkKind.PXB,
    "phb": LinkKind.PHB,
    "node": LinkKind.NODE,
}
_NIC_LEVELS = {k: v for k, v in _LINK_LEVELS.items() if k != "nvlink"}

# Each annotation (without prefix), its field of Constraints, and the function that reads its value.
KEYS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "link": ("link", _one_of(_LINK_LEVELS)),
    "min-nvlinks": ("min_nvlinks", _nvlinks),
    "shape": ("pattern", _one_of({p.value: p for p in Pattern})),
    "min-bandwidth": ("min_bandwidth", _bandwidth),
    "min-gpu-memory": ("min_gpu_memory", memory),
    "gpu-model": ("models", _models),
    "same-numa": ("same_numa", _one_of({"true": True, "false": False})),
    "nic": ("nic", _one_of(_NIC_LEVELS)),
    "same-gpu": ("same_gpu", _one_of({"true": True, "false": False})),
    "spread-gpus": ("spread_gpus", _one_of({"true": True, "false": False})),
    "gpu-memory": ("gpu_memory", memory),
    "sharing": ("exclusive_gpus", _one_of({"exclusive": True, "shared": False})),
    "policy": ("policy", _one_of({p.value: p for p in Policy})),
}


def render(request: GpuRequest) -> dict[str, str]:
    """Return the annotations that :func:`parse` reads as this request's constraints and policy."""
    wanted = request.constraints
    values = {
        "link": wanted.link.name.lower() if wanted.link else "",
        "min-nvlinks": str(wanted.min_nvlinks or ""),
        "shape": "" if wanted.pattern is Pattern.PAIRWISE else wanted.pattern.value,
        "min-bandwidth": _plain(wanted.min_bandwidth) if wanted.min_bandwidth else "",
        "min-gpu-memory": memory_text(wanted.min_gpu_memory) if wanted.min_gpu_memory else "",
        "gpu-model": ",".join(wanted.models),
        "same-numa": "true" if wanted.same_numa else "",
        "nic": wanted.nic.name.lower() if wanted.nic else "",
        "same-gpu": "true" if wanted.same_gpu else "",
        "spread-gpus": "true" if wanted.spread_gpus else "",
        "gpu-memory": memory_text(wanted.gpu_memory) if wanted.gpu_memory else "",
        "sharing": "exclusive" if wanted.exclusive_gpus else "",
        "policy": "" if request.policy is Policy.REQUIRED else request.policy.value,
    }
    return {PREFIX + key: value for key, value in values.items() if value}


def _plain(number: float) -> str:
    """Return the number without an exponent, which :func:`parse` would refuse."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def containers_of(request: GpuRequest) -> dict[str, Any]:
    """Return the containers of a pod's spec that :func:`parse` reads as this request's."""
    found: dict[str, Any] = {"containers": []}
    left = list(request.containers)
    demands = request.exclusive.demands
    if not demands:  # CPUs and memory of which parse() reads the same kind of exclusive request
        cpus = int(request.exclusive.cpus)
        memory = (("memory", 1 << 30),) if request.exclusive.memory else ()
        demands = tuple(Demand(c.role, c.count, cpus, memory) for c in request.containers)
    for i, demand in enumerate(demands):
        name = left.pop(0).name if demand.devices and left else f"beside-{i}"
        limits = amounts_of(demand, request.exclusive)
        if demand.devices:
            limits[IMPLICIT_NAME if request.by_implicit_name else request.resource] = str(
                demand.devices
            )
        written: dict[str, Any] = {"name": name, "resources": {"limits": limits}}
        if demand.role is Role.SIDECAR:
            written["restartPolicy"] = "Always"
        place = "containers" if demand.role is Role.APP else "initContainers"
        found.setdefault(place, []).append(written)
    return found
