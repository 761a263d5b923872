"""Every YAML block of the documents is good: as an object, as values of the chart, as a piece of a
kustomization or of a configuration, or as an excerpt of a manifest that the project ships."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from scheduler_extender.annotations import Malformed, parse
from scheduler_extender.files.clusterfile import load, read_pod
from tests.documents.blocks import FENCE, PAGES, ROOT, Block, blocks
from tests.manifests.building import KUBERNETES, objects, scheduler_config

EVERY = [block for block in blocks() if block.language == "yaml"]
# Kinds of a release that ``kubernetes-validate`` does not know; e2e applies them to a server.
NEWER = {("scheduling.k8s.io/v1beta1", "PodGroup")}
# What no API server takes: it has to be an excerpt of a file that is shipped.
FILES = {("kubeadm.k8s.io/v1beta4", "ClusterConfiguration")}
KUSTOMIZATION = {"resources", "components", "patches", "images"}
SCHEDULER = {"profiles", "extenders"}
PLUGINS = {"pluginConfig"}  # Read by the real kube-scheduler in tests/e2e/test_howto.py
EXCERPTS = ("manifests/samples", "examples", "manifests/base", "manifests/scheduler")


def documents(block: Block) -> list[Any]:
    return [found for found in yaml.safe_load_all(block.text) if found is not None]


@pytest.mark.parametrize("block", EVERY, ids=str)
def test_a_manifest_of_the_documents(block: Block, tmp_path: Path) -> None:
    for found in documents(block):
        assert isinstance(found, dict), block
        check(block, found, tmp_path)


CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def test_a_mapping_in_a_sentence_is_yaml() -> None:
    """A reader who copies it into a file would get an error."""
    seen = 0
    for page in PAGES:
        for text in CODE.findall(FENCE.sub("", page.read_text())):
            if re.match(r"[\w./-]+: ", text) and re.search(r"[{[]", text):
                assert isinstance(yaml.safe_load(text), dict), f"{page.name}: {text}"
                seen += 1
    assert seen


def check(block: Block, found: dict[str, Any], folder: Path) -> None:
    """The check that a block of its keys needs; a new kind of block has none, and fails."""
    if (found.get("apiVersion"), found.get("kind")) in FILES:
        assert any(contains(whole, found) for whole in shipped()), f"{block}: nobody ships this"
    elif found.get("kind") == "MachineGroup":
        (folder / "cluster.yaml").write_text(yaml.safe_dump(found))
        assert load(folder / "cluster.yaml").records
    elif {"apiVersion", "kind"} <= found.keys():
        is_an_object(found)
    elif found.keys() <= KUSTOMIZATION:
        builds(found, folder)
    elif "# values" in block.text:
        schema = yaml.safe_load((ROOT / "manifests/chart/values.schema.json").read_text())
        jsonschema.validate(merged(values(), found), schema)
    elif found.keys() <= SCHEDULER:
        is_a_configuration(found)
    elif found.keys() == {"metadata", "spec"}:
        is_a_pod(found)
    else:
        assert any(within(found, whole) for whole in shipped()), f"{block}: nobody ships this"


def is_an_object(found: dict[str, Any]) -> None:
    if (found["apiVersion"], found["kind"]) not in NEWER and found["kind"] != "Pod":
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


def is_a_pod(found: dict[str, Any]) -> None:
    """A piece of a pod that the extender reads as a request."""
    metadata = {"name": "x", "uid": "x", "namespace": "default", **found["metadata"]}
    pod = {"apiVersion": "v1", "kind": "Pod", **found, "metadata": metadata}
    for container in pod["spec"]["containers"]:
        container.setdefault("image", "example/work")
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    assert not isinstance(parse(read_pod(pod)), Malformed | None)


def builds(found: dict[str, Any], folder: Path) -> None:
    """A piece of a kustomization; paths of the pages lead beside a checkout, or into it."""
    here = os.path.relpath(ROOT, folder.resolve())
    text = yaml.safe_dump(found).replace("../gpu-topology/", f"{here}/")
    whole = yaml.safe_load(text)
    whole["resources"] = [
        f"{here}/manifests/{path.removeprefix('../')}" if path.startswith("../base") else path
        for path in whole.get("resources", [f"{here}/manifests/base"])
    ]
    whole["components"] = [
        f"{here}/manifests/{path.removeprefix('../')}" if path.startswith("../monit") else path
        for path in whole.get("components", [])
    ]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    assert len(objects(folder)) >= len(objects())


def is_a_configuration(found: dict[str, Any]) -> None:
    """A piece of kube-scheduler's configuration with the fields of ours, of which it is a part."""
    assert found.keys() <= scheduler_config().keys() | {"profiles"}
    (known,) = scheduler_config()["extenders"]
    for extender in found.get("extenders", []):
        assert extender.keys() <= known.keys()
    for profile in found.get("profiles", []):
        assert profile.keys() <= {"schedulerName", "percentageOfNodesToScore", "plugins", *PLUGINS}


def values() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "manifests/chart/values.yaml").read_text())  # type: ignore[no-any-return]


def merged(old: Any, new: Any) -> Any:
    """As Helm merges values: a null takes a key out."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    both = {
        key: merged(old.get(key), new[key]) if key in new else old[key] for key in {**old, **new}
    }
    return {key: value for key, value in both.items() if value is not None}


@cache
def shipped() -> tuple[Any, ...]:
    """All objects of the manifests and examples."""
    return tuple(
        found
        for folder in EXCERPTS
        for path in sorted((ROOT / folder).rglob("*.yaml"))
        for found in yaml.safe_load_all(path.read_text())
    )


def within(part: Any, whole: Any) -> bool:
    """Whether a part stands in a whole, at its root or somewhere inside."""
    return contains(whole, part) or any(within(part, below) for below in children(whole))


def children(found: Any) -> Iterator[Any]:
    if isinstance(found, dict):
        yield from found.values()
    elif isinstance(found, list):
        yield from found


def contains(whole: Any, part: Any) -> bool:
    """Whether a whole has all that a part has; a list's items may have others beside them.

    >>> contains({"a": [{"b": 1, "c": 2}], "d": 3}, {"a": [{"b": 1}]})
    True
    >>> contains({"a": [{"b": 1}]}, {"a": [{"b": 2}]})
    False
    """
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and contains(whole[key], value) for key, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(
            any(contains(item, wanted) for item in whole) for wanted in part
        )
    return bool(whole == part)


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: x}\nspec: {hrad: {pods: 1}}\n",
        "metadata: {annotations: {gpu-topology.io/link: nvlnk}}\nspec: {containers: [{name: m,"
        " resources: {limits: {nvidia.com/gpu: 2}}}]}\n",
        "# values\nagent: {runtimeClass: nvidia}\n",
        "components: [../gpu-topology/manifests/base/options/nothing]\n",
        "extenders: [{filterverb: filter}]\n",
        "nodeSelector: {example.com/pool: nowhere}\n",
    ],
    ids=["object", "pod", "values", "kustomization", "scheduler", "excerpt"],
)
def test_a_wrong_block_is_found(text: str, tmp_path: Path) -> None:
    block = Block("page", 1, "yaml", text)
    wrong = (AssertionError, jsonschema.ValidationError, kubernetes_validate.ValidationError)
    with pytest.raises(wrong):
        check(block, documents(block)[0], tmp_path)
