"""What a pod file says without effect is reported, and nothing else."""

from pathlib import Path

import pytest
import yaml

from scheduler_extender.annotations import IMPLICIT_NAME, UNASKED
from scheduler_extender.files.podfile import read

OURS = {"annotations": {"gpu-topology.io/gpu-model": "B200*"}}
PAIR = Path(__file__).parents[3] / "manifests" / "samples" / "pair-nvlink.yaml"
POD = yaml.safe_load(PAIR.read_text())


@pytest.mark.parametrize(
    ("item", "warned"),
    [
        pytest.param(
            {"kind": "Deployment", "metadata": OURS, "spec": {"template": POD}},
            "annotation gpu-topology.io/gpu-model has no effect on the Deployment",
            id="on the Deployment itself",
        ),
        pytest.param(
            {
                "kind": "CronJob",
                "metadata": OURS,
                "spec": {"jobTemplate": {"spec": {"template": POD}}},
            },
            "annotation gpu-topology.io/gpu-model has no effect on the CronJob",
            id="on the CronJob itself",
        ),
        *(
            pytest.param(
                {**POD, "metadata": {"name": "x", field: {key: "b"}}},
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
    metadata = {"name": "x", "annotations": {**POD["metadata"]["annotations"], key: "x"}}
    assert read(yaml.safe_dump({**POD, "metadata": metadata})).notes == ()


@pytest.mark.parametrize(("beside", "answer"), [("", True), (', nvidia.com/gpu: "0"', False)])
def test_a_pod_that_the_extender_is_not_asked_about_is_evaluated_with_a_note(
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
