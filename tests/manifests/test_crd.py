"""The custom resource's schema: structural, bounded, and the codec's."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from scheduler_extender.kube.sinks import RECORDS_PATH
from tests.crd import nodes_of, plain, schema
from tests.manifests.building import (
    Object,
    crd,
)
from topology import codec
from topology.codec import wire


def test_the_resource_is_named_as_the_design_says() -> None:
    names = crd()["names"]
    assert (crd()["group"], crd()["scope"]) == ("gpu-topology.io", "Cluster")
    assert (names["kind"], names["shortNames"], names["categories"]) == (
        codec.KIND,
        ["gputopo"],
        ["gpu"],
    )
    (version,) = crd()["versions"]
    assert f"{crd()['group']}/{version['name']}" == codec.API_VERSION
    assert f"/apis/{codec.API_VERSION}/{names['plural']}" == RECORDS_PATH
    assert version["served"]
    assert version["storage"]
    assert version["subresources"] == {"status": {}}


def test_printer_columns_stand_over_fields_of_the_schema() -> None:
    (version,) = crd()["versions"]
    columns = {c["name"]: c for c in version["additionalPrinterColumns"]}
    assert list(columns) == ["GPUs", "Free", "Links", "Allocator", "Ready", "Age"]
    fields = {path: found.get("type") for path, found in nodes_of(schema())}
    for column in columns.values():
        path = re.sub(r"\[\?\(.*\)\]", "[]", column["jsonPath"])
        assert fields.get(path, "date") == column["type"], column
        assert path in fields or path == ".metadata.creationTimestamp"


def test_the_schema_is_structural() -> None:
    allowed = {
        "array": {"items", "minItems", "maxItems"},
        "boolean": set(),
        "integer": {"minimum", "maximum", "format", "default"},
        "number": {"minimum", "maximum"},
        "object": {"properties", "required", "default"},
        "string": {"enum", "pattern", "minLength", "maxLength", "format", "default"},
    }
    extensions = {"map-keys", "type", "validations"}
    for path, found in nodes_of(schema()):
        own = {k for k in found if not k.startswith("x-kubernetes-")} - {"type", "description"}
        assert own <= allowed[found["type"]], path
        ours = {re.sub("^x-kubernetes-(list-)?", "", k) for k in found if k.startswith("x-")}
        assert ours <= extensions, path
        if found["type"] == "object" and path != ".metadata":
            assert found["properties"], path
            assert set(found.get("required", ())) <= set(found["properties"]), path


def test_every_list_and_string_is_bounded() -> None:
    """Without bounds the API server takes the worst case for the cost of a CEL rule."""
    for path, found in nodes_of(schema()):
        if path in (".apiVersion", ".kind"):
            continue
        if found["type"] == "array":
            assert found["maxItems"] <= 4096, path
        if found["type"] == "string":
            assert found.keys() & {"maxLength", "enum", "format"}, path


def test_no_text_of_a_record_has_a_line_break_or_a_control_character() -> None:
    """Otherwise a client that may write a record could forge lines of output."""
    free = [
        (path, found)
        for path, found in nodes_of(schema())
        if found["type"] == "string"
        and not found.keys() & {"enum", "format"}
        and path not in (".apiVersion", ".kind")
    ]
    for path, found in free:
        for text in ("1\n1", "1\x1b[2J1", "1\x9b1", "1\r1", "1\x001"):
            assert not re.search(found["pattern"], text), path
    assert {".spec.devices[].product", ".status.conditions[].message"} <= {path for path, _ in free}


def lists(found: Object, path: str = "") -> dict[str, int | None]:
    """The lists of a model, and how long each may be."""
    while "$ref" in found:
        found = DEFINITIONS[found["$ref"].rpartition("/")[2]]
    of: dict[str, int | None] = {}
    for part in found.get("anyOf", ()):
        of |= lists(part, path)
    for name, part in found.get("properties", {}).items():
        of |= lists(part, f"{path}.{name}")
    if "items" in found:
        of[path] = found.get("maxItems")
        of |= lists(found["items"], f"{path}[]")
    return of


MODEL = wire.Object.model_json_schema(by_alias=True)
DEFINITIONS: Object = MODEL["$defs"]


def test_the_codec_bounds_every_list_as_the_schema_does() -> None:
    """The extender reads what an API server with an older schema may let through."""
    of = {path: found["maxItems"] for path, found in nodes_of(schema()) if "maxItems" in found}
    assert lists(MODEL) == of


def values(found: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every value of a model, with its path."""
    while "$ref" in found:
        found = DEFINITIONS[found["$ref"].rpartition("/")[2]]
    yield path, found
    for part in found.get("anyOf", ()):
        yield from values(part, path)
    for name, part in found.get("properties", {}).items():
        yield from values(part, f"{path}.{name}")
    if "items" in found:
        yield from values(found["items"], f"{path}[]")


