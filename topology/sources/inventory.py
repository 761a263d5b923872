"""The identity of the GPUs: product, UUID and memory, as the text lists them beside its matrix.

``nvidia-smi -L``, ``nvidia-smi --query-gpu=… --format=csv`` and the table of ``nvidia-smi`` number
the GPUs as the matrix does. Reports of PyTorch and vLLM repeat ``-L`` without the UUIDs. CUDA
numbers GPUs in an order of its own (sglang's report), and CSV without a header has no numbers.
These two show only which products the machine has.

Values that a text lacks come from the caller, then from the catalogue of machines. The rest stays
unknown (:func:`identify`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from topology.core.devices import (
    MIB,
    Bytes,
    Gpu,
    GpuUuid,
    MigInstance,
    NodeName,
    bus_id,
    runs,
)
from topology.core.links import NVLINK_PORTS, NvlinkPort, canonical_product, nvlink_port
from topology.machines import MACHINES
from topology.machines.mig import nominal_memory
from topology.machines.notation import uuid_of
from topology.sources.imported import Finding, Findings, SourceError, quoted
from topology.sources.lines import Line

UNKNOWN_PRODUCT = "unknown"
MOST_NVLINKS = max(port.links for _, port in NVLINK_PORTS)
_LISTED = re.compile(r"\s*GPU ([0-9]{1,4}): (.{1,200}?) \(UUID: (GPU-\S{1,200}?)\)\s*")
_MIG_DEVICE = re.compile(r"\s+MIG (\S{1,32})\s+Device\s+[0-9]+: \(UUID: (MIG-\S{1,200}?)\)\s*")
MOST_MIG_DEVICES = 16  # of one GPU, as in a record
# Columns of `nvidia-smi --query-gpu` that are read, besides `index`.
_COLUMNS = {
    "name": "product",
    "gpu_name": "product",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "memory.total": "memory",
    "pci.bus_id": "pci_bus_id",
    "gpu_bus_id": "pci_bus_id",
    "mig.mode.current": "mig_mode",
}
_WORDS = r"[\w .()+/-]{1,60}?"
_NAMED = re.compile(
    r"\s*(?:GPU models and configuration:\s*)?GPU ([0-9]{1,4})((?:,[0-9]{1,4}){0,64}): "
    rf"((?:(?:NVIDIA|Tesla|GeForce|Quadro|TITAN) |[ABHLPTV][0-9]){_WORDS})\s*"
)
# The list that a report's own program prints: `GPU0: NVIDIA GeForce RTX 4090, 24564 MiB, driver
# 590.44.01`.
OWN_LIST = re.compile(
    rf"\s*GPU([0-9]{{1,4}}): ((?:NVIDIA|Tesla|GeForce|Quadro|TITAN) {_WORDS}), ?"
    r"([0-9]{1,7}) ?MiB(?:,.{0,200})?"
)
_BY_CUDA = re.compile(r"\s*GPU [0-9,]+ Compute Capability:")
_WITHOUT_HEADER = re.compile(rf"\s*(?:[0-9]{{1,4}}, ?)?(NVIDIA {_WORDS}), ?[0-9].*")
# The first of a GPU's three lines in the table of `nvidia-smi`.
_CARD = re.compile(
    r"\s*([0-9]{1,4})\s+(\S.{0,60}?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM) *\t *"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])\s.*"
)
_CARD_MEMORY = re.compile(r".{0,200}?[0-9]MiB */ *([0-9]{1,7})MiB\s.*")
_CARD_IN_MIG_MODE = re.compile(r"(?:.{0,200}\t)?\s*Enabled\*?\s*")


@dataclass(frozen=True, slots=True)
class Listed:
    """The text's entries about one GPU, apart from its links. None if the text lacks the value."""

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
    findings: Findings,
) -> list[Gpu]:
    """Return the GPUs by index, completed by ``product``, ``memory`` and the catalogue.

    An argument that contradicts the text is refused. A UUID that the text lacks is made from the
    node's name and the index, so the same text always gives the same object. ``findings`` list, at
    ``line``, what is made up or stays unknown.
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
                uuid=GpuUuid(gpu.uuid or f"GPU-{uuid_of(f'{node}/{index}')}"),
                product=named or UNKNOWN_PRODUCT,
                memory=size or Bytes(0),
                numa_node=gpu.numa_node,
                pci_bus_id=gpu.pci_bus_id,
                mig_mode=gpu.mig_mode or "disabled",
                mig_instances=gpu.mig_instances or (),
            )
        )
    notes = [
        (
            made_up,
            "the text has no UUIDs, so they are generated from the node's name and the index",
        ),
        (
            [g.index for g in gpus if g.product == UNKNOWN_PRODUCT],
            "the product is unknown, so no pod with gpu-model fits and the NVLink bandwidth is "
            "unknown; give --product",
        ),
        (
            [g.index for g in gpus if not g.memory],
            "the memory is unknown and recorded as 0, so no pod with min-gpu-memory fits; give "
            "--memory",
        ),
        (
            [g.index for g in gpus if g.mig_mode == "enabled"],
            "MIG is enabled, so the GPU is not placed as a whole GPU",
        ),
        (
            [g.index for g in gpus if g.mig_instances],
            "MIG instances are recorded as the plugin's strategy mixed serves them, with the "
            "memory in the profile's name; for the strategy single, change spec.resources",
        ),
    ]
    findings += [Finding(line, f"{gpu_names(which)}: {text}") for which, text in notes if which]
    findings += [
        Finding(
            line,
            f"the memory is taken from the catalogue: {text}; give --memory for the exact amount",
        )
        for text in sorted(from_catalogue)
    ]
    return gpus


def known_port(gpu: Gpu, count: int, line: int, findings: Findings) -> NvlinkPort | None:
    """Return the NVLink port of a GPU seen with ``count`` links; None if it is unknown.

    If the product cannot have that many links, either the product or our table is wrong. Then the
    port is unknown.
    """
    port = nvlink_port(gpu.product)
    if port is not None and count > port.links:
        text = f"GPU{gpu.index}: {count} NVLinks, but {quoted(gpu.product)} has {port.links}: "
        findings.note(line, text + "check the product; the NVLink speed is recorded as unknown")
        return None
    return port


def note_lost_links(
    gpus: Iterable[Gpu], attached: Mapping[int, int], line: int, findings: Findings
) -> None:
    """Note the GPUs that have fewer NVLinks to the switch than others of the same product."""
    most: dict[str, int] = {}
    fewer: dict[tuple[int, int], list[int]] = {}
    for gpu in gpus:
        most[gpu.product] = max(most.get(gpu.product, 0), attached[gpu.index])
    for gpu in gpus:
        if attached[gpu.index] < most[gpu.product]:
            both = attached[gpu.index], most[gpu.product]
            fewer.setdefault(both, []).append(gpu.index)
    for (here, there), which in fewer.items():
        text = f"{gpu_names(which)}: {here} NVLinks to the switch, but others have {there}"
        findings.note(line, f"{text}; check for links that are down")


def gpu_names(indices: Iterable[int]) -> str:
    """Return the names of GPUs for people, with runs shortened.

    >>> gpu_names([0, 1, 2, 5, 6])
    'GPU0 to GPU2, GPU5, GPU6'
    """
    return ", ".join(
        f"GPU{run[0]} to GPU{run[-1]}" if len(run) > 2 else ", ".join(f"GPU{n}" for n in run)
        for run in runs(sorted(indices))
    )


def _refuse_unless_same(index: int, gpu: Listed, what: str, told: object, given: object) -> None:
    if told is not None and given is not None and told != given:
        raise SourceError(
            gpu.line,
            f"GPU {index}",
            f"{what} is {quoted(str(told))}, but --{what} is {quoted(str(given))}",
        )


def _catalogue_memory(product: str) -> Bytes | None:
    """Return the memory of a product by its exact name; None if the catalogue lacks it.

    It is also None if the catalogue has cards of several sizes by that name.
    """
    cards = (m.card for m in MACHINES.values())
    same = {c.mib for c in cards if canonical_product(c.product) == canonical_product(product)}
    return Bytes(same.pop() * MIB) if len(same) == 1 else None


def read_inventory(lines: Sequence[Line]) -> tuple[dict[int, Listed], list[str]]:
    """Return the GPUs by index, and the products of GPUs without an index.

    Two lines that disagree about a GPU are refused.
    """
    inventory = _Inventory(by_cuda=any(_BY_CUDA.match(text) for _, text, _ in lines))
    for number, text, _ in lines:
        if not text:
            inventory.columns = []
        elif not (inventory.lists(number, text) or inventory.draws_card(number, text)):
            inventory.is_csv(number, text)
    return inventory.gpus, inventory.unnumbered


class _Inventory:
    """The content of the lines so far.

    Each form of line has a method, which returns whether the line has that form.
    """

    def __init__(self, *, by_cuda: bool) -> None:
        self.gpus: dict[int, Listed] = {}
        self.unnumbered: list[str] = []
        self.columns: list[str] = []
        self._by_cuda = by_cuda
        self._latest: int | None = None
        self._card, self._card_line = -1, -3

    def lists(self, number: int, text: str) -> bool:
        """Read a line of ``nvidia-smi -L``, or of a framework's report."""
        if match := _LISTED.fullmatch(text):
            self._latest = int(match[1])
            _add(self.gpus, self._latest, Listed(number, match[2], match[3]))
        elif match := _NAMED.fullmatch(text):
            if self._by_cuda or match[2]:
                self.unnumbered += [match[3]] * (1 + match[2].count(","))
            else:
                _add(self.gpus, int(match[1]), Listed(number, match[3]))
        elif match := OWN_LIST.fullmatch(text):
            size = Bytes(int(match[3]) * MIB)
            _add(self.gpus, int(match[1]), Listed(number, match[2], memory=size))
        elif self._latest is not None and (match := _MIG_DEVICE.fullmatch(text)):
            _add(self.gpus, self._latest, Listed(number, mig_mode="enabled"))
            _add_instance(self.gpus, self._latest, number, match[1], match[2])
        else:
            return False
        return True

    def draws_card(self, number: int, text: str) -> bool:
        """Read one of the three lines that a GPU has in the table of ``nvidia-smi``."""
        if match := _CARD.fullmatch(text):
            self._card, self._card_line = int(match[1]), number
            product = None if match[2].endswith("...") else match[2]
            _add(self.gpus, self._card, Listed(number, product, pci_bus_id=bus_id(match[3])))
            return True
        if number - self._card_line >= 3:
            return False
        if match := _CARD_MEMORY.fullmatch(text):
            _add(self.gpus, self._card, Listed(number, memory=Bytes(int(match[1]) * MIB)))
        elif _CARD_IN_MIG_MODE.fullmatch(text):
            _add(self.gpus, self._card, Listed(number, mig_mode="enabled"))
        else:
            return False
        return True

    def is_csv(self, number: int, text: str) -> None:
        """Read a header or a row of CSV; any other line ends the table."""
        values = [value.strip() for value in text.split(",")]
        if "index" in values and len(values) > 1:
            self.columns = [value.partition(" [")[0] for value in values]
        elif self.columns and len(values) == len(self.columns):
            row = dict(zip(self.columns, values, strict=True))
            if re.fullmatch(r"[0-9]{1,4}", row["index"]):
                _add(self.gpus, int(row["index"]), _from_csv(number, row))
        else:
            self.columns = []
            if match := _WITHOUT_HEADER.fullmatch(text):
                self.unnumbered.append(match[1])


