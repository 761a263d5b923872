"""Which pods the objects of KServe and Argo make, and with which annotations."""

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
    assert asked.attributes.eligible_nodes.selector


def test_a_template_overrides_what_the_workflow_says_of_all_pods() -> None:
    own = {"metadata": {"annotations": {"gpu-topology.io/link": "phb"}}, "nodeSelector": {"c": "d"}}
    made = workflow(
        "Workflow", {"container": TWO, **own}, podMetadata=LINK, nodeSelector={"a": "b"}
    )
    asked = read(yaml.safe_dump(made))
    assert asked.request.text == "2 GPUs link=phb"
    assert [line.key for line in asked.attributes.eligible_nodes.selector] == ["c"]


def test_an_annotation_of_the_workflow_itself_counts_for_nothing() -> None:
    made = workflow("Workflow", {"container": TWO})
    made["metadata"] = {"generateName": "wf-", **LINK}
    asked = read(yaml.safe_dump(made))
    assert (asked.name, asked.request.text) == ("wf-train", "2 GPUs")
    (note,) = asked.notes
    assert note.endswith("move it to spec.podMetadata.annotations")


@pytest.mark.parametrize("spec", [None, {}, {"templates": None, "predictor": {}}])
@pytest.mark.parametrize("kind", ["Workflow", "CronWorkflow", "InferenceService"])
def test_an_object_without_containers_makes_no_pod(kind: str, spec: object) -> None:
    other = workflow("Workflow", {"container": TWO})
    found = read_each(yaml.safe_dump_all([{"kind": kind, "spec": spec}, other]))
    assert [each.name for each in found.wanted] == ["wf-train"]
    assert found.faults == []


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
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
    kind: str, spec: Any, message: str
) -> None:
    wrong = {"kind": kind, "metadata": {"name": "wrong"}, "spec": spec}
    found = read_each(yaml.safe_dump_all([wrong, isvc(model=TWO), wrong]))
    assert [each.name for each in found.wanted] == ["llama-predictor"]
    assert len(found.faults) == 2
    for fault in found.faults:
        assert fault.startswith(f"{kind} wrong: ")
        assert message in fault
    assert read_each(yaml.safe_dump(wrong)).faults == found.faults[:1]


def test_a_kind_that_is_no_text_is_no_kind() -> None:
    with pytest.raises(NoPodError, match="allowed are Pod and objects with a pod template, not"):
        read("kind: [Job]\nspec: 3\n")


def test_a_workflow_without_containers_is_no_kind_that_is_forbidden() -> None:
    steps = workflow("Workflow", {"steps": [[{"template": "x"}]]})
    with pytest.raises(NoPodError, match="Workflow wf: it has no containers, so it creates no pod"):
        read(yaml.safe_dump(steps))


