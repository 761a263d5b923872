"""The pages and ``check`` tell of a pod what ``gpu-topology why`` tells of it, on the same cluster.

Random nodes are tainted, labelled and cordoned, and random pods select, avoid and tolerate them.
"""

import html
import json
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scheduler_extender.kube.reading import one_look
from scheduler_extender.kube.sinks import NODES_PATH
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.web.pages import Pages
from tests.fakes.apiserver import FakeApiServer
from tests.nodes import pod
from tests.scheduler_extender.cli.kubecluster import Cluster, Held
from topology.kubeapi.apiserver import ApiServer
from topology.machines import machine

MACHINES = ("dgx1-v100", "a100-pcie-4-bridged", "l40s-4", "hgx-h100-4")
PODS = 6
SEEDS = range(12)
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Explained:
    """What is said of a pod: in a line, the nodes it may come to, and where it came nearest."""

    headline: str
    nodes: set[str]
    nearest: list[tuple[str, str]]


def fleet(rng: random.Random, found: Cluster) -> None:
    for number in range(5):
        name = f"n{number}"
        node = machine(rng.choice(MACHINES)).topology(name)
        free = list(range(len(node.gpus)))
        rng.shuffle(free)
        held: dict[str, Held] = {}
        while free and rng.random() < 0.75:
            taken = [free.pop() for _ in range(min(len(free), rng.choice((1, 2, 3))))]
            held[f"{name}-{len(held)}"] = ("team-b", *taken)
        found.node(node, **held)
        spec: dict[str, Any] = {"unschedulable": True} if rng.random() < 0.2 else {}
        if rng.random() < 0.4:
            spec["taints"] = [TAINT]
        labels = {"pool": rng.choice(("a", "b"))}
        status = {"allocatable": {"nvidia.com/gpu": str(len(node.gpus))}}
        metadata = {"name": name, "labels": labels}
        found.fake.put(NODES_PATH, {"metadata": metadata, "spec": spec, "status": status})


