"""Who the GPUs are: product, UUID and memory, completed where the text does not say.

What a text does not list (:mod:`~topology.sources.inventory`) comes from the caller, then from the
catalogue of machines, and is else left unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256

from topology.core.devices import MIB, Bytes, Gpu, GpuUuid, MigInstance, NodeName
from topology.core.links import NVLINK_PORTS, NvlinkPort, canonical_product, nvlink_port
from topology.machines import MACHINES
from topology.sources.imported import Finding, SourceError, quoted

UNKNOWN_PRODUCT = "unknown"
MOST_NVLINKS = max(port.links for _, port in NVLINK_PORTS)


@dataclass(frozen=True, slots=True)
class Listed:
    """What a text says of one GPU apart from its links; None where it does not say."""

    line: int
    product: str | None = None
    uuid: str | None = None
    memory: Bytes | None = None
    pci_bus_id: str | None = None
    mig_mode: str | None = None
    numa_node: int | None = None
    mig_instances: tuple[MigInstance, ...] | None = None


def identify(
    node: NodeName,
    seen: dict[int, Listed],
    product: str | None,
    memory: Bytes | None,
    line: int,
    findings: list[Finding],
) -> list[Gpu]:
    """The GPUs by index, completed by the caller's ``product`` and ``memory`` and the catalogue.

    An argument that contradicts the text is refused. UUIDs that the text lacks are made of the
    node's name and the index, so that the same text always gives the same object. What is made
    up or stays unknown is said in ``findings``, at ``line``.
    """
    product = (product or "").strip() or None
    gpus, made_up, from_catalogue = [], [], set[str]()
    for index, gpu in sorted(seen.items()):
        if product and gpu.product and canonical_product(product) == canonical_product(gpu.product):
            named: str | None = gpu.product
        else:
            _refuse_unless_same(index, gpu, "product", gpu.product, product)
            named = gpu.product or product
        _refuse_unless_same(index, gpu, "memory", gpu.memory, memory)
        size = memory if gpu.memory is None else gpu.memory
        if size is None and named and (size := _catalogue_memory(named)) is not None:
            from_catalogue.add(f"{named} {size // MIB} MiB")
        if gpu.uuid is None:
            made_up.append(index)
        gpus.append(
            Gpu(
                index=index,
                uuid=GpuUuid(gpu.uuid or _made_up_uuid(node, index)),
                product=named or UNKNOWN_PRODUCT,
                memory=size or Bytes(0),
                numa_node=gpu.numa_node,
                pci_bus_id=gpu.pci_bus_id,
                mig_mode=gpu.mig_mode or "disabled",
                mig_instances=gpu.mig_instances or (),
            )
        )
    _note_unsaid(gpus, made_up, from_catalogue, line, findings)
    return gpus


def _note_unsaid(
    gpus: list[Gpu],
    made_up: list[int],
    from_catalogue: set[str],
    line: int,
    findings: list[Finding],
) -> None:
    """Say in ``findings`` what the text does not, and what was taken instead."""
    notes = [
        (made_up, "UUIDs are made up from the node's name and the index: the text has none"),
        (
            [g.index for g in gpus if g.product == UNKNOWN_PRODUCT],
            "product unknown: gpu-model holds nowhere and NVLinks have no speed (--product says)",
        ),
        (
            [g.index for g in gpus if not g.memory],
            "memory unknown, written as 0: min-gpu-memory holds nowhere (--memory says)",
        ),
        (
            [g.index for g in gpus if g.mig_mode == "enabled"],
            "MIG is enabled: the GPU is split and takes no part in whole-GPU placement",
        ),
        (
            [g.index for g in gpus if g.mig_instances],
            "MIG instances: written as the plugin's strategy mixed serves them, with memory by "
            "the profile's name; under the strategy single change spec.resources",
        ),
    ]
    findings += [Finding(line, f"{gpu_names(which)}: {text}") for which, text in notes if which]
    findings += [
        Finding(line, f"memory is the catalogue's: {text} (--memory says it exactly)")
        for text in sorted(from_catalogue)
    ]


def known_port(gpu: Gpu, count: int, line: int, findings: list[Finding]) -> NvlinkPort | None:
    """The NVLink attachment of a GPU seen with ``count`` links, None where unknown.

    A count that the product cannot have says that the product or our table is wrong: then
    nothing is known of it.
    """
    port = nvlink_port(gpu.product)
    if port is not None and count > port.links:
        text = f"GPU{gpu.index}: {count} NVLinks, but {quoted(gpu.product)} has {port.links}: "
        findings.append(Finding(line, text + "is the product right? Speed left unknown"))
        return None
    return port


def note_lost_links(
    gpus: Iterable[Gpu], attached: Mapping[int, int], line: int, findings: list[Finding]
) -> None:
    """Say where GPUs of one product have fewer NVLinks to the switch than others."""
    most: dict[str, int] = {}
    fewer: dict[tuple[int, int], list[int]] = {}
    for gpu in gpus:
        most[gpu.product] = max(most.get(gpu.product, 0), attached[gpu.index])
    for gpu in gpus:
        if attached[gpu.index] < most[gpu.product]:
            both = attached[gpu.index], most[gpu.product]
            fewer.setdefault(both, []).append(gpu.index)
    for (here, there), which in fewer.items():
        text = f"{gpu_names(which)}: {here} NVLinks to the switch where others have {there}"
        findings.append(Finding(line, f"{text}: are links down?"))


def gpu_names(indices: Iterable[int]) -> str:
    """GPUs for people, runs drawn together.

    >>> gpu_names([0, 1, 2, 5, 6])
    'GPU0 to GPU2, GPU5, GPU6'
    """
    found: list[list[int]] = []
    for number in sorted(indices):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    names = []
    for run in found:
        if len(run) > 2:
            names.append(f"GPU{run[0]} to GPU{run[-1]}")
        else:
            names += [f"GPU{number}" for number in run]
    return ", ".join(names)


def _refuse_unless_same(index: int, gpu: Listed, what: str, told: object, given: object) -> None:
    if told is not None and given is not None and told != given:
        message = f"{what} {quoted(str(told))}, but --{what} says {quoted(str(given))}"
        raise SourceError(gpu.line, f"GPU {index}", message)


def _catalogue_memory(product: str) -> Bytes | None:
    """The memory of a product by its exact name; None where the catalogue lacks it."""
    cards = (m.card for m in MACHINES.values())
    same = {c.mib for c in cards if canonical_product(c.product) == canonical_product(product)}
    return Bytes(same.pop() * MIB) if len(same) == 1 else None


def _made_up_uuid(node: NodeName, index: int) -> str:
    name = f"{node}/{index}".encode(errors="backslashreplace")
    digits = sha256(name).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