EACH = {"template": {"spec": {"containers": [{"name": "c", **TWO}]}}}
HEAD = {"template": {"spec": {"containers": [{"name": "head"}]}}}
LWS = {"leaderTemplate": EACH["template"], "workerTemplate": EACH["template"]}
WORKERS = {"workerGroupSpecs": [{"replicas": 3, "minReplicas": 1, "numOfHosts": 2, **EACH}]}
AS_MANY = [
    ("Deployment", {"replicas": 5, **EACH}, 5),
    ("Deployment", EACH, 1),
    ("Job", {"parallelism": 6, **EACH}, 6),
    ("Job", {"parallelism": 6, "completions": 4, **EACH}, 4),
    ("CronJob", {"jobTemplate": {"spec": {"parallelism": 6, **EACH}}}, 6),
    ("Job", {"minAvailable": 4, "tasks": [{"replicas": 4, **EACH}, {"replicas": 3, **EACH}]}, 7),
    ("MPIJob", {"mpiReplicaSpecs": {"Worker": {"replicas": 18, **EACH}, "Launcher": HEAD}}, 18),
    ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": EACH, "Worker": {"replicas": 3, **EACH}}}, 4),
    (
        "JobSet",
        {"replicatedJobs": [{"replicas": 3, "template": {"spec": {"parallelism": 2, **EACH}}}]},
        6,
    ),
    ("LeaderWorkerSet", {"replicas": 3, "leaderWorkerTemplate": {"size": 4, **LWS}}, 12),
    (
        "LeaderWorkerSet",
        {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": EACH["template"]}},
        12,
    ),
    ("RayCluster", {"headGroupSpec": HEAD, **WORKERS}, 6),
    ("RayCluster", {"workerGroupSpecs": [{"minReplicas": 4, **EACH}]}, 4),
    ("RayJob", {"rayClusterSpec": WORKERS}, 6),
    ("RayService", {"rayClusterConfig": WORKERS}, 6),
    ("Workload", {"podSets": [{"count": 7, **EACH}]}, 7),
    ("Rollout", {"replicas": 2, **EACH}, 2),
    ("AppWrapper", {"components": [{"template": {"spec": {"replicas": 8, **EACH}}}]}, 8),
    ("InferenceService", {"predictor": {"minReplicas": 3, "model": TWO}}, 3),
    (
        "InferenceService",
        {
            "predictor": {
                "minReplicas": 2,
                "model": {},
                "workerSpec": {"pipelineParallelSize": 4, "containers": [TWO]},
            }
        },
        6,
    ),
    ("Workflow", {"templates": [{"name": "train", "container": TWO}]}, 1),
]


@pytest.mark.parametrize(
    ("kind", "spec", "copies"), [pytest.param(*row, id=f"{row[0]} {row[2]}") for row in AS_MANY]
)
def test_the_pods_of_each_kind_are_counted(kind: str, spec: dict[str, Any], copies: int) -> None:
    made = {"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    (asked,) = read_each(yaml.safe_dump(made)).wanted
    assert (asked.copies, asked.notes) == (copies, ())


LOOP = [{"name": "train", "container": TWO}, {"steps": [[{"template": "train", "withItems": [1]}]]}]
BESIDE = [{"name": "train", "container": TWO}, {"dag": {"tasks": [{"template": "train"}] * 2}}]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("DaemonSet", EACH),
        ("SomethingNew", {"stages": [EACH]}),
        ("Deployment", {"replicas": "$(REPLICAS)", **EACH}),
        ("Deployment", {"replicas": 2**31, **EACH}),
        ("JobSet", {"replicatedJobs": [{"replicas": True, "template": {"spec": EACH}}]}),
        ("Workflow", {"templates": LOOP}),
        ("Workflow", {"templates": BESIDE}),
    ],
)
def test_uncounted_pods_are_reported(kind: str, spec: dict[str, Any]) -> None:
    made = {"kind": kind, "metadata": {"name": "a"}, "spec": spec}
    (asked,) = read_each(yaml.safe_dump(made)).wanted
    assert asked.notes == (f"{kind} a: the number of its pods is unknown, so one is evaluated",)
    assert asked.copies == 1


def test_a_controller_makes_its_pods_a_group() -> None:
    """As the labels and annotations say that it writes on each pod."""
    domain = {"annotations": {"gpu-topology.io/group-domain": "node"}}
    template = {"metadata": domain, **EACH["template"]}
    spec = {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": template}}
    made = {"kind": "LeaderWorkerSet", "metadata": {"name": "a"}, "spec": spec}
    (asked,) = read_each(yaml.safe_dump(made)).wanted
    assert asked.group_ref is not None
    assert (asked.group_ref.group.name, asked.group_ref.size) == ("leaderworkerset/a", 4)
    message = "LeaderWorkerSet a: it creates 3 groups, but only one is evaluated"
    assert (asked.copies, asked.notes) == (4, (message,))
    spec["replicas"] = 1
    assert read_each(yaml.safe_dump(made)).wanted[0].notes == ()
    sized = {"annotations": {**domain["annotations"], "gpu-topology.io/group-size": "6"}}
    jobs = [{"replicas": 3, "template": {"spec": {"parallelism": 2, "template": {}}}}]
    jobs[0]["template"]["spec"]["template"] = {"metadata": sized, **EACH["template"]}  # type: ignore[index]
    made = {"kind": "JobSet", "metadata": {"name": "a"}, "spec": {"replicatedJobs": jobs}}
    (asked,) = read_each(yaml.safe_dump(made)).wanted
    assert asked.group_ref is not None
    assert (asked.group_ref.group.name, asked.copies) == ("jobset/a", 6)
