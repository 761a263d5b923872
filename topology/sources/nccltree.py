"""XML of strangers as elements that know their lines, at a cost that the text's length bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from topology.sources.imported import SourceError

MAX_DEPTH = 64
"""Elements inside each other."""
ROOTS = {
    "topology": "this is hwloc's (lstopo), which does not tell NVLinks",
    "nvidia_smi_log": "this is `nvidia-smi -q -x`, which does not tell links",
    "graphs": "this is NCCL_GRAPH_DUMP_FILE's, what NCCL made of the topology",
}
ELSE = "NCCL_TOPO_DUMP_FILE writes the topology, `nvidia-smi topo -m` prints it"


@dataclass(slots=True)
class Element:
    """An XML element with the line it starts on."""

    tag: str
    attributes: dict[str, str]
    line: int
    parent: Element | None
    children: list[Element] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """This element and all below it, in the order of the text."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += reversed(element.children)

    def ancestors(self) -> list[Element]:
        """What holds this element, nearest first."""
        found, at = [], self.parent
        while at is not None:
            found.append(at)
            at = at.parent
        return found

    def all(self, tag: str) -> list[Element]:
        """The children with this tag."""
        return [child for child in self.children if child.tag == tag]


def tree(text: str) -> Element:
    """The XML as elements. A DOCTYPE is refused, so no entity can grow.

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
        message = "a DOCTYPE; NCCL writes none, and none is read"
        known = f": {ROOTS[root]}; {ELSE}" if root in ROOTS else ""
        raise SourceError(line(), None, message + known)

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(start.encode(errors="replace"), True)
    except expat.ExpatError as error:
        message = f"broken XML: {expat.ErrorString(error.code)}"
        raise SourceError(skipped + error.lineno, None, message) from error
    return top[0]
