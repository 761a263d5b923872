"""Each check finds what it is there for, in a small history, and nothing in a good one."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.checks import CHECKS, findings, fits, free_at_end, unattributed
from tests.chaos.history import (
    KINDS,
    Answered,
    Created,
    Entry,
    Fault,
    Given,
    HistoryError,
    Node,
    Recorder,
    Refused,
    Released,
    Removed,
    Reported,
    Stored,
    Written,
    line_of,
    read,
)
from tests.chaos.report import report
from tests.chaos.story import REPLICAS, story_of
from tests.waiting import FOREVER

ROOT = Path(__file__).resolve().parents[2]
NODE = Node("node", ["g0", "g1", "g2", "g3"], [["g0", "g1"], ["g2", "g3"]])
PROMISE = json.dumps({"verdict": "guaranteed", "node": "node"})


def mark(revision: int, text: str, source: str) -> list[Entry]:
    """A replica has written its term on its own pod."""
    pod = f"pod-of-{source}"
    return [
        Written(source, "mark", REPLICAS, pod, 200, mark=text),
        Stored(revision, REPLICAS, pod, pod, "control-plane", mark=text),
    ]


def pod(
    name: str,
    bound: int,
    devices: list[str],
    source: str = "a",
    placement: str = PROMISE,
    *,
    linked: bool = True,
    over: int = 0,
) -> list[Entry]:
    """A pod that is created, bound at a revision, admitted, and over at another if not 0."""
    count = len(devices)
    unbound = Stored(bound - 1, "default", name, name)
    there = replace(unbound, revision=bound, node="node", placement=placement)
    found: list[Entry] = [
        Created(1.0, name, name, count, linked),
        unbound,
        Written(source, "bind", "default", name, 201, "node", name, str(bound - 1)),
        Answered(2.0, 1.9, 1, "bind", 200, name, "node"),
        there,
        Given(2.1, "node", name, devices),
    ]
    if over:
        ended = replace(there, revision=over, phase="Succeeded")
        found += [Released(3.0, "node", name), ended]
    return found


GOOD: list[Entry] = [
    NODE,
    *mark(2, "1 a fenced", "a"),
    *pod("pair", 11, ["g0", "g1"], over=20),
    *pod("single", 13, ["g2"], linked=False, placement=""),
    Fault(3.0, "kill: extender-a"),
    *mark(22, "2 b", "b"),
    *mark(23, "2 b fenced", "b"),
    *pod("later", 31, ["g0", "g1"], "b"),
    Created(4.0, "waits", "waits", 2, True),
    Stored(40, "default", "waits", "waits", phase="Pending"),
]


def without(kind: type[Entry], uid: str) -> list[Entry]:
    """The good history without what was noted of a pod."""
    return [e for e in GOOD if not (isinstance(e, kind) and getattr(e, "uid", "") == uid)]


BAD: dict[str, list[Entry]] = {
    "given twice": [*GOOD, *pod("second", 51, ["g2"], "b", linked=False)],
    "overbooked": [*GOOD, *pod("wide", 51, ["g3", "x"], "b", linked=False)],
    "turned away": [
        *(e for e in without(Given, "single") if "waits" not in line_of(e)),
        Refused(2.5, "node", "single", "UnexpectedAdmissionError"),
        Stored(60, "default", "single", "single", "node", "Failed"),
    ],
    "promise broken": [NODE, *mark(2, "1 a", "a"), *pod("pair", 11, ["g1", "g2"])],
    "expectation broken": [
        *(NODE, *mark(2, "1 a", "a")),
        *pod("before", 11, ["g0"], linked=False, over=13),
        *pod("pair", 21, ["g1", "g2"], placement=json.dumps({"verdict": "expected"})),
    ],
    "bound without promise": [
        *(NODE, *mark(2, "1 a", "a")),
        *pod("pair", 11, ["g0", "g1"], placement=json.dumps({"verdict": "not-guaranteed"})),
    ],
    "lost": without(Given, "later"),
    "answered in vain": [*GOOD, Answered(9.0, 8.0, 1, "bind", 200, "waits", "node")],
    "waits though it fits": [
        *GOOD,
        Created(4.0, "small", "small", 1, False),
        Stored(41, "default", "small", "small", phase="Pending"),
    ],
    "bound by deposed": [*GOOD, *pod("late", 51, ["g3"], "a", linked=False)],
}


def test_nothing_is_found_in_a_good_history() -> None:
    story = story_of(GOOD)
    assert findings(story) == []
    assert unattributed(story) == 0
    assert report(story).endswith(f"0 findings by {len(CHECKS)} checks")


def test_every_check_has_its_case() -> None:
    assert {check.__name__.replace("_", " ") for check in CHECKS} == BAD.keys()


@pytest.mark.parametrize("check", BAD)
def test_it_finds(check: str) -> None:
    story = story_of(BAD[check])
    assert {finding.check for finding in findings(story)} == {check}
    assert f"FOUND {check}: " in report(story)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        pytest.param(without(Stored, "later"), "etcd has never had it", id="never stored"),
        pytest.param(
            [*GOOD, replace(Stored(70, "default", "waits", "waits"), gone=True)],
            "nobody has deleted it",
            id="deleted by nobody",
        ),
    ],
)
def test_a_pod_is_lost(entries: list[Entry], words: str) -> None:
    assert any(words in finding.words for finding in findings(story_of(entries)))


def test_an_expectation_may_be_broken_where_the_extender_did_not_know_of_an_end() -> None:
    """The pair is bound in the version of revision 20: up to there it knew."""

    def ended_at(revision: int) -> list[Entry]:
        return [
            replace(e, revision=revision) if isinstance(e, Stored) and e.revision == 13 else e
            for e in BAD["expectation broken"]
        ]

    assert len(findings(story_of(ended_at(20)))) == 1
    assert findings(story_of(ended_at(22))) == []


def test_a_pod_that_we_deleted_is_not_lost() -> None:
    gone = replace(Stored(70, "default", "waits", "waits"), gone=True)
    assert findings(story_of([*GOOD, Removed(5.0, "waits"), gone])) == []


def test_a_leader_may_bind_up_to_the_first_bind_of_the_next() -> None:
    """The later term is marked, but not everything is fenced yet."""
    between = pod("between", 25, ["g3"], "a", linked=False)
    unfenced: list[Entry] = [e for e in GOOD if "2 b fenced" not in line_of(e)]
    assert findings(story_of([*unfenced, *between])) == []
    assert {f.check for f in findings(story_of([*GOOD, *between]))} == {"bound by deposed"}


def test_a_replica_that_never_led_binds_nothing() -> None:
    found = findings(story_of([*GOOD, *pod("odd", 51, ["g3"], "c", linked=False)]))
    assert [(f.check, "never led" in f.words) for f in found] == [("bound by deposed", True)]


def test_a_bind_without_an_answer_belongs_to_the_replica_that_asked() -> None:
    entries: list[Entry] = []
    for entry in GOOD:
        if isinstance(entry, Written) and entry.name == "later":
            entries += [replace(entry, code=0, uid=""), replace(entry, source="a", code=409)]
        else:
            entries.append(entry)
    assert unattributed(story_of(entries)) == 0
    assert findings(story_of(entries)) == []
    twice = [*entries, Written("a", "bind", "default", "later", 0)]
    assert unattributed(story_of(twice)) == 1


def test_what_fits_is_what_is_joined_whichever_are_taken() -> None:
    assert fits(NODE, ["g0", "g1"], 2, linked=True)
    assert not fits(NODE, ["g0", "g1", "g2"], 2, linked=True)
    assert fits(NODE, ["g0", "g1", "g2"], 2, linked=False)
    assert fits(NODE, ["g1"], 1, linked=True)
    assert free_at_end(story_of(GOOD)) == {"node": ["g3"]}


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole: list[Entry] = [*GOOD, *BAD["turned away"], Reported(3, "node", 1, {"pair": ["g0"]})]
    whole.append(Removed(1.0, "pair"))
    assert {type(entry) for entry in whole} == set(KINDS.values())
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.extend(whole)
    assert list(read(recorder.path)) == whole


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(line_of(NODE) + '\n{"entry": "node", "colour": "red"}\n')
    with pytest.raises(HistoryError, match=r"history.jsonl:2: .*colour"):
        list(read(path))


@pytest.mark.parametrize(("entries", "code"), [(GOOD, 0), (BAD["lost"], 1)], ids=["good", "bad"])
def test_the_program_judges_a_file_again(tmp_path: Path, entries: list[Entry], code: int) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        recorder.extend(entries)
    done = _python("-m", "tests.chaos", str(recorder.path))
    assert done.returncode == code, done.stderr
    assert done.stdout.strip() == report(story_of(entries))


def test_it_shares_no_code_with_what_it_judges() -> None:
    program = (
        "import sys, tests.chaos.__main__, tests.chaos.report;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = _python("-c", program)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "tests" in loaded
    assert loaded.isdisjoint({"scheduler_extender", "topology", "benchmarks"})


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=FOREVER,
    )
