"""Jobs from files, and what is said of bad ones."""

from pathlib import Path

import pytest

from benchmarks.simulation.jobs import Ask, Job, JobsError, read
from tests.benchmarks.simulation.samples import written


def test_csv_and_json_lines_say_the_same(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        "jobs.csv",
        "arrival,duration,gpus,pods,cpu,memory,model,annotations,name\n"
        "60,120,2,3,8,16Gi,V100*,link=nvlink policy=preferred,late\n"
        "0,,,,500m,1.5Gi,,,early\n",
    )
    lines = written(
        tmp_path,
        "jobs.jsonl",
        '{"arrival": 60, "duration": 120, "gpus": 2, "pods": 3, "cpu": 8, "memory": "16Gi",'
        ' "model": "V100*", "annotations": {"link": "nvlink", "policy": "preferred"},'
        ' "name": "late"}\n\n'
        '{"arrival": 0, "cpu": 0.5, "memory": "1536Mi", "name": "early"}\n',
    )
    found = read(table)
    assert found == read(lines)
    early, late = found
    assert early == Job("early", 0, 3600, Ask(1, 500, 1536))
    wanted = (("gpu-model", "V100*"), ("link", "nvlink"), ("policy", "preferred"))
    assert late == Job("late", 60, 120, Ask(2, 8000, 16384, wanted), 3)
    assert (early.gpus, late.gpus) == (1, 6)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x,60,1,", "line 2: arrival"),
        ("-1,60,1,", "line 2: arrival"),
        ("nan,60,1,", "line 2: arrival"),
        ("0,0,1,", "line 2: duration"),
        ("0,60,1.5,", "line 2: gpus"),
        ("0,60,2000,", "line 2: gpus"),
        ("0,60,2,links=nvlink", "'links': allowed are link, min-nvlinks"),
        ("0,60,2,link=fast", "allowed are nvlink, pix"),
        ("0,60,2,nvlink", "allowed are words such as link=nvlink"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = written(tmp_path, "jobs.csv", f"arrival,duration,gpus,annotations\n{line}\n")
    with pytest.raises(JobsError) as caught:
        read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_jobs(tmp_path: Path) -> None:
    for name, text, words in (
        ("a.txt", "", "allowed are files that end in .csv or .jsonl"),
        ("a.csv", "arrival\n", "the file has no job"),
        ("a.jsonl", "[1]\n", "line 1: an object is needed"),
        ("b.jsonl", '{"arrival": 1}\n{', "line 2: not JSON"),
        ("c.jsonl", '{"arrival": 1, "gpu": 2}\n', "gpu"),
        ("c.csv", "arrival,gpu\n1,2\n", "gpu"),
        ("d.csv", "arrival\n1,2\n", "line 2"),
    ):
        with pytest.raises(JobsError, match=words.replace(".", r"\.")):
            read(written(tmp_path, name, text))
    with pytest.raises(JobsError, match="No such file"):
        read(tmp_path / "none.csv")
