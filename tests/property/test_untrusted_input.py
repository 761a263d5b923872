"""Untrusted input, by Hypothesis: annotations, GPUTopology objects, and bodies of the verbs.

``tests/fuzz`` changes texts of ours at random; here they are made by their grammar, and what fails
is made small.
"""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.crd import Object, schema
from tests.fuzz.mutation import VALUES
from tests.fuzz.targets import PODS, check_record
from tests.nodes import bridged, pcie, switched
from tests.scheduler_extender.serving import Running, running

bounded = settings(
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=list(HealthCheck),
)

odd = st.sampled_from(VALUES).map(copy.deepcopy)

# --- GPUTopology objects ----------------------------------------------------------------------


def of_schema(found: Object) -> st.SearchStrategy[Any]:
    """Values that a schema of the CRD allows."""
    if "enum" in found:
        return st.sampled_from(found["enum"])
    match found["type"]:
        case "object":
            required = set(found.get("required", ()))
            parts = {k: of_schema(v) for k, v in found["properties"].items()}
            return st.fixed_dictionaries(
                {k: v for k, v in parts.items() if k in required},
                optional={k: v for k, v in parts.items() if k not in required},
            )
        case "array":
            most = min(found.get("maxItems", 4), 4)
            return st.lists(of_schema(found["items"]), max_size=most)
        case "string":
            return _text(found)
        case "integer":
            low, high = found.get("minimum", -(2**63)), found.get("maximum", 2**63 - 1)
            return st.integers(low, min(high, low + 8)) | st.integers(low, high)
        case "number":
            return st.floats(found.get("minimum"), found.get("maximum"), allow_nan=False)
        case "boolean":
            return st.booleans()
    raise ValueError(found["type"])


def _text(found: Object) -> st.SearchStrategy[str]:
    low, high = found.get("minLength", 0), min(found.get("maxLength", 20), 20)
    if "pattern" in found:
        matching = re.compile(found["pattern"], re.ASCII)
        return st.from_regex(matching, fullmatch=True).filter(lambda text: len(text) <= 253)
    return st.text(min_size=low, max_size=max(low, high))


PARTS = {k: v for k, v in schema()["properties"].items() if k in ("spec", "status")}
records = of_schema({**schema(), "properties": PARTS})


@given(records)
@bounded
def test_any_object_that_the_crd_allows_is_read_or_is_a_problem_of_its_node(found: Object) -> None:
    check_record(json.dumps({**found, "metadata": {"name": "node", "uid": "u"}}))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or mapping in a value, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


# --- bodies of the verbs ----------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[Running]:
    with running(switched(), pcie(), bridged()) as found:
        yield found


NAMES = ["switched", "pcie", "bridged", "unknown", ""]
OFFER: Object = {"Pod": PODS[0], "Nodes": None, "NodeNames": NAMES}
FULL: Object = {"Pod": PODS[0], "Nodes": {"items": [{"metadata": {"name": "pcie"}}]}}
VICTIMS: Object = {
    "Pod": PODS[0],
    "NodeNameToMetaVictims": {"pcie": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}},
    "NodeNameToVictims": {"switched": {"Pods": [{"metadata": {"uid": "u"}}]}},
}
BINDING: Object = {"PodName": "train", "PodNamespace": "default", "PodUID": "u", "Node": "pcie"}
BODIES = {
    "filter": [OFFER, FULL],
    "prioritize": [OFFER, FULL],
    "preempt": [VICTIMS],
    "bind": [BINDING],
}
json_values = st.recursive(
    odd | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=12,
)


@st.composite
def bodies(draw: st.DrawFn, whole: list[Object]) -> bytes:
    """A body of a verb with one to three of its parts replaced, and now and then cut."""
    found = json.loads(json.dumps(draw(st.sampled_from(whole))))
    for _ in range(draw(st.integers(0, 3))):
        there = [*places(found)]
        if there:
            holder, key = draw(st.sampled_from(there))
            holder[key] = draw(json_values)
    text = json.dumps(found).encode()
    if draw(st.integers(0, 9)) == 0:
        a, b = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        text = text[:a] + draw(st.binary(max_size=8)) + text[b:]
    return text


@pytest.mark.parametrize("verb", BODIES)
def test_any_body_is_answered_or_refused_in_a_line(service: Running, verb: str) -> None:
    @given(st.one_of(bodies(BODIES[verb]), st.binary(max_size=40), json_values.map(_written)))
    @bounded
    def ask(body: bytes) -> None:
        answer = service.http.post(f"/scheduler/{verb}", content=body)
        reported = answer.json()
        assert answer.status_code in (200, 400, 413), (answer.status_code, reported)
        if answer.status_code != 200:
            assert list(reported) == ["error"]
            assert "\n" not in reported["error"]
        elif verb == "filter" and not reported["Error"]:
            _partition(json.loads(body), reported)

    ask()


def _written(value: Any) -> bytes:
    return json.dumps(value).encode()


def _partition(asked: Object, answer: Object) -> None:
    """Each node that was offered stands in one part of the answer, and no other does."""
    if asked.get("NodeNames") is not None:
        offered, passed = asked["NodeNames"], answer["NodeNames"] or []
    else:
        items = (asked.get("Nodes") or {}).get("items") or []
        offered = [item["metadata"]["name"] for item in items]
        passed = [item["metadata"]["name"] for item in (answer["Nodes"] or {}).get("items") or []]
    parts = (passed, answer["FailedNodes"], answer["FailedAndUnresolvableNodes"])
    assert set().union(*parts) == set(offered)
    assert sum(len(set(part)) for part in parts) == len(set(offered))
