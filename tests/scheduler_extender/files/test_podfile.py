"""Pods out of files: which object is the pod, and what is written that does not count."""

from pathlib import Path

import pytest
import yaml

from scheduler_extender.annotations import IMPLICIT_NAME, UNASKED
from scheduler_extender.files.podfile import PodFileError, read

OURS = {"gpu-topology.io/gpu-model": "B200*"}
PAIR = Path(__file__).parents[3] / "manifests" / "samples" / "pair-nvlink.yaml"


def _deployment(kind: str = "Deployment", **more: object) -> dict[str, object]:
    pod = yaml.safe_load(PAIR.read_text())
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    spec: dict[str, object] = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"kind": kind, "metadata": {"name": "train", **more}, "spec": spec}


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


@pytest.mark.parametrize(
    ("item", "warned"),
    [
        pytest.param(
            _deployment(annotations=OURS),
            "annotation gpu-topology.io/gpu-model has no effect on the Deployment",
            id="on the Deployment itself",
        ),
        pytest.param(
            _deployment("CronJob", annotations=OURS),
            "annotation gpu-topology.io/gpu-model has no effect on the CronJob",
            id="on the CronJob itself",
        ),
        *(
            pytest.param(
                {**yaml.safe_load(PAIR.read_text()), "metadata": {"name": "x", field: {key: "b"}}},
                f"{word} {key} has no effect; {remedy}",
                id=key,
            )
            for field, word, key, remedy in (
                ("annotations", "annotation", "gpu-topology.com/link", "did you mean gpu-topo"),
                ("annotations", "annotation", "gputopology.io/link", "did you mean gpu-topo"),
                ("annotations", "annotation", "gpu-topolgy.io/nic", "did you mean gpu-topology.io"),
                ("annotations", "annotation", "GPU-Topology.io/link", "did you mean gpu-topo"),
                ("annotations", "annotation", "gpu-model", "did you mean gpu-topology.io/gpu-m"),
                ("labels", "label", "gpu-topology.io/link", "make it an annotation"),
            )
        ),
    ],
)
def test_what_has_no_effect_is_reported(item: dict[str, object], warned: str) -> None:
    (note,) = read(yaml.safe_dump(item)).notes
    assert note.startswith(warned)


@pytest.mark.parametrize("key", ["example.com/link", "nvidia.com/gpu.present", "policy"])
def test_annotations_of_others_are_not_reported(key: str) -> None:
    item = yaml.safe_load(PAIR.read_text())
    item["metadata"]["annotations"][key] = "x"
    assert read(yaml.safe_dump(item)).notes == ()


@pytest.mark.parametrize(("beside", "answer"), [("", True), (', nvidia.com/gpu: "0"', False)])
def test_a_pod_that_the_extender_is_not_asked_about_is_judged_and_reads_so(
    beside: str, answer: bool
) -> None:
    text = (
        "kind: Pod\nmetadata: {name: dc, annotations: {gpu-topology.io/link: nvlink}}\n"
        "spec: {containers: [{name: m, resources: {limits: "
        f"{{{IMPLICIT_NAME}: 2{beside}}}}}}}]}}\n"
    )
    found = read(text)
    assert (found.request.count, found.request.by_implicit_name) == (2, True)
    assert (UNASKED in found.notes) == answer
