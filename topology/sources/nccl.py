"""The reader of NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``, or a cloud's static file).

The file is NCCL's view of the PCIe tree. Each ``<cpu numaid>`` contains ``<pci busid class>``
elements, which may contain more of them. GPUs have ``<gpu dev>`` with ``<nvlink>``, NICs have
``<nic>`` with ``<net name>``. A bridge in it is a whole switch. So two leaves of one switch are
PIX, and any longer path that stays below the CPU is PXB. Host bridges are not in the file. So two
devices of one CPU without a common switch may be PHB or NODE, and only the weaker class, NODE, can
be guaranteed. Between CPUs it is SYS.

The XML is untrusted input. :func:`tree` reads it at a cost that is bounded by the text's length.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from xml.parsers import expat

from topology.core.devices import Bytes, Gpu, Nic, NodeName, bus_id
from topology.core.links import GBps, Link, LinkKind, Via
from topology.sources.imported import (
    Findings,
    Imported,
    SourceError,
    checked_size,
    imported,
    quoted,
)
from topology.sources.inventory import Listed, identify, known_port, note_lost_links

MAX_DEPTH = 64  # nested elements
ROOTS = {
    "topology": "this is hwloc's file (lstopo), which does not show NVLinks",
    "nvidia_smi_log": "this is the output of `nvidia-smi -q -x`, which does not show links",
    "graphs": "this is NCCL's graph file (NCCL_GRAPH_DUMP_FILE), not its topology",
}
ELSE = "NCCL_TOPO_DUMP_FILE writes the topology, and `nvidia-smi topo -m` prints it"
# The most GPUs, and the most NICs. Real files have far fewer. The number of pairs grows with the
# square.
MAX_DEVICES = 256
GPU_CLASS, NIC_CLASS, NVSWITCH_CLASS = "0x03", "0x02", "0x068000"
NVIDIA = "0x10de"
# Makers of GPUs by PCI vendor id; for messages only.
VENDORS = {"0x1002": "AMD", "0x8086": "Intel", "0x1d94": "Hygon", "0x1ed5": "Moore Threads"}


@dataclass(slots=True)
class Element:
    """An XML element with the line on which it starts."""

    tag: str
    attributes: dict[str, str]
    line: int
    parent: Element | None
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the text."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)

    def ancestors(self) -> list[Element]:
        """Return the elements that contain this one, nearest first."""
        found, at = [], self.parent
        while at is not None:
            found.append(at)
            at = at.parent
        return found

    def all(self, tag: str) -> list[Element]:
        """Return the children with this tag."""
        return [child for child in self.children if child.tag == tag]


def tree(text: str) -> Element:
    """Return the XML as elements. A DOCTYPE is refused, so no entity can expand.

    Raises :class:`.SourceError`.
    """
    start = text.lstrip("\ufeff \t\r\n")
    skipped = text[: len(text) - len(start)].count("\n")
    top: list[Element] = []
    open_: list[Element] = []
    parser = expat.ParserCreate("utf-8")

    def line() -> int:
        return skipped + parser.CurrentLineNumber

    def begin(tag: str, attributes: dict[str, str]) -> None:
        if len(open_) >= MAX_DEPTH:
            raise SourceError(line(), tag, f"nested deeper than {MAX_DEPTH} elements")
        element = Element(tag, attributes, line(), open_[-1] if open_ else None)
        (open_[-1].children if open_ else top).append(element)
        open_.append(element)

    def end(tag: str) -> None:
        open_.pop()

    def refuse(root: str, *_: object) -> None:
        message = "a DOCTYPE is not allowed, and NCCL writes none"
        known = f": {ROOTS[root]}; {ELSE}" if root in ROOTS else ""
        raise SourceError(line(), None, message + known)

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(start.encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise SourceError(
            skipped + error.lineno, None, f"broken XML: {expat.ErrorString(error.code)}"
        ) from error
    return top[0]


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or NIC in the tree, with the switches above it, nearest first, and its CPU."""

    element: Element
    bus: str
    switches: tuple[int, ...]
    cpu: Element


