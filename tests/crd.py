"""The custom resource's schema, and what it has against a record."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())

Object = dict[str, Any]


@cache
def schema() -> Object:
    """The schema in the CustomResourceDefinition; do not change the returned object."""
    crd = yaml.safe_load((ROOT / "manifests" / "base" / "crd.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]  # type: ignore[no-any-return]


def nodes_of(found: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every schema within a schema, with its path."""
    yield path, found
    for name, part in found.get("properties", {}).items():
        yield from nodes_of(part, f"{path}.{name}")
    if "items" in found:
        yield from nodes_of(found["items"], f"{path}[]")


def plain(found: Object, *, closed: bool = False) -> Object:
    """The schema as JSON Schema: no x-kubernetes-*; ``closed`` refuses what would be pruned."""
    kept = {k: v for k, v in found.items() if not k.startswith("x-kubernetes-")}
    if kept.get("format") == "int64":
        kept = {"minimum": -(2**63), "maximum": 2**63 - 1, **kept}
    if "properties" in kept:
        kept["properties"] = {
            k: plain(v, closed=closed) for k, v in kept["properties"].items() if k != "metadata"
        }
        if closed:
            kept["additionalProperties"] = False
    if "items" in kept:
        kept["items"] = plain(kept["items"], closed=closed)
    return kept


def twins(found: Object, value: Any, path: str = "") -> Iterator[str]:
    """Where a list has two items of one key, which the API server refuses."""
    if isinstance(value, dict):
        for name, part in found.get("properties", {}).items():
            if name in value:
                yield from twins(part, value[name], f"{path}.{name}")
    elif isinstance(value, list):
        keys = found.get("x-kubernetes-list-map-keys")
        items = [tuple(item.get(k) for k in keys) if keys else item for item in value]
        if found.get("x-kubernetes-list-type") in ("map", "set") and len(set(items)) < len(items):
            yield path
        for number, item in enumerate(value):
            yield from twins(found["items"], item, f"{path}.{number}")


@cache
def _as_it_stands() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def validate(record: Object) -> None:
    """Raise :class:`jsonschema.ValidationError` where the schema refuses a record."""
    _as_it_stands().validate(record)


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(plain(schema(), closed=True))


def faults(record: Object) -> list[str]:
    """Where the schema refuses a record, or would prune it; CEL is the API server's to judge."""
    body = {k: v for k, v in record.items() if k != "metadata"}
    found = _validator().iter_errors(body)
    return [
        *(".".join(map(str, ["", *error.absolute_path])) for error in found),
        *twins(schema(), record),
    ]
