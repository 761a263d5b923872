"""Which pods the objects of KServe and Argo make, and with which annotations."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scheduler_extender.files.podfile import NoPodError, read, read_each

LINK = {"annotations": {"gpu-topology.io/link": "nvlink"}}
TWO = {"resources": {"limits": {"nvidia.com/gpu": 2}}}


def isvc(**predictor: Any) -> dict[str, Any]:
    return {
        "kind": "InferenceService",
        "metadata": {"name": "llama", **LINK},
        "spec": {"predictor": predictor, "transformer": {"containers": [{"name": "t"}]}},
    }


def workflow(kind: str, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    inner = {"templates": [{"name": "main", "steps": [[]]}, {"name": "train", **template}], **spec}
    whole = {"workflowSpec": inner, "schedule": "0 1 * * *"} if kind == "CronWorkflow" else inner
    return {"kind": kind, "metadata": {"name": "wf"}, "spec": whole}


@pytest.mark.parametrize(
    "predictor",
    [
        pytest.param({"model": {"modelFormat": {"name": "huggingface"}, **TWO}}, id="model"),
        pytest.param({"triton": TWO}, id="framework"),
        pytest.param({"containers": [{"name": "kserve-container", **TWO}]}, id="containers"),
        pytest.param({"model": {}, "workerSpec": {"containers": [TWO]}}, id="workers"),
    ],
)
def test_an_inference_service_gives_its_annotations_to_its_pods(predictor: dict[str, Any]) -> None:
    asked = read(yaml.safe_dump(isvc(**predictor)))
    assert (asked.name, asked.request.text) == ("llama-predictor", "2 GPUs link=nvlink")
    assert asked.notes == ()


def test_a_component_overrides_the_annotations_of_its_service() -> None:
    own = {"annotations": {"gpu-topology.io/link": "phb"}}
    asked = read(yaml.safe_dump(isvc(model=TWO, minReplicas=3, **own)))
    assert (asked.request.text, asked.copies) == ("2 GPUs link=phb", 3)


@pytest.mark.parametrize(
    "kind", ["Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"]
)
@pytest.mark.parametrize(
    "runs", [{"container": TWO}, {"script": TWO}, {"containerSet": {"containers": [TWO]}}]
)
def test_each_template_of_a_workflow_that_runs_containers_makes_a_pod(
    kind: str, runs: dict[str, Any]
) -> None:
    asked = read(yaml.safe_dump(workflow(kind, runs, podMetadata=LINK, nodeSelector={"a": "b"})))
    assert (asked.name, asked.request.text) == ("wf-train", "2 GPUs link=nvlink")
    assert asked.notes == ()
    assert asked.standing.destinations.selector


def test_a_template_overrides_what_the_workflow_says_of_all_pods() -> None:
    own = {"metadata": {"annotations": {"gpu-topology.io/link": "phb"}}, "nodeSelector": {"c": "d"}}
    made = workflow(
        "Workflow", {"container": TWO, **own}, podMetadata=LINK, nodeSelector={"a": "b"}
    )
    asked = read(yaml.safe_dump(made))
    assert asked.request.text == "2 GPUs link=phb"
    assert [line.key for line in asked.standing.destinations.selector] == ["c"]


def test_an_annotation_of_the_workflow_itself_counts_for_nothing() -> None:
    made = workflow("Workflow", {"container": TWO})
    made["metadata"] = {"generateName": "wf-", **LINK}
    asked = read(yaml.safe_dump(made))
    assert (asked.name, asked.request.text) == ("wf-train", "2 GPUs")
    (note,) = asked.notes
    assert note.endswith("write it under spec.podMetadata.annotations")


@pytest.mark.parametrize("spec", [None, {}, {"templates": None, "predictor": {}}])
@pytest.mark.parametrize("kind", ["Workflow", "CronWorkflow", "InferenceService"])
def test_an_object_without_containers_makes_no_pod(kind: str, spec: object) -> None:
    other = workflow("Workflow", {"container": TWO})
    found = read_each(yaml.safe_dump_all([{"kind": kind, "spec": spec}, other]))
    assert [each.name for each in found.wanted] == ["wf-train"]
    assert found.faults == []


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        ("InferenceService", 3, "spec: a mapping is needed, not 3"),
        ("InferenceService", {"predictor": 3}, "spec.predictor: a mapping is needed, not 3"),
        ("InferenceService", {"predictor": {"model": [3]}}, "spec.predictor.model: a mapping"),
        ("InferenceService", {"explainer": {"containers": {}}}, "containers: a list is needed"),
        ("Workflow", {"templates": 3}, "spec.templates: a list is needed, not 3"),
        ("Workflow", {"templates": [{}, "a"]}, "spec.templates[1]: a mapping is needed, not 'a'"),
        ("WorkflowTemplate", {"templates": [{"script": "a"}]}, "spec.templates[0].script: a map"),
        ("CronWorkflow", {"workflowSpec": []}, "spec.workflowSpec: a mapping is needed, not []"),
        ("Deployment", {"template": "web"}, "spec.template: a mapping is needed, not 'web'"),
        ("Job", {"template": {"spec": {"containers": {}}}}, "containers: a list is needed, not {}"),
        ("CronJob", {"jobTemplate": {"spec": {"template": 1}}}, "spec.jobTemplate.spec.template:"),
    ],
)
def test_an_object_that_cannot_be_read_is_a_line_and_hides_no_other(
    kind: str, spec: Any, said: str
) -> None:
    wrong = {"kind": kind, "metadata": {"name": "wrong"}, "spec": spec}
    found = read_each(yaml.safe_dump_all([wrong, isvc(model=TWO), wrong]))
    assert [each.name for each in found.wanted] == ["llama-predictor"]
    assert len(found.faults) == 2
    for fault in found.faults:
        assert fault.startswith(f"{kind} wrong: ")
        assert said in fault
    assert read_each(yaml.safe_dump(wrong)).faults == found.faults[:1]


def test_a_kind_that_is_no_text_is_no_kind() -> None:
    with pytest.raises(NoPodError, match="allowed are Pod and what has a pod template, not"):
        read("kind: [Job]\nspec: 3\n")


def test_a_workflow_without_containers_is_no_kind_that_is_forbidden() -> None:
    steps = workflow("Workflow", {"steps": [[{"template": "x"}]]})
    with pytest.raises(NoPodError, match="Workflow wf: no containers, so it makes no pod"):
        read(yaml.safe_dump(steps))