def parse_nccl(
    text: str,
    node: NodeName,
    *,
    product: str | None = None,
    memory: Bytes | None = None,
) -> Imported:
    """Return the topology of ``node`` as NCCL wrote it.

    GPUs are numbered by their ``dev``, or by bus id, as the driver does, if one lacks it. No such
    file has ``product`` and ``memory`` (bytes of each GPU), so the caller gives them. Raises
    :class:`SourceError` if the XML is broken, has a DOCTYPE, or contradicts itself.
    """
    root = tree(checked_size(text))
    if root.tag != "system":
        message = f"the root element is {quoted(root.tag)}, but NCCL's is 'system'"
        known = f": {ROOTS[root.tag]}; {ELSE}" if root.tag in ROOTS else ""
        raise SourceError(root.line, None, message + known)
    _refuse_several_machines(root)
    findings = Findings()
    devices = _numbered(_gpus(root, findings), root.line, findings)
    if not devices:
        raise SourceError(
            root.line,
            None,
            "no NVIDIA GPU found: there is neither a <gpu> nor a <pci> of class 0x03…",
        )
    seen = {
        index: Listed(gpu.element.line, pci_bus_id=gpu.bus, numa_node=_numa(gpu.cpu))
        for index, gpu in devices.items()
    }
    gpus = identify(node, seen, product, memory, root.line, findings)
    links = _links(gpus, devices, root.line, findings)
    return imported(node, gpus, links, _nics(root, devices, findings), findings, root.line)


def _refuse_several_machines(root: Element) -> None:
    """Refuse a file of several machines.

    NCCL writes each NUMA node of a machine once, and ``host_hash`` distinguishes the NUMA nodes of
    several hosts.
    """
    cpus: dict[str, Element] = {}
    for cpu in (e for e in root.walk() if e.tag == "cpu"):
        first = next(iter(cpus.values()), cpu)
        if cpu.attributes.get("host_hash") != first.attributes.get("host_hash"):
            raise SourceError(
                root.line,
                None,
                "the CPUs have several host_hash values; give the file of one machine",
            )
        number = cpu.attributes.get("numaid", "")
        if number and number in cpus:
            message = f"numaid {quoted(number)} is already used on line {cpus[number].line}"
            raise SourceError(cpu.line, "cpu", message + "; give the text of one machine")
        cpus[number] = cpu


def _gpus(root: Element, findings: Findings) -> list[Device]:
    devices: dict[str, Device] = {}
    for pci in root.walk():
        if pci.tag != "pci" or not (pci.all("gpu") or _class(pci).startswith(GPU_CLASS)):
            continue
        vendor = pci.attributes.get("vendor", "").lower() or NVIDIA
        if vendor != NVIDIA and not pci.all("gpu"):
            findings.note(pci.line, f"a display of vendor {quoted(vendor)}: left out")
            continue
        device = _device(pci)
        if not device.bus:
            raise SourceError(pci.line, "pci", "a GPU has no busid")
        _refuse_other_vendors(device, vendor)
        _note_parts(device, findings)
        if device.bus in devices:
            raise SourceError(
                pci.line,
                device.bus,
                f"this GPU is already on line {devices[device.bus].element.line}",
            )
        devices[device.bus] = device
    _bound(len(devices), "GPUs", root.line)
    return list(devices.values())


def _refuse_other_vendors(device: Device, vendor: str) -> None:
    """Refuse GPUs of other vendors.

    RCCL, AMD's NCCL, writes the same file, often without a vendor.
    """
    gpus = device.element.all("gpu")
    if vendor == NVIDIA and any("gcn" in gpu.attributes or gpu.all("xgmi") for gpu in gpus):
        vendor = "0x1002"
    if vendor != NVIDIA:
        whose = f"{VENDORS[vendor]} ({vendor})" if vendor in VENDORS else quoted(vendor)
        raise SourceError(
            device.element.line,
            device.bus,
            f"a GPU of vendor {whose}: only NVIDIA's GPUs and NVLinks are supported",
        )


def _note_parts(device: Device, findings: Findings) -> None:
    """Note several ``<gpu>`` in one ``<pci>``.

    They are parts of one GPU, and each lists all its NVLinks. Parts that disagree are refused.
    """
    gpus = device.element.all("gpu")
    if len(gpus) < 2:
        return
    for gpu in gpus[1:]:
        if gpu.attributes.get("dev") != gpus[0].attributes.get("dev"):
            raise SourceError(
                gpu.line,
                device.bus,
                f"the dev number differs from that of the <gpu> on line {gpus[0].line} of the "
                "same <pci>",
            )
        if _told_links(gpu) != _told_links(gpus[0]):
            raise SourceError(
                gpu.line,
                device.bus,
                f"the NVLinks differ from those of the <gpu> on line {gpus[0].line} of the same "
                "<pci>",
            )
    findings.note(
        device.element.line,
        f"{len(gpus)} <gpu> in one <pci>: read as parts of one GPU, with its NVLinks counted once",
    )


