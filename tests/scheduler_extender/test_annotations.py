"""What annotations may say, how long they may be, and what is said where they are wrong."""

from typing import Any

import msgspec
import pytest

from scheduler_extender.annotations import (
    IMPLICIT_NAME,
    KEYS,
    MANAGED,
    MAX_CONTAINERS,
    MAX_MODELS,
    Malformed,
    PodRequest,
    is_unasked,
    parse,
    request_in,
    template_of,
)
from scheduler_extender.state.pods.record import manifest_of, pod_record
from scheduler_extender.wire import Pod
from tests.nodes import container, pod, record_of
from topology.core.links import LinkKind
from topology.core.requests import Constraints, GpuRequest, Pattern, Policy

MOST_TEXT = 300


def asked(manifest: dict[str, Any]) -> GpuRequest | Malformed:
    found = parse(msgspec.convert(manifest, Pod))
    assert found is not None
    return found.request if isinstance(found, PodRequest) else found


def refusal(annotations: dict[str, str], count: int | str = 2) -> str:
    found = asked(pod(count, annotations))
    assert isinstance(found, Malformed)
    assert found == asked(pod(count, annotations))
    assert len(found.reason) <= MOST_TEXT
    assert "\n" not in found.reason
    return found.reason


def constraints(annotations: dict[str, str]) -> Constraints:
    found = asked(pod(2, annotations))
    assert isinstance(found, GpuRequest)
    return found.constraints


def test_thousands_of_globs_are_one_short_refusal() -> None:
    globs = ",".join(f"A{i}*" for i in range(20_000))
    reason = refusal({"gpu-model": globs})
    assert reason.startswith('annotation gpu-topology.io/gpu-model="A0*,A1*,')
    assert reason.endswith(f"{len(globs)} characters; at most 1024 are allowed")


def test_too_many_globs_are_refused_and_as_many_as_allowed_are_not() -> None:
    many = [f"a{i}*" for i in range(MAX_MODELS + 1)]
    assert refusal({"gpu-model": ",".join(many)}).endswith(
        "33 different models; at most 32 are allowed"
    )
    assert constraints({"gpu-model": ",".join(many[:-1])}).models == tuple(sorted(many[:-1]))


def test_equal_globs_are_one() -> None:
    written = ",".join(["A100*", "a100**", "NVIDIA A100*", "Tesla a100***"] * 20)
    assert constraints({"gpu-model": written}).models == ("a100*",)


@pytest.mark.parametrize("key", KEYS)
def test_a_long_value_of_any_key_is_one_short_refusal(key: str) -> None:
    for value in ("x" * 150_000, "9" * 150_000, "a\nb" * 50_000, " " * 2000, "\u2028" * 1025):
        reason = refusal({key: value})
        assert f"gpu-topology.io/{key}=" in reason
        assert "at most 1024 are allowed" in reason


@pytest.mark.parametrize("key", ["x" * 100_000, "Link", "link\nlink", ""])
def test_an_unknown_key_is_named_in_short(key: str) -> None:
    found = asked(pod(2, {key: "x"}))
    assert isinstance(found, Malformed)
    assert "unknown key, allowed are link, min-nvlinks, shape" in found.reason
    assert "\n" not in found.reason
    assert len(found.reason) <= MOST_TEXT


def test_the_seconds_of_a_played_pod_mean_nothing_to_the_extender() -> None:
    assert constraints({"play-seconds": "soon"}) == Constraints()
    given = [msgspec.convert(pod(2, {"play-seconds": each}), Pod) for each in ("1", "2")]
    assert template_of(given[0]) == template_of(given[1])


def test_a_long_container_name_and_count_are_shortened() -> None:
    named = asked(pod(containers=[container("c" * 10_000, 5000)]))
    assert isinstance(named, Malformed)
    assert len(named.reason) <= MOST_TEXT
    assert "is not a whole number from 0 to 1024" in named.reason
    assert len(refusal({}, "1" * 100_000)) <= MOST_TEXT


def test_as_many_containers_as_an_api_server_takes_are_read() -> None:
    init = [container(f"i{n}", 1) for n in range(1500)]
    found = asked(pod(2, init=init))
    assert isinstance(found, GpuRequest)
    assert len(found.counts) == 1501


def test_an_absurd_number_of_containers_is_refused() -> None:
    init = [container(f"i{n}", 1) for n in range(MAX_CONTAINERS)]
    found = asked(pod(2, init=init))
    assert isinstance(found, Malformed)
    assert found.reason == "4097 containers request GPUs; at most 4096 are allowed in a pod"


def test_words_are_read_in_any_case() -> None:
    written = {"link": "NVLink", "shape": "Ring", "same-numa": "True", "nic": "PIX"}
    assert constraints(written) == Constraints(
        link=LinkKind.NVLINK, pattern=Pattern.RING, same_numa=True, nic=LinkKind.PIX
    )
    found = asked(pod(2, {"link": "PXB", "policy": "Preferred"}))
    assert isinstance(found, GpuRequest)
    assert found.policy is Policy.PREFERRED
    assert "allowed are nvlink, pix" in refusal({"link": "NV-Link"})


