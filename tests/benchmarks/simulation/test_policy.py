"""kube-scheduler's own part: samples and scores, by hand."""

from pathlib import Path

from benchmarks.simulation.fleet import Fleet, cluster
from benchmarks.simulation.jobs import Ask
from benchmarks.simulation.policy import DEFAULT, WITH_GPUS, Policy, sample_size
from tests.benchmarks.simulation.samples import Fixed, sim_pod


def test_samples_go_round_and_cover_every_node_that_fits() -> None:
    fleet = Fleet(cluster("t4-1=250"), Fixed())  # type: ignore[arg-type]
    in_tree = Policy(fleet, Fixed())  # type: ignore[arg-type]
    pod = sim_pod(Ask(1))
    assert sample_size(250) == 120
    assert list(next(in_tree.samples(pod))) == list(range(120))
    assert list(next(in_tree.samples(pod))) == list(range(120, 240))
    third = list(in_tree.samples(pod))
    assert third[0][0] == 240
    assert sorted(row for rows in third for row in rows) == list(range(250))
    for row in range(0, 250, 2):
        fleet.admit(row, sim_pod(Ask(1), row))
    rows = [row for rows in in_tree.samples(pod) for row in rows]
    assert sorted(rows) == list(range(1, 250, 2))


def test_in_tree_scores_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "kind: MachineGroup\nmachine: dgx1-v100\ncount: 2\nnamePrefix: n-\ncpu: 80\nmemory: 400Gi\n"
    )
    fleet = Fleet(cluster(str(path)), Fixed())  # type: ignore[arg-type]
    in_tree = Policy(fleet, Fixed())  # type: ignore[arg-type]
    fleet.admit(1, sim_pod(Ask(4, 40_000, 100 * 1024)))
    rows = next(in_tree.samples(pod := sim_pod(Ask(2, 8000, 100 * 1024), 1)))
    # After it n-0 has 90 % of the CPU, 75 % of the memory, 75 % of the GPUs; n-1 40, 50 and 25.
    # Balanced: n-0 uses 10 and 25 %, n-1 60 and 50: half the difference is lost.
    least = in_tree.scores(pod, rows, WITH_GPUS, most=False)
    assert list(least) == [(90 + 75 + 3 * 75) // 5 + 92, (40 + 50 + 3 * 25) // 5 + 95]
    most = in_tree.scores(pod, rows, WITH_GPUS, most=True)
    assert list(most) == [(10 + 25 + 3 * 25) // 5 + 92, (60 + 50 + 3 * 75) // 5 + 95]
    assert list(in_tree.scores(pod, rows, DEFAULT, most=False)) == [82 + 92, 45 + 95]