def _told_links(gpu: Element) -> list[tuple[str, ...]]:
    names = ("target", "count", "tclass")
    return sorted(tuple(e.attributes.get(n, "") for n in names) for e in gpu.all("nvlink"))


def _numbered(gpus: Sequence[Device], line: int, findings: Findings) -> dict[int, Device]:
    """Return the GPUs by index.

    The index is their ``dev`` if all have one, otherwise the order of their bus ids.
    """
    first = [told for gpu in gpus for told in gpu.element.all("gpu")[:1]]
    numbers = [_number(told, "dev") for told in first if "dev" in told.attributes]
    if len(numbers) < len(gpus):
        ordered = sorted(gpus, key=lambda gpu: (len(gpu.bus), gpu.bus))
        numbered = dict(enumerate(ordered))
        findings.note(
            line,
            "not every GPU has a dev number, so they are numbered by bus id, as the driver does",
        )
        return numbered
    found: dict[int, Device] = {}
    for number, gpu in zip(numbers, gpus, strict=True):
        if number in found:
            raise SourceError(
                gpu.element.line,
                gpu.bus,
                f"dev {number} is already used on line {found[number].element.line}",
            )
        found[number] = gpu
    return found


def _links(
    gpus: Sequence[Gpu], devices: dict[int, Device], line: int, findings: Findings
) -> list[Link]:
    index_of = {device.bus: index for index, device in devices.items()}
    direct: dict[tuple[int, int], int] = defaultdict(int)
    first_line: dict[tuple[int, int], int] = {}
    attached: dict[int, int] = defaultdict(int)
    for index, device in devices.items():
        for nvlink in (link for gpu in device.element.all("gpu")[:1] for link in gpu.all("nvlink")):
            count = _number(nvlink, "count")
            kind = nvlink.attributes.get("tclass", "").lower()
            target = bus_id(nvlink.attributes.get("target", ""))
            peer = index_of.get(target)
            if kind.startswith(NVSWITCH_CLASS):
                attached[index] += count
            elif peer is not None and peer != index:
                direct[index, peer] += count
                first_line.setdefault((index, peer), nvlink.line)
            else:
                where = (
                    "itself"
                    if peer == index
                    else f"{quoted(target)}, which is not a GPU in this file"
                )
                findings.note(
                    nvlink.line, f"{count} NVLinks of GPU{index} lead to {where}: not counted"
                )
    ports = {}
    for gpu in gpus:
        widest = [count for (a, _), count in direct.items() if a == gpu.index]
        count = max([attached[gpu.index], *widest])
        ports[gpu.index] = known_port(gpu, count, devices[gpu.index].element.line, findings)
    if attached:
        attachments = {gpu.index: attached[gpu.index] for gpu in gpus}
        note_lost_links(gpus, attachments, line, findings)
    links = []
    for a, b in combinations(sorted(devices), 2):
        kind_of_way = _kind(devices[a], devices[b])
        count, via = _both_ways(a, b, devices, direct, first_line), Via.DIRECT
        if not count and attached[a] and attached[b]:
            count, via = min(attached[a], attached[b]), Via.SWITCH
        ends = (ports[a], ports[b])
        speed = min(port.one_way if port else GBps(0.0) for port in ends)
        links.append(Link(a, b, kind_of_way, count, via, speed if count else GBps(0.0)))
    if len(gpus) > 1 and not any(link.nvlinks for link in links):
        findings.note(line, "the file has no NVLink between these GPUs, so none is recorded")
    return links


def _both_ways(
    a: int,
    b: int,
    devices: dict[int, Device],
    direct: dict[tuple[int, int], int],
    first_line: dict[tuple[int, int], int],
) -> int:
    """Return the number of NVLinks between two GPUs.

    Both ends must give the same number, if both have a ``<gpu>``.
    """
    there, back = direct.get((a, b), 0), direct.get((b, a), 0)
    if there != back and all(devices[i].element.all("gpu") for i in (a, b)):
        line = first_line.get((a, b)) or first_line[b, a]
        message = f"{there} NVLinks in one direction, but {back} in the other"
        if (a, b) in first_line and (b, a) in first_line:
            message += f" (line {first_line[b, a]})"
        raise SourceError(line, f"GPU{a}/GPU{b}", message)
    return max(there, back)


