"""Jobs, pods and clusters that the tests of the as-shipped simulation play."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from benchmarks.simulation.fleet import SimPod, cluster
from benchmarks.simulation.jobs import Ask, Job
from benchmarks.simulation.simulation import Result, Simulation, Speed
from benchmarks.simulation.sweep import POLICIES
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


def sim_pod(ask: Ask, number: int = 0) -> SimPod:
    return SimPod(PodUid(f"u{number}"), f"p{number}", ask, ask.request)


def play(
    source: str, jobs: Sequence[Job], name: str, seed: int = 1, speed: Speed | None = None
) -> Result:
    return Simulation(cluster(source), jobs, POLICIES[name], seed, speed or Speed()).run()
