"""Jobs, pods and clusters that the tests of the as-shipped simulation play."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import strategies as st

from benchmarks.simulation.clusters import cluster
from benchmarks.simulation.fleet import Fleet, SimPod
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.policies import policy
from benchmarks.simulation.simulation import Result, Rules, Simulation
from topology import codec
from topology.core.devices import PodUid
from topology.machines import machine

DGX = machine("dgx1-v100").topology("n").shape


LINK = (("link", "nvlink"),)


RING = (("link", "nvlink"), ("shape", "ring"))


class Fixed:
    """A random.Random that always takes the first."""

    def randrange(self, n: int) -> int:
        return 0

    def sample(self, values: Sequence[object], n: int) -> list[object]:
        return list(values)[:n]

    def random(self) -> float:
        return 0.5


def written(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


some_asks = st.builds(
    Ask,
    st.sampled_from((0, 1, 2, 3, 4, 8)),
    st.none(),
    st.sampled_from((0, 1000, 12000)),
    st.sampled_from((0, 4096)),
    st.sampled_from(((), LINK, RING, (("link", "nvlink"), ("policy", "preferred")))),
)


some_jobs = st.lists(
    st.builds(
        Job,
        st.just("job"),
        st.integers(0, 300).map(float),
        st.integers(1, 200).map(float),
        some_asks,
        st.sampled_from((1, 1, 1, 2, 3)),
    ),
    min_size=1,
    max_size=25,
).map(lambda jobs: sorted(jobs, key=lambda job: job.arrives))


def sim_pod(fleet: Fleet, ask: Ask, number: int = 0) -> SimPod:
    resource = fleet.resource(ask)
    return SimPod(PodUid(f"u{number}"), f"p{number}", ask, resource, ask.request(resource))


def play(source: str, jobs: Sequence[Job], name: str, **rules: object) -> Result:
    nodes = cluster(source)
    return Simulation(nodes, jobs, lambda: policy(name), 1, Rules(**rules)).run()  # type: ignore[arg-type]


def replayed(tmp_path: Path, status: Mapping[str, object], *pods: Mapping[str, object]) -> str:
    """A cluster file of one DGX-1V with this status."""
    record = codec.encode(machine("dgx1-v100").topology("n"))
    record["status"] = {"bootID": "b", "sequence": 1, **status}
    path = tmp_path / "c.yaml"
    path.write_text("\n---\n".join(json.dumps(d) for d in (record, *pods)))
    return str(path)


UUIDS = [gpu.uuid for gpu in machine("dgx1-v100").topology("n").gpus]


def holds(gpus: Sequence[int], uid: str = "u") -> dict[str, object]:
    found: dict[str, object] = {"namespace": "x", "pod": "p", "container": "main"}
    found |= {"resource": "nvidia.com/gpu", "deviceIds": [UUIDS[i] for i in gpus]}
    return found | ({"podUID": uid} if uid else {})