def test_the_codec_bounds_every_number_and_reads_every_text_as_the_schema_does() -> None:
    of = dict(nodes_of(schema()))
    for path, found in values(MODEL):
        bounds = of.get(path, {})
        if found.get("type") in ("integer", "number"):
            above = found.get("exclusiveMaximum")
            most = found.get("maximum") if above is None else above - 1
            assert (found.get("minimum"), most) == (bounds.get("minimum"), bounds.get("maximum")), (
                path
            )
        if found.get("type") == "string" and "maxLength" in bounds:
            assert found.get("maxLength", bounds["maxLength"]) >= bounds["maxLength"], path


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        (".spec.resources", ["name"]),
        (".spec.devices", ["index"]),
        (".spec.devices[].migInstances", ["uuid"]),
        (".spec.nics", ["name"]),
        (".status.allocations", ["podUID", "namespace", "pod", "container", "resource"]),
        (".spec.numaNodes", ["id"]),
        (".spec.numaNodes[].memory", ["type"]),
        (".status.exclusive", ["namespace", "pod"]),
        (".status.health", ["uuid"]),
        (".status.missing", ["name"]),
        (".status.conditions", ["type"]),
    ],
)
def test_lists_are_maps_by_key(path: str, keys: list[str]) -> None:
    found = dict(nodes_of(schema()))[path]
    assert found["x-kubernetes-list-type"] == "map"
    assert found["x-kubernetes-list-map-keys"] == keys
    assert set(keys) <= set(found["items"]["required"])


def test_every_list_says_its_type() -> None:
    for path, found in nodes_of(schema()):
        if found["type"] == "array":
            # Blocks of memory have no key, and two containers may have blocks that are alike. The
            # others are long, and an API server pays for each item with a key at every write.
            whole = path in (".status.exclusive[].memory", ".spec.links", ".spec.nics[].distances")
            assert found["x-kubernetes-list-type"] in (("atomic",) if whole else ("map", "set"))


def test_defaults_are_valid_and_the_same_as_the_codecs() -> None:
    for path, found in nodes_of(schema()):
        if "default" in found:
            jsonschema.validate(found["default"], plain(found), jsonschema.Draft202012Validator)
            assert found["type"] != "object" or path == ".spec.allocator"
    bare = {
        "metadata": {"name": "n"},
        "spec": {
            "resources": [{"name": "nvidia.com/gpu"}],
            "devices": [
                {"index": i, "uuid": f"GPU-{i}", "product": "P", "memoryBytes": 1} for i in (0, 1)
            ],
            "links": [{"a": 0, "b": 1}],
        },
    }
    defaulted = copy.deepcopy(bare)
    fill(schema(), defaulted)
    assert defaulted != bare
    assert codec.decode(defaulted) == codec.decode(bare)


def fill(found: Object, value: Any) -> None:
    """Set defaults, as the API server does."""
    if isinstance(value, dict):
        for name, part in found.get("properties", {}).items():
            if name not in value and "default" in part:
                value[name] = copy.deepcopy(part["default"])
            if name in value:
                fill(part, value[name])
    elif isinstance(value, list):
        for item in value:
            fill(found["items"], item)
