"""The commands, the map, the metrics and the JSON count GPUs alike."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest

from scheduler_extender.cli import main
from scheduler_extender.explain.gpustates import USED, Use, node_state
from scheduler_extender.files.clusterfile import feed, load
from scheduler_extender.files.snapshot import cluster_file
from scheduler_extender.http.metrics import Metrics
from scheduler_extender.http.servers import Addresses
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.attributes import SchedulingAttributes
from scheduler_extender.web.overview import Filters
from scheduler_extender.web.pages import Pages
from tests.commands import ROOT, asked
from tests.scheduler_extender.web.cluster import Building, small
from tests.waiting import PATIENCE
from topology.core.devices import NodeName

EXAMPLES = sorted((ROOT / "examples" / "clusters").glob("*.yaml"))
USED_WORDS = {use.word for use in USED}
CAMEL = {"in use": "inUse"}
SPLIT, PARTLY = "mig", "partly-free"


def kept() -> Building:
    """A place for three GPUs is kept, and a pod is on its way."""
    made = small()
    made.pod("comes-too", 2, made.node("dgx-a100", "kept-01"), running=False)
    wants = made.pod("wants-three", 3, None)
    place = SchedulingAttributes(nominated=NodeName("kept-01"), priority=7)
    made.cluster.put_pod(replace(wants, attributes=place))
    return made


def of_commands(file: Path) -> tuple[Counter[str], str]:
    """What ``nodes`` counts, as data and in a sentence."""
    data = json.loads(asked(main, "nodes", "--cluster", file, "-o", "json").stdout)
    found = Counter[str]()
    for node in data["nodes"]:
        counts = node["gpus"]
        assert counts.pop("total") == sum(counts.values())
        found.update(counts)
    return Counter({word: found[CAMEL.get(word, word)] for word in words()}), asked(
        main, "nodes", "--cluster", file
    ).stdout.splitlines()[-1]


def words() -> list[str]:
    return [*(use.word for use in Use if use not in USED), "in use"]


def of_admin_port(cluster: Cache) -> Counter[str]:
    """What ``/v1/nodes`` counts."""
    service = in_memory(cluster)
    with in_thread(service, Addresses()) as serving:
        url = f"http://127.0.0.1:{serving.ports[1]}/v1/nodes"
        nodes = httpx.get(url, trust_env=False, timeout=PATIENCE).json()
    found = Counter[str]()
    for node in nodes:
        found.update(node.get("states", {}))
        assert sum(node.get("states", {}).values()) == node.get("gpus", 0)
    return Counter({word: found[CAMEL.get(word, word)] for word in words()})


def of_map(cluster: Cache) -> Counter[str]:
    """What the head of the map counts."""
    page = Pages(cluster).map(Filters())
    summary = page.partition('class="summary"')[2].partition("</section>")[0]
    counts = re.findall(r"</i>([\d,]+) ([a-z ()]+)</span>", summary)
    found = Counter[str]()
    for number, word in counts:
        found["in use" if word in USED_WORDS else word] += int(number.replace(",", ""))
    return found


def of_metrics(cluster: Cache) -> Counter[str]:
    """The metrics, under the names that the other answers use."""
    metrics = Metrics()
    metrics.watch(cluster)
    text = generate_latest(metrics.registry).decode()
    states = re.findall(r'^gpu_topology_gpus{state="([a-z-]+)"} ([\d.]+)$', text, re.MULTILINE)
    word = {use.value: use.word for use in Use}
    return Counter({word.get(state, state): int(float(n)) for state, n in states})


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_is_counted_alike(file: Path) -> None:
    cluster = Cache(lambda: 0.0, Settings(stale_after=None, all_pods_known=False))
    feed(cluster, load(file))
    check(cluster, file)


def test_pods_on_their_way_and_reservations_are_counted_alike(tmp_path: Path) -> None:
    made = kept()
    state = node_state(made.cluster.node_info(NodeName("kept-01")))
    assert +state.uses == Counter({Use.FREE: 3, Use.ASSUMED: 2, Use.RESERVED: 3})
    file = tmp_path / "cluster.yaml"
    file.write_bytes(b"".join(cluster_file(made.cluster)))
    assert of_commands(file)[0]["reserved"] == 3
    check(made.cluster, file)


def check(cluster: Cache, file: Path) -> None:
    counts, sentence = of_commands(file)
    counted = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z ]+?)[,;]", sentence)}
    assert +counts == +Counter({word: counted.get(word, 0) for word in words()})
    assert +counts == +of_map(cluster)
    assert +counts == +of_admin_port(cluster)
    answer = of_metrics(cluster)
    assert answer.total() == counts.total()
    apart = answer.pop(SPLIT) + answer.pop(PARTLY) + answer.pop("unknown")
    assert all(answer[word] <= counts[word] for word in words())
    assert apart == sum(counts[word] - answer[word] for word in words())
    if not apart:
        assert answer == counts