def waits(rng: random.Random, name: str) -> dict[str, Any]:
    asks = rng.choice(({}, {"link": "nvlink"}, {"link": "nvlink", "policy": "preferred"}))
    found = pod(rng.choice((1, 2, 4)), asks, name=name, uid=name)
    if rng.random() < 0.4:
        found["spec"]["nodeSelector"] = {"pool": rng.choice(("a", "b"))}
    if rng.random() < 0.4:
        line = {"key": "pool", "operator": rng.choice(("In", "NotIn")), "values": ["a"]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [line]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        found["spec"]["affinity"] = {"nodeAffinity": required}
    if rng.random() < 0.5:
        found["spec"]["tolerations"] = [{"key": "team", "operator": "Equal", "value": "a"}]
    return found


def of_why(found: Cluster, name: str) -> Explained:
    answer = json.loads(found.why(name, "-o", "json").stdout)
    return Explained(
        answer["headline"],
        open_nodes(answer),
        [(each["node"], each["words"]) for each in answer["nearest"]],
    )


def open_nodes(answer: dict[str, Any]) -> set[str]:
    """The nodes that would take the pod, and to which kube-scheduler may send it."""
    return {row["node"] for row in answer["nodes"] if not row["message"] and not row["ineligible"]}


def of_page(text: str) -> Explained:
    """What a part of a page says of one pod."""
    headline = re.search(r'<span class="told"><b>(.*?)\.</b></span>', text)
    assert headline is not None
    misses = re.search(r'<ul class="misses">(.*?)</ul>', text, re.DOTALL)
    near = re.findall(r"<a[^>]*>(.*?)</a>: (.*?)</li>", misses.group(1)) if misses else []
    return Explained(
        html.unescape(headline.group(1)),
        set(re.findall(r'<th scope="row"><a [^>]*>(.*?)</a>', text)),
        [(node, html.unescape(words)) for node, words in near],
    )


def of_check(text: str) -> Explained:
    """Parse what ``check`` prints of one pod, in a pipe."""
    _, headline, *_ = text.splitlines()
    _, _, near = text.partition("\nnearest\n")
    _, _, table = text.partition("\nnode ")
    nodes = {line.split()[0] for line in table.splitlines()[1:]}
    return Explained(headline, nodes, re.findall(r"^  (\S+): (.*)$", near, re.MULTILINE))


def test_why_check_and_both_pages_say_the_same_of_a_pod(tmp_path: Path) -> None:
    answer: list[Explained] = []
    for seed in SEEDS:
        (folder := tmp_path / str(seed)).mkdir()
        answer += explained_by_all(seed, folder)
    headlines = [each.headline for each in answer]
    assert (
        sum("no node takes it: the " in each and "not eligible" in each for each in headlines) >= 3
    )
    assert (
        sum(re.search(r"\d of them (is|are) not eligible", h) is not None for h in headlines) >= 3
    )
    assert sum(bool(each.nearest) for each in answer) >= 10
    assert sum(bool(each.nodes) for each in answer) >= 10


def explained_by_all(seed: int, folder: Path) -> list[Explained]:
    """What ``why`` tells of each pod, which is what the others tell."""
    rng, by_why = random.Random(seed), []
    with FakeApiServer() as fake:
        found = Cluster(fake, folder)
        fleet(rng, found)
        manifests = {name: waits(rng, name) for name in (f"w{i}" for i in range(PODS))}
        for manifest in manifests.values():
            found.pod(manifest)
        api = ApiServer.from_kubeconfig(found.kubeconfig)
        try:
            pages = Pages(one_look(api, "team-a", Settings(), time.monotonic).cluster)
        finally:
            api.close()
        queues = pages.waiting().split('<details class="queue" id="queue')[1:]
        for name, manifest in manifests.items():
            answer, at = of_why(found, name), f"{name} of seed {seed}"
            (queue,) = (q for q in queues if re.search(rf"team-a/{name}\b", q))
            waits_page = queue.partition('<details class="queue" id="running"')[0]
            assert of_page(waits_page) == answer, at
            given = json.dumps({"kind": "Pod", **manifest})
            assert of_page(pages.what_if(given).partition('id="answer"')[2]) == answer, at
            (file := folder / f"{name}.json").write_text(given)
            checked = found.asked("check", file, "--output", "json")
            assert open_nodes(json.loads(checked.stdout)) == answer.nodes, at
            assert checked.returncode == (0 if answer.nodes else 1), at
            assert of_check(found.asked("check", file).stdout) == answer, at
            by_why.append(answer)
    return by_why


@pytest.mark.parametrize("seed", range(4))
def test_the_page_notes_what_why_notes_of_kube_schedulers_own_rules(
    seed: int, tmp_path: Path
) -> None:
    """Pods that ask the same stand together; each asks for GPUs that some nodes have free."""
    rng = random.Random(seed)
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    with FakeApiServer() as fake:
        found = Cluster(fake, tmp_path)
        found.node(machine("l40s-4").topology("free"))
        noted = {f"w{i}": rng.random() < 0.5 for i in range(PODS)}
        counts = {name: rng.choice((1, 2, 3, 8)) for name in noted}
        for name, note in noted.items():
            manifest = pod(counts[name], name=name, uid=name)
            if note:
                manifest["status"] = {"phase": "Pending", "conditions": [unscheduled]}
            found.pod(manifest)
        api = ApiServer.from_kubeconfig(found.kubeconfig)
        try:
            page = Pages(one_look(api, "team-a", Settings(), time.monotonic).cluster).waiting()
        finally:
            api.close()
        for queue in page.split('<details class="queue" id="queue')[1:]:
            (first, *_) = re.findall(r"team-a/(w\d)", queue)
            names = [name for name in noted if counts[name] == counts[first]]
            whole = [json.loads(found.why(name, "-o", "json").stdout)["notes"] for name in names]
            why = [note for notes in whole for note in notes if "has found no node" in note]
            message = re.findall(r'<p class="note">(.*)</p>', queue)
            assert bool(message) == bool(why), names
            assert bool(why) == any(noted[n] for n in names if counts[n] <= 4)
            if len(names) == 1:
                assert message == [f"{note}." for note in why]
            elif 0 < len(why) < len(names):
                assert f"no node for {len(why)} of them" in message[0]
