"""Read from a pod's manifest what it asks of the kubelet's static CPU and Memory Managers."""

from decimal import Decimal

from scheduler_extender.quantities import quantity
from scheduler_extender.wire import Container, Pod, Resources
from topology.core.requests import MAX_DEMANDS, Demand, Exclusive, Role


def containers_with_roles(pod: Pod) -> list[tuple[Container, Role]]:
    """Return the containers in the kubelet's order, init containers first."""
    init = [
        (c, Role.SIDECAR if c.restart_policy == "Always" else Role.INIT)
        for c in pod.spec.init_containers or []
    ]
    return init + [(c, Role.APP) for c in pod.spec.containers or []]


def exclusive_of(pod: Pod, resource: str) -> Exclusive:
    """Return what static CPU and Memory Managers would give to the pod, by Kubernetes' rules.

    For a pod with pod-level resources it depends on the kubelet's version; the most is returned.
    """
    all_of_them = containers_with_roles(pod)
    containers = [c.resources or Resources() for c, _ in all_of_them]
    told, of_pod = pod.status.qos_class, pod.spec.resources is not None
    guaranteed = told == "Guaranteed" if told else of_pod or all(map(_is_guaranteed, containers))
    if not guaranteed:
        return Exclusive.NOTHING
    if of_pod or len(containers) > MAX_DEMANDS:
        return Exclusive.CPUS
    demands = [_demand(container, role, resource) for container, role in all_of_them]
    known = tuple(demand for demand in demands if demand is not None)
    if len(known) < len(demands):
        return Exclusive.CPUS  # an unreadable amount
    return Exclusive(any(d.cpus for d in known), memory=True, demands=known)


def _demand(container: Container, role: Role, resource: str) -> Demand | None:
    """Return a container's devices, CPUs and memory; None if an amount cannot be read."""
    asked = container.resources or Resources()
    amounts = {**(asked.limits or {}), **(asked.requests or {})}
    read = {
        name: _amount(amount)
        for name, amount in amounts.items()
        if name in ("cpu", "memory", resource) or name.startswith("hugepages-")
    }
    whole = {name: amount for name, amount in read.items() if amount is not None}
    if len(whole) < len(read) or any(not 0 <= amount < 2**63 for amount in whole.values()):
        return None
    if any(amount != int(amount) for name, amount in whole.items() if name != "cpu"):
        return None  # the Memory Manager accepts only whole bytes
    cpus = whole.get("cpu", Decimal(0))
    memory = sorted((n, int(whole[n])) for n in whole.keys() - {"cpu", resource} if whole[n] > 0)
    return Demand(
        role,
        int(whole.get(resource, 0)),
        int(cpus) if cpus == int(cpus) else 0,
        tuple(memory),
    )


def _is_guaranteed(resources: Resources) -> bool:
    """Check whether a container has limits of CPU and memory, and requests that equal them.

    For Kubernetes (``ComputePodQOS``) a limit of 0 is none.
    """
    limits, requests = resources.limits or {}, resources.requests or {}
    return all(
        (limit := _amount(limits.get(name))) != 0
        and (name not in requests or _amount(requests[name]) == limit)
        for name in ("cpu", "memory")
    )


def _amount(given: str | int | float | None) -> Decimal | None:
    """Return a quantity as a number; None if it cannot be read."""
    try:
        return quantity(str(given)) if given is not None else Decimal(0)
    except ValueError:
        return None


def amounts_of(demand: Demand, exclusive: Exclusive) -> dict[str, str]:
    """Return the CPU and memory limits that :func:`exclusive_of` reads as this demand."""
    if exclusive == Exclusive.NOTHING:
        return {}
    found = {"cpu": str(demand.cpus) if demand.cpus else "500m"}
    return found | {kind: str(amount) for kind, amount in demand.memory}