def _nics(root: Element, gpus: dict[int, Device], findings: Findings) -> list[Nic]:
    """Return the RDMA NICs.

    These are the NICs with a ``<net>``, and network cards of static files, named by their bus id.
    """
    named: dict[str, Device] = {}
    for element in root.walk():
        if element.tag == "nic":
            for net in element.all("net"):
                name = net.attributes.get("name", "")
                if why := _no_rdma(net):
                    findings.note(
                        net.line, f"{quoted(name)} {why}, so it is not an RDMA NIC and is left out"
                    )
                elif not name:
                    raise SourceError(net.line, "net", "a NIC has no name")
                elif name not in named:  # otherwise it is a second port of the same card
                    named[name] = _device(element)
                elif named[name].element is not element:
                    raise SourceError(
                        net.line,
                        name,
                        f"this NIC is already on line {named[name].element.line}",
                    )
        elif element.tag == "pci" and _class(element).startswith(NIC_CLASS):
            device = _device(element)
            if not any(child.tag == "net" for child in element.walk()) and device.bus:
                findings.note(
                    element.line,
                    f"the NIC has no name, so it is named by its bus id {quoted(device.bus)}",
                )
                named.setdefault(device.bus, device)
    _bound(len(named), "NICs", root.line)
    return [
        Nic(
            name,
            tuple((index, _kind(gpu, device)) for index, gpu in sorted(gpus.items())),
            _numa(device.cpu),
        )
        for name, device in named.items()
    ]


def _no_rdma(net: Element) -> str:
    """Return why a ``<net>`` cannot be an RDMA NIC; '' if it is one.

    NCCL lists what its network plugin can use. For InfiniBand and RoCE that is a port, counted from
    1, with the card's GUID. For plain sockets it is every kernel interface, including bridges and
    tunnels, with port 0 and a number that NCCL makes up as the GUID.
    """
    guid, port, gdr = (net.attributes.get(name, "") for name in ("guid", "port", "gdr"))
    if re.fullmatch(r"0x0+", guid):
        return "has no GUID"
    if re.fullmatch(r"0+", port):
        return "has port 0 (a kernel interface)"
    # The device's own number, such as 0x3.
    made_up = re.fullmatch(r"0x[0-9a-fA-F]{1,4}", guid)
    if not port and gdr == "0" and made_up and net.attributes.get("dev", "") == str(int(guid, 16)):
        return "has its own number as GUID (a kernel interface)"
    if not guid and not port and gdr != "1":
        return "has neither GUID nor port"
    return ""


def _device(element: Element) -> Device:
    """Return the device of a ``<pci>``, or of the ``<nic>`` within one."""
    above = element.ancestors()
    if element.tag == "nic" and element.parent is not None and element.parent.tag == "pci":
        above = above[1:]
    cpu = next((e for e in above if e.tag == "cpu"), None)
    if cpu is None:
        raise SourceError(element.line, element.tag, "is outside every <cpu>")
    switches = tuple(id(e) for e in above if e.tag == "pci")
    return Device(element, bus_id(element.attributes.get("busid", "")), switches, cpu)


def _kind(a: Device, b: Device) -> LinkKind:
    """Return the PCIe class of two devices, by the nearest switch above both (see the module)."""
    if a.cpu is not b.cpu:
        return LinkKind.SYS
    if not set(a.switches) & set(b.switches):
        return LinkKind.NODE
    return LinkKind.PIX if a.switches[0] == b.switches[0] else LinkKind.PXB


def _class(pci: Element) -> str:
    return pci.attributes.get("class", "").lower()


def _numa(cpu: Element) -> int | None:
    number = cpu.attributes.get("numaid", "")
    return int(number) if re.fullmatch(r"[0-9]{1,4}", number) else None


def _number(element: Element, name: str) -> int:
    value = element.attributes.get(name, "")
    if not re.fullmatch(r"[0-9]{1,4}", value, re.ASCII):
        raise SourceError(element.line, element.tag, f"{name}={quoted(value)} is not a number")
    return int(value)


def _bound(count: int, what: str, line: int) -> None:
    if count > MAX_DEVICES:
        raise SourceError(line, None, f"{count} {what}; at most {MAX_DEVICES} are allowed")
