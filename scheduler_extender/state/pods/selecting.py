"""Which pods a selector selects, and which nodes are eligible for a pod, by Kubernetes' rules."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from scheduler_extender.quantities import cut
from scheduler_extender.wire import PodSpec, Taint, Toleration

# The taint of a cordoned node.
UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
NAME_FIELD = "metadata.name"
# A number as Kubernetes, in Go, reads it: with ASCII digits only.
_NUMBER = re.compile(r"[+-]?[0-9]{1,63}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One line of a selector."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist, Gt or Lt
    values: tuple[str, ...] = ()
    # whether the key is a field of the node, such as its name, and not a label
    of_field: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Check whether labels meet it; no labels meet an unknown operator."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                bound = self.values[0] if self.values else ""
                return _compares(value or "", self.operator, bound)
            case _:
                return False


def _compares(value: str, operator: str, bound: str) -> bool:
    """Check whether a number is above (Gt) or below (Lt) a bound; False if either is no number."""
    numbers = [int(text) for text in (value, bound) if _NUMBER.fullmatch(text)]
    if len(numbers) < 2 or any(not -(1 << 63) <= n < 1 << 63 for n in numbers):
        return False
    return numbers[0] > numbers[1] if operator == "Gt" else numbers[0] < numbers[1]


Selector = tuple[Requirement, ...]  # all requirements must hold


@dataclass(frozen=True, slots=True)
class EligibleNodes:
    """The nodes that a pod may be sent to."""

    selector: Selector = ()  # the node meets all requirements
    # and meets one of these terms, if there are any; None matches no node
    terms: tuple[Selector | None, ...] = ()
    tolerations: tuple[Toleration, ...] = ()  # cover the node's taints
    # The values of all terms with a single In requirement, by its key. A list of host names may be
    # long.
    _listed: dict[tuple[str, bool], set[str]] = field(init=False, compare=False, repr=False)
    _others: tuple[Selector, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        listed, others = defaultdict[tuple[str, bool], set[str]](set), list[Selector]()
        for term in filter(None, self.terms):
            if len(term) == 1 and term[0].operator == "In":
                listed[term[0].key, term[0].of_field].update(term[0].values)
            else:
                others.append(term)
        object.__setattr__(self, "_listed", dict(listed))
        object.__setattr__(self, "_others", tuple(others))

    def bar(
        self, name: str, labels: Mapping[str, str], taints: tuple[Taint, ...], *, cordoned: bool
    ) -> str:
        """Return what makes a node with these properties ineligible; empty if it is eligible."""
        if cordoned and not self.tolerate_cordon:
            return "a cordon"
        for taint in taints:
            if taint.effect in ("NoSchedule", "NoExecute") and not self._tolerates(taint):
                return f"taint {cut(taint.text)}"
        for wanted in self.selector:
            if not wanted.matches(labels):
                return f"its nodeSelector {cut(f'{wanted.key}={wanted.values[0]}')}"
        fields = {NAME_FIELD: name}
        fits = (
            not self.terms
            or any(
                (fields if of_field else labels).get(key) in values
                for (key, of_field), values in self._listed.items()
            )
            or any(
                all(wanted.matches(fields if wanted.of_field else labels) for wanted in term)
                for term in self._others
            )
        )
        return "" if fits else "its node affinity"

    @property
    def tolerate_cordon(self) -> bool:
        """Whether the pod's tolerations cover a cordon."""
        return self._tolerates(UNSCHEDULABLE)

    def _tolerates(self, taint: Taint) -> bool:
        return any(
            given.effect in ("", taint.effect)
            and given.key in ("", taint.key)
            and _tolerates_value(given, taint.value)
            for given in self.tolerations
        )

    def written(self) -> dict[str, Any]:
        """Return the fields of a pod's spec that :func:`eligible_nodes_of` reads as these nodes."""
        fields: dict[str, Any] = {}
        if self.selector:
            fields["nodeSelector"] = {line.key: line.values[0] for line in self.selector}
        if self.terms:
            terms = [_term_written(term or ()) for term in self.terms]
            node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            fields["affinity"] = {"nodeAffinity": node}
        if self.tolerations:
            fields["tolerations"] = [msgspec.to_builtins(given) for given in self.tolerations]
        return fields


ANY_NODE = EligibleNodes()
NO_NODE = EligibleNodes(terms=(None,))


def _tolerates_value(given: Toleration, value: str) -> bool:
    # if the cluster has the feature TaintTolerationComparisonOperators
    if given.operator in ("Gt", "Lt"):
        return _compares(value, given.operator, given.value)
    if given.operator == "Exists":
        return True
    return given.operator in ("", "Equal") and given.value == value


class _Expression(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(msgspec.Struct, rename="camel", frozen=True):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Terms(msgspec.Struct, rename="camel", frozen=True):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(msgspec.Struct, frozen=True):
    required: _Terms | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class LabelSelector(msgspec.Struct, rename="camel", frozen=True):
    """A label selector, as Kubernetes objects write it."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[_Expression] | None = None

    @property
    def size(self) -> int:
        """The number of its lines and values together."""
        lines = self.match_expressions or ()
        return len(self.match_labels or ()) + sum(1 + len(line.values or ()) for line in lines)

    def read(self) -> Selector:
        """Return the selector as a value; an empty one selects everything."""
        labels = sorted((self.match_labels or {}).items())
        return (
            *(Requirement(key, "In", (value,)) for key, value in labels),
            *map(_requirement, self.match_expressions or ()),
        )


def label_selector(selector: Selector) -> dict[str, Any]:
    """Return a label selector that :meth:`LabelSelector.read` reads as this value."""
    return {"matchExpressions": [_written(line) for line in selector]}


def eligible_nodes_of(spec: PodSpec) -> EligibleNodes:
    """Return the eligible nodes of a pod. A part that cannot be read matches no node."""
    selector = sorted((spec.node_selector or {}).items())
    return EligibleNodes(
        tuple(Requirement(key, "In", (value,)) for key, value in selector),
        _terms_of((spec.affinity or {}).get("nodeAffinity")),
        tuple(spec.tolerations or ()),
    )


def _terms_of(affinity: object) -> tuple[Selector | None, ...]:
    if affinity is None:
        return ()
    try:
        required = msgspec.convert(affinity, _NodeAffinity).required
    except msgspec.ValidationError:
        return (None,)
    if required is None:
        return ()
    terms: list[Selector | None] = []
    for term in required.node_selector_terms or ():
        labels = map(_requirement, term.match_expressions or ())
        fields = map(_requirement, term.match_fields or ())
        terms.append((*labels, *(replace(line, of_field=True) for line in fields)) or None)
    return tuple(terms) or (None,)


def _requirement(line: _Expression) -> Requirement:
    return Requirement(line.key, line.operator, tuple(line.values or ()))


def _term_written(term: Selector) -> dict[str, Any]:
    lines: dict[str, list[dict[str, Any]]] = {}
    for line in term:
        kind = "matchFields" if line.of_field else "matchExpressions"
        lines.setdefault(kind, []).append(_written(line))
    return dict(lines)


def _written(line: Requirement) -> dict[str, Any]:
    return {"key": line.key, "operator": line.operator, "values": list(line.values)}