def slices(**asked_for: int) -> dict[str, Any]:
    """A pod that asks for MIG instances of these profiles, _1g_10gb for 1g.10gb."""
    names = {f"nvidia.com/mig-{k[1:].replace('_', '.')}": str(n) for k, n in asked_for.items()}
    found = pod(1)
    found["spec"]["containers"][0]["resources"] = {"limits": names}
    return found


def test_mig_instances_are_asked_for_by_their_profile() -> None:
    found = asked(slices(_1g_10gb=2))
    assert isinstance(found, GpuRequest)
    assert (found.resource, found.count) == ("nvidia.com/mig-1g.10gb", 2)
    assert found.text == "2 MIG instances 1g.10gb"
    assert found.only_gpu_plugin


def test_instances_of_two_profiles_get_no_constraints() -> None:
    two = slices(_1g_10gb=1, _3g_40gb=1)
    plain = asked(two)
    assert isinstance(plain, GpuRequest)
    assert not plain.only_gpu_plugin  # the kubelet has a hint for each resource
    two["metadata"]["annotations"] = {"gpu-topology.io/same-gpu": "true"}
    refused = asked(two)
    assert isinstance(refused, Malformed)
    assert refused.reason.startswith(
        "constraints work with one GPU resource, but the pod requests nvidia"
    )


def test_on_one_gpu_and_on_several_at_once_is_refused() -> None:
    both = {"same-gpu": "true", "spread-gpus": "true"}
    assert refusal(both) == (
        "annotations gpu-topology.io/same-gpu and gpu-topology.io/spread-gpus: only one of them "
        "is allowed"
    )
    assert isinstance(asked(pod(1, both)), GpuRequest)
    assert constraints({"same-gpu": "true"}) == Constraints(same_gpu=True)
    assert constraints({"spread-gpus": "TRUE", "same-gpu": "false"}) == Constraints(
        spread_gpus=True
    )


def test_a_pod_asks_the_same_before_and_after_it_is_bound() -> None:
    """So its request is worked out once, and once for all pods of one template."""
    waiting = pod(2, {"link": "nvlink"}, name="a", uid="a")
    bound = pod(2, {"link": "nvlink", "placement": "{}", "wake": "1"}, name="b", uid="b", node="n")
    bound["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
    first, second = (msgspec.convert(each, Pod) for each in (waiting, bound))
    assert template_of(first).manifest == template_of(second).manifest
    assert parse(first) is parse(second)
    other = msgspec.convert(pod(2, {"link": "pix"}, name="a", uid="a"), Pod)
    assert template_of(first).manifest != template_of(other).manifest


def test_annotations_that_cannot_be_cached_are_read_all_the_same() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"podAffinity": deep}
    found = msgspec.convert(pod(2), Pod)
    for odd in ({"affinity": deep}, {"priority": 1 << 70}):
        spec = msgspec.structs.replace(found.spec, **odd)
        template = template_of(msgspec.structs.replace(found, spec=spec))
        assert template.manifest is None
        assert request_in(template, MANAGED) == parse(found)


def by_class(*limits: dict[str, Any]) -> dict[str, Any]:
    """A pod whose containers have these limits."""
    containers = [
        {"name": f"c{number}", "resources": {"limits": each}} for number, each in enumerate(limits)
    ]
    return pod(annotations={"link": "nvlink"}, containers=containers)


ZERO = {"nvidia.com/gpu": "0"}


@pytest.mark.parametrize(
    ("limits", "count", "unasked"),
    [
        pytest.param([{IMPLICIT_NAME: "2"}], 2, True, id="alone"),
        pytest.param([{IMPLICIT_NAME: "2", **ZERO}], 2, False, id="zero beside it"),
        pytest.param(
            [{IMPLICIT_NAME: 1}, {IMPLICIT_NAME: 1, **ZERO}], 2, False, id="two containers"
        ),
        pytest.param([{IMPLICIT_NAME: 1}, {"nvidia.com/gpu": 1}], 2, False, id="both names"),
    ],
)
def test_a_pod_that_names_the_device_class_is_judged_by_its_number(
    limits: list[dict[str, Any]], count: int, unasked: bool
) -> None:
    manifest = by_class(*limits)
    found = asked(manifest)
    assert isinstance(found, GpuRequest)
    assert (found.resource, found.count, found.by_implicit_name) == ("nvidia.com/gpu", count, True)
    assert found.constraints == Constraints(link=LinkKind.NVLINK)
    assert is_unasked(msgspec.convert(manifest, Pod), MANAGED) == unasked


def test_of_the_device_class_as_well_only_whole_gpus_are_counted() -> None:
    found = asked(by_class({IMPLICIT_NAME: "half"}))
    assert isinstance(found, Malformed)
    assert f'{IMPLICIT_NAME} "half" is not a quantity' in found.reason


@pytest.mark.parametrize("limits", [{IMPLICIT_NAME: "2"}, {IMPLICIT_NAME: "2", **ZERO}])
def test_a_snapshot_has_such_a_pod_as_it_is(limits: dict[str, Any]) -> None:
    record = record_of(by_class(limits))
    assert pod_record(msgspec.convert(manifest_of(record), Pod), MANAGED) == record
