"""Specs that differ in names only: what is not decoded again is what decoding would have given."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.codec import KnownHardware, decode, encode
from topology.core import memo
from topology.core.graph import NodeTopology
from topology.core.report import Report
from topology.machines import MACHINES, machine

ANY_MACHINE = st.sampled_from(sorted(MACHINES))


def spec_of(topology: NodeTopology) -> bytes:
    """As an API server writes it."""
    return compact(encode(topology, Report("boot", 1))["spec"])


def compact(spec: Any) -> bytes:
    return json.dumps(spec, separators=(",", ":"), sort_keys=True, default=dict).encode()


def decoded(name: str, spec: bytes) -> NodeTopology:
    value: Mapping[str, object] = {"metadata": {"name": name}, "spec": json.loads(spec)}
    return decode(value).topology


@given(kinds=st.lists(ANY_MACHINE, min_size=2, max_size=12))
def test_what_is_known_is_what_is_decoded(kinds: list[str]) -> None:
    known, seen = KnownHardware(), set()
    for n, kind in enumerate(kinds):
        name = f"node-{n}"
        spec = spec_of(machine(kind).topology(name))
        found, real = known.topology(name, spec), decoded(name, spec)
        if found is None:
            assert kind not in seen or not real.gpus or any(g.mig_instances for g in real.gpus)
            known.keep(spec, real)
            seen.add(kind)
            continue
        assert found == real
        assert found.shape is real.shape
        assert found.position_of_uuid == real.position_of_uuid
        assert found.position_of_index == real.position_of_index


def test_names_are_in_the_order_of_the_text_not_of_the_indices() -> None:
    known = KnownHardware()
    first, second = (
        json.loads(spec_of(machine("hgx-h100-8").topology(name))) for name in ("first", "second")
    )
    for spec in (first, second):
        spec["devices"].reverse()
    known.keep(compact(first), decoded("first", compact(first)))
    assert known.topology("second", compact(second)) == decoded("second", compact(second))


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["devices"][1].update(uuid=spec["devices"][0]["uuid"]),
        lambda spec: spec["devices"][1].update(uuid=""),
        lambda spec: spec["devices"][1].update(uuid="x" * 254),
        lambda spec: spec["devices"][1].update(uuid='"uuid":"x"'),
        lambda spec: spec["devices"][1].update(uuid="GPU-\u00e9"),
        lambda spec: spec["devices"][1].update(product='"uuid":"x"'),
        lambda spec: spec["devices"][1].update(memoryBytes=1),
        lambda spec: spec["links"].pop(),
        lambda spec: spec["devices"].pop(),
    ],
)
def test_what_is_odd_has_to_be_decoded(change: Any) -> None:
    known = KnownHardware()
    spec = spec_of(machine("hgx-h100-8").topology("first"))
    known.keep(spec, decoded("first", spec))
    odd = json.loads(spec_of(machine("hgx-h100-8").topology("second")))
    change(odd)
    assert known.topology("second", compact(odd)) is None
    assert known.topology("second", json.dumps(odd).encode()) is None  # with spaces
    assert known.topology("", spec) is None
    assert known.topology("n" * 254, spec) is None


def test_cached_kinds_count_against_the_bound_of_all_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from topology.codec.hardware import DECODED, LONGEST

    known, spec = KnownHardware(), json.loads(spec_of(machine("l40s-4").topology("node")))
    monkeypatch.setattr(memo, "BYTES", 40 * DECODED * len(compact(spec)))
    for n in range(80):
        spec["devices"][0]["memoryBytes"] = n
        known.keep(compact(spec), decoded("node", compact(spec)))
        assert known.topology("node", compact(spec)) is not None
    spec["devices"][0]["memoryBytes"] = 0
    assert known.topology("node", compact(spec)) is None  # the one that came first
    long = compact({**spec, "padding": "x" * LONGEST})
    known.keep(long, decoded("node", long))
    assert known.topology("node", long) is None
