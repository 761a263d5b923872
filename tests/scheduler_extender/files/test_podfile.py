"""Pods out of files: which object is the pod."""

from pathlib import Path

import pytest
import yaml

from scheduler_extender.files.podfile import PodFileError, read

PAIR = Path(__file__).parents[3] / "manifests" / "samples" / "pair-nvlink.yaml"


def _deployment(kind: str = "Deployment") -> dict[str, object]:
    pod = yaml.safe_load(PAIR.read_text())
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    spec: dict[str, object] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"kind": kind, "metadata": {"name": "train"}, "spec": spec}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "CronJob", "DaemonSet"])
def test_the_template_is_used_of_what_makes_pods(kind: str) -> None:
    asked = read(yaml.safe_dump(_deployment(kind)))
    assert asked.name == "pair-nvlink"
    assert asked.request.text == "2 GPUs link=nvlink"
    assert asked.notes == ()


PAIR_TEMPLATE = {key: yaml.safe_load(PAIR.read_text())[key] for key in ("metadata", "spec")}
QUAD_TEMPLATE = {
    "spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 4}}}]}
}


def test_pods_of_another_kind_that_are_left_out_are_reported() -> None:
    replicas = {"Master": {"template": PAIR_TEMPLATE}, "Worker": {"template": QUAD_TEMPLATE}}
    made = {"kind": "PyTorchJob", "metadata": {"name": "t"}, "spec": {"replicaSpecs": replicas}}
    asked = read(yaml.safe_dump(made))
    assert asked.request.text == "2 GPUs link=nvlink"
    (note,) = asked.notes
    assert note == "PyTorchJob also creates other pods, which are not evaluated here: 4 GPUs"


def test_a_wrong_pod_of_another_kind_is_reported() -> None:
    wrong = {"spec": {"containers": [{"image": "nvidia.com/cuda", "resources": 3}]}}
    replicas = {"Master": {"template": PAIR_TEMPLATE}, "Worker": {"template": wrong}}
    made = {"kind": "PyTorchJob", "metadata": {"name": "t"}, "spec": {"replicaSpecs": replicas}}
    with pytest.raises(PodFileError, match="resources: a mapping is needed, not a whole number"):
        read(yaml.safe_dump(made))


def test_an_object_that_is_nested_without_end_is_none() -> None:
    deep: dict[str, object] = {"template": PAIR_TEMPLATE}
    for _ in range(30):
        deep = {"more": deep}
    with pytest.raises(PodFileError, match="allowed are Pod and objects with a pod template"):
        read(yaml.safe_dump({"kind": "Deep", "metadata": {"name": "d"}, "spec": deep}))


def test_the_pod_is_found_among_other_objects() -> None:
    service = {"kind": "Service", "metadata": {"name": "train"}}
    text = yaml.safe_dump_all([service, None, _deployment()])
    assert read(text).request.text == "2 GPUs link=nvlink"
    items = {"kind": "List", "items": [service, _deployment()]}
    assert read(yaml.safe_dump(items)).request.text == "2 GPUs link=nvlink"
    both = yaml.safe_dump_all([_deployment(), service, _deployment("Job")])
    message = "exactly one Pod is needed, but there are 2: Deployment train, Job train"
    with pytest.raises(PodFileError, match=message):
        read(both)