def _add(found: dict[int, Listed], index: int, more: Listed) -> None:
    old = found.get(index)
    if old is None:
        found[index] = more
        return
    news = {}
    for field in fields(Listed)[1:]:
        before, now = getattr(old, field.name), getattr(more, field.name)
        if before is not None and now is not None and before != now:
            raise SourceError(
                more.line,
                f"GPU {index}",
                f"{field.name} {quoted(str(now))}, but {quoted(str(before))} on line {old.line}",
            )
        news[field.name] = before if now is None else now
    found[index] = replace(old, **news)


def _add_instance(found: dict[int, Listed], index: int, line: int, profile: str, uuid: str) -> None:
    """Add an instance to a GPU; the same line twice counts once.

    If the profile cannot be read, the line only shows that the GPU is in MIG mode.
    """
    memory = nominal_memory(profile)
    had = found[index].mig_instances or ()
    part = MigInstance(uuid, profile, memory or Bytes(0))
    if memory is None or part in had:
        return
    if len(had) == MOST_MIG_DEVICES:
        raise SourceError(
            line, f"GPU {index}", f"more than {MOST_MIG_DEVICES} MIG instances of one GPU"
        )
    found[index] = replace(found[index], mig_instances=(*had, part))


def _from_csv(line: int, row: dict[str, str]) -> Listed:
    fields: dict[str, str] = {}
    for column, value in row.items():
        if column in _COLUMNS and value and not re.fullmatch(r"\[.*\]|N/A", value):
            fields[_COLUMNS[column]] = value
    memory = re.fullmatch(r"([0-9]{1,12})(?: MiB)?", fields.get("memory", ""))
    return Listed(
        line,
        fields.get("product"),
        fields.get("uuid"),
        Bytes(int(memory[1]) * MIB) if memory else None,
        bus_id(fields["pci_bus_id"]) if "pci_bus_id" in fields else None,
        "enabled" if fields.get("mig_mode") == "Enabled" else None,
    )
