"""What the pages of the map say, how large they are, and that nothing of strangers gets into them
but as text."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.gpustates import Flag, NodeState, Use, node_state
from scheduler_extender.framework import equivalence
from scheduler_extender.framework.capacity import Capacities, Capacity
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.web.drawing import tile, whole
from scheduler_extender.web.examples import EXAMPLES
from scheduler_extender.web.overview import FILTERS, Filters, overview
from scheduler_extender.web.pages import MOST_ASKED, WHAT_IF_SECONDS, Pages
from scheduler_extender.web.waiting import ASKED, UNASKED, outlook_of, waiting_queues
from tests.scheduler_extender.web.cluster import NVLINK, STARTED, Building, large, small
from topology.core.devices import NodeName
from topology.core.memo import forget
from topology.core.placement import Reason

MOST = 300_000  # bytes of a page
NOW = STARTED + 3 * 3600.0
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>&"


class Tags(HTMLParser):
    """The tags and attributes of a page, its text, and the ones that are open at its end."""

    VOID = frozenset({"meta", "link", "input", "br", "circle", "rect", "path"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def state(made: Building, name: str) -> NodeState:
    return node_state(made.cluster.node_info(NodeName(name)))


def uses(made: Building, name: str) -> str:
    return " ".join(gpu.use.value for gpu in state(made, name).gpus)


def test_a_gpu_stands_as_its_pod_does() -> None:
    made = small()
    assert uses(made, "dgx-01") == "in-use-as-asked " * 4 + "free in-use free sick"
    assert uses(made, "volta-01").split()[0:2] == ["in-use-as-asked", "in-use-mismatched"]
    assert uses(made, "l40s-01") == "terminating terminating free free"


def test_a_pod_on_its_way_is_reported_and_holds_no_gpu_yet() -> None:
    found = state(small(), "l40s-02")
    assert found.coming == 2
    assert found.uses == Counter({Use.FREE: 2, Use.ASSUMED: 2})
    assert {gpu.use for gpu in found.gpus} == {Use.FREE}, "which ones, the kubelet decides"
    assert Flag.COMING in found.flags


def test_a_running_pod_that_no_report_shows_is_reported_too() -> None:
    made = small()
    made.pod("runs", 1, made.node("l40s-4", "l40s-03"))
    assert state(made, "l40s-03").coming == 1


def test_a_record_that_cannot_be_used_is_reported() -> None:
    found = state(small(), "odd")
    assert found.flags == {Flag.UNUSABLE}
    assert found.problems == ("spec.devices: field required",)


def capacity(made: Building, name: str) -> Capacity:
    return Capacities(made.cluster.settings).of(made.cluster.node_info(NodeName(name)))


def test_gpus_of_assumed_pods_are_promised_to_no_other_pod() -> None:
    made = Building()
    node = made.node("dgx-a100", "a")
    before = capacity(made, "a")
    made.pod("comes", 6, node, NVLINK, running=False)
    after = capacity(made, "a")
    assert before == Capacity(4, 2, 1)
    assert after == Capacity(1, 0, 0)


def test_a_cordoned_node_promises_nothing() -> None:
    made = small()
    made.cluster.put_node(NodeName("volta-02"), NodeObject(cordoned=True))
    assert capacity(made, "volta-02") == Capacity()


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(use="in-use-mismatched"), {"volta-01"}),
        (Filters(use="sick"), {"dgx-01"}),
        (Filters(flag=Flag.UNUSABLE.value), {"odd"}),
        (Filters(name="BRIDGE-02"), {"bridge-02"}),
        (Filters(name="notebook"), {"dgx-01"}),
        (Filters(use="nonsense"), set()),
    ],
    ids=str,
)
def test_filters_let_through_what_they_name(filters: Filters, names: set[str]) -> None:
    made = small()
    nodes = [node_state(info) for info in made.cluster.snapshot().nodes]
    found = overview(nodes, filters)
    assert {n for s in found.sections for tile in s.tiles for n in tile.nodes} == names
    assert (found.seen.nodes, found.total) == (len(names), 9)


def test_every_node_is_in_a_drawing_or_counted_as_left_out() -> None:
    made = large(600)
    nodes = [node_state(info) for info in made.cluster.snapshot().nodes]
    found = overview(nodes, Filters())
    for section in found.sections:
        assert sum(tile.many for tile in section.tiles) + section.unseen == section.totals.nodes
        assert section.totals.gpus == sum(len(n.gpus) for n in nodes if n.kind == section.kind)
    assert sum(section.totals.nodes for section in found.sections) == 600
    named = [n for s in found.sections for tile in s.tiles for n in tile.nodes]
    assert len(named) == len(set(named))


def test_waiting_pods_that_ask_the_same_stand_together_with_their_reasons() -> None:
    found, left_out = waiting_queues(small().cluster.snapshot())
    assert left_out == 0
    assert [(queue.asks, len(queue.pods)) for queue in found] == [
        ("8 GPUs link=nvlink", 3),
        ("16 GPUs", 1),
    ]
    outlook = found[0].outlook
    assert outlook is not None
    assert sum(map(int, re.findall(r"\((\d+) nodes?\)", outlook.words))) + outlook.taken_by == 9
    assert not outlook.reasons


def test_only_reasons_missing_from_the_headline_are_listed() -> None:
    snapshot = small().cluster.snapshot()
    pod = next(pod for pod in snapshot.pods if pod.name == "wants-0")
    answers = [html for html in answers_to(snapshot, pod) if html.reason is Reason.LINKS]
    why = answers[0].decision.rejection
    assert why is not None
    other = replace(why, message="another reason of the kind")
    decision = replace(answers[0].decision, rejection=other)
    answers[0] = replace(answers[0], decision=decision)
    outlook = outlook_of(snapshot, pod, answers, "")
    assert outlook.words == f"no node takes it: {len(answers)} nodes lack links"
    assert dict(outlook.reasons) == {other.message: 1, why.message: len(answers) - 1}


@pytest.mark.parametrize("draw", [tile, whole])
def test_the_number_of_a_gpu_that_is_held_in_part_can_be_read(draw: Callable[..., str]) -> None:
    node = state(small(), "bridge-01")
    used = next(gpu for gpu in node.gpus if gpu.use is Use.IN_USE)
    texts = [
        Tags(draw(replace(node, gpus=(replace(used, in_use=n, devices=4),) * 4))).seen
        for n in (1, 4)
    ]
    seen = [{of["class"] for tag, of in tags if tag == "text"} - {"numa"} for tags in texts]
    assert seen == [{"free"}, {"in-use"}]


def test_a_column_that_no_pod_fills_is_left_out() -> None:
    assert "Since (UTC)" in page(small(), "waiting")
    made = Building()
    made.pod("bound", 1, made.node("l40s-4", "n"), running=False)
    html = page(made, "waiting")
    assert "team-a/bound" in html
    assert "Since (UTC)" not in html


def test_the_summary_counts_nodes_in_words() -> None:
    assert "1 node: no usable record" in page(small(), "map")


@pytest.mark.parametrize("made", [small(), large(9)], ids=["small", "large"])
def test_every_queue_names_the_nearest_misses_of_why(made: Building) -> None:
    found, _ = waiting_queues(made.cluster.snapshot())
    waiting = {f"{pod.namespace}/{pod.name}": pod for pod in made.cluster.snapshot().unbound}
    seen = made.cluster.snapshot()
    html = helped = 0
    for queue in found:
        assert queue.outlook is not None
        why = explanation_of(seen, waiting[queue.pods[0][0]])
        assert isinstance(why, Explanation)
        html += len(queue.outlook.misses)
        assert list(queue.outlook.helps) == why.helps
        helped += len(queue.outlook.helps)
        assert [(miss.node, miss.words) for miss in queue.outlook.misses] == [
            (miss.node, miss.words) for miss in why.nearest
        ]
    assert html
    assert helped


def test_each_waiting_pod_can_be_looked_for_and_says_how_long_it_waits() -> None:
    made = small()
    for number in range(60):
        made.pod(f"crowd-{number:02d}", 3, None, NVLINK)
    made.cluster.put_pod(replace(made.pod("new", 5, None), created=None))
    text = Pages(made.cluster).waiting()
    assert all(f"team-a/crowd-{number:02d}" in text for number in range(60))
    assert "and 48 more" in text
    assert re.search(r"60 pods, the longest\s+for \d+ d", text)
    assert re.search(r"1 pod</span>\s", text), "nobody knows for how long"
    pages = Pages(made.cluster)
    for name, there in (("crowd-07", ["crowd-07"]), ("16 GPUs", ["wants-16"]), ("nobody", [])):
        found = pages.waiting(name)
        assert re.findall(r"<li>team-a/([\w-]+)", found.partition('id="running"')[0]) == there
    assert "team-a/train-llm" in pages.waiting("train-l").partition('id="running"')[2]
    assert "No pod like that waits" in pages.waiting("nobody")


@pytest.mark.parametrize(
    ("gated", "words"),
    [([0], "hold back 1 of them"), ([0, 1, 2], "hold back all of them"), ([], None)],
    ids=str,
)
def test_pods_with_scheduling_gates_are_reported(gated: list[int], words: str | None) -> None:
    made = small()
    for number in gated:
        pod = made.pod(f"wants-{number}", 8, None, NVLINK)
        made.cluster.put_pod(replace(pod, gated=True))
    text = Tags(page(made, "waiting")).text
    assert (words in text) if words else ("Scheduling gates" not in text)


def test_a_request_beyond_those_that_are_asked_is_answered_when_it_is_looked_for() -> None:
    made = small()
    for number in range(ASKED + 2):
        made.pod(f"other-{number}", number + 1, None, NVLINK)
    pages = Pages(made.cluster)
    assert UNASKED in pages.waiting()
    assert UNASKED not in pages.waiting(f"other-{ASKED + 1}")


PAGES = ["map", "nodes", "waiting", "node", "what-if"]


def page(made: Building, which: str, node: str = "dgx-01") -> str:
    pages = Pages(made.cluster)
    if which == "map":
        return pages.map(Filters())
    if which == "nodes":
        return pages.nodes(Filters())
    if which == "waiting":
        return pages.waiting()
    if which == "node":
        return pages.node(node) or ""
    return pages.what_if(POD)


POD = """\
kind: Pod
metadata: {name: try, annotations: {gpu-topology.io/link: nvlink}}
spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 2}}}]}
"""


@pytest.mark.parametrize("which", PAGES)
def test_pages_are_well_formed_and_have_landmarks(which: str) -> None:
    tags = Tags(page(small(), which))
    assert tags.open == []
    names = [tag for tag, _ in tags.seen]
    assert {"header", "nav", "main", "h1", "title"} <= set(names)
    assert "style" not in names
    assert names.count("h1") == names.count("main") == 1
    for tag, attributes in tags.seen:
        if tag == "svg":
            assert attributes.get("role") == "img"
            assert attributes.get("aria-label")
        assert "style" not in attributes, "the policy forbids it"
        assert not any(name.startswith("on") for name in attributes)


@pytest.mark.parametrize("which", PAGES)
def test_untrusted_names_are_text(which: str) -> None:
    made = Building()
    hostile = replace(made.node("l40s-4", "x"), name=NodeName(HOSTILE))
    pod = made.pod(HOSTILE, 1, hostile, namespace=HOSTILE)
    made.report(hostile, [(pod, (0,))])
    made.pod(HOSTILE, 8, None, NVLINK, namespace=HOSTILE)
    made.cluster.put_problem(NodeName("odd" + HOSTILE), HOSTILE)
    text = page(made, which, HOSTILE)
    assert "alert(1)" in text or which == "what-if"
    tags = Tags(text)
    assert tags.open == []
    assert [a for tag, a in tags.seen if tag == "script"] == [
        {"src": "/map/static/map.js", "defer": None}
    ]
    assert not [tag for tag, _ in tags.seen if tag == "img"]
    assert not [a for _, a in tags.seen if "onerror" in a]


@pytest.mark.parametrize("word", FILTERS)
@pytest.mark.parametrize("which", ["map", "nodes", "waiting"])
def test_what_is_looked_for_is_text(which: str, word: str) -> None:
    pages, filters = Pages(small().cluster), Filters(**{word: HOSTILE})
    made = {
        "map": lambda: pages.map(filters),
        "nodes": lambda: pages.nodes(filters),
        "waiting": lambda: pages.waiting(HOSTILE),
    }
    tags = Tags(made[which]())
    assert tags.open == []
    assert len([tag for tag, _ in tags.seen if tag == "script"]) == 1
    assert not [tag for tag, _ in tags.seen if tag == "img"]
    assert not [a for _, a in tags.seen if "onerror" in a]


def test_a_pod_that_is_asked_about_may_be_hostile_too() -> None:
    pages = Pages(small().cluster)
    for text in (HOSTILE, f"kind: {HOSTILE!r}", POD.replace("try", repr(HOSTILE))):
        tags = Tags(pages.what_if(text))
        assert tags.open == []
        assert len([tag for tag, _ in tags.seen if tag == "script"]) == 1


def test_what_if_says_where_the_pod_would_go() -> None:
    text = Tags(page(small(), "what-if")).text
    assert "try : 2 GPUs link=nvlink" in text or "try: 2 GPUs link=nvlink" in text
    assert "of 9 nodes would take it" in text
    assert "bridge-01" in text


def test_a_question_that_takes_too_long_is_ended_wherever_it_is() -> None:
    """And the nodes have no fault for it; asked again, it goes on from where it was ended."""
    ended = 0
    for looks in range(2, 2_000, 7):  # at the clock, in the seconds that are allowed
        forget()
        made = small()
        seconds = (WHAT_IF_SECONDS * n / looks for n in itertools.count())
        made.cluster.clock = seconds.__next__
        text = Pages(made.cluster).what_if(POD)
        assert made.cluster.faults.count == 0
        if "bridge-01" in text:
            break
        assert "within 10 s" in text
        ended += 1
    else:
        pytest.fail("no question was answered")
    assert ended > 2


def test_no_more_nodes_are_asked_once_a_question_has_taken_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However little of one answer there is left to work out."""
    made, now, asked = small(), [0.0], 0

    def slow(*given: Any, **named: Any) -> Decision:
        nonlocal asked
        asked += 1
        now[0] += WHAT_IF_SECONDS / 2
        return decide(*given, **named)

    monkeypatch.setattr(equivalence, "decide", slow)
    made.cluster.clock = lambda: now[0]
    assert "within 10 s" in Pages(made.cluster).what_if(POD)
    assert asked == 2
    assert made.cluster.faults.count == 0


def test_what_if_has_no_column_without_warnings() -> None:
    pages = Pages(small().cluster)
    assert "Why not promised" not in pages.what_if(POD)
    plain = POD.replace(", annotations: {gpu-topology.io/link: nvlink}", "")
    assert "Why not promised" in pages.what_if(plain.replace("gpu: 2", "gpu: 16"))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("dgx-01", "Can still promise: no linked pair, no linked quad and no whole node"),
        ("bridge-01", "Can still promise: 1 linked pair"),
        ("volta-02", "Can still promise: 4 linked pairs or 2 linked quads or 1 whole node"),
    ],
)
def test_a_node_says_what_it_can_promise_and_no_zeros(node: str, words: str) -> None:
    assert words in Tags(page(small(), "node", node)).text


def test_a_node_says_of_a_pod_with_a_broken_promise_that_it_has_other_gpus() -> None:
    text = Pages(small().cluster).node("volta-01")
    assert text is not None
    rows = [row for row in text.split("<tr>") if "<td>has " in row]
    assert len(rows) == 2
    assert "team-a/pair" in rows[0]
    assert "<td>has its GPUs</td>" in rows[0]
    assert "team-a/wrong" in rows[1]
    assert "<td>has GPUs that do not meet its constraints</td>" in rows[1]


def test_a_page_is_made_anew_when_something_has_changed_and_it_has_rested() -> None:
    made = small()
    calls = itertools.count()
    made.cluster.clock = lambda: float(next(calls))  # a second for each look
    pages = Pages(made.cluster)
    first = pages.map(Filters())
    assert pages.map(Filters()) is first
    made.node("l40s-4", "l40s-99")
    assert pages.map(Filters()) is first, "it rests"
    calls = itertools.count(1000)
    second = pages.map(Filters())
    assert "l40s-99" in second
    assert "l40s-99" not in first


@pytest.mark.parametrize("which", PAGES)
def test_pages_stay_small_over_5000_nodes(which: str, crowd: Building) -> None:
    began = time.monotonic()
    text = page(crowd, which, "node-00000.rack-0.example")
    print(f"{which}: {len(text.encode()):,} bytes in {time.monotonic() - began:.2f} s")
    assert len(text.encode()) <= MOST


@pytest.fixture(scope="module")
def crowd() -> Building:
    return large(5000)


DEPLOYMENT = """\
kind: Deployment
metadata: {name: six}
spec:
  replicas: 6
  template:
    metadata: {annotations: {gpu-topology.io/link: nvlink}}
    spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: 4}}}]}
"""


def test_what_if_says_how_many_copies_fit_at_once() -> None:
    """volta-02 has room for two linked quads, and no other node for one."""
    pages = Pages(small().cluster)
    assert "2 of 6 copies fit at once" in Tags(pages.what_if(DEPLOYMENT)).text
    assert "All 2 copies fit at once" in Tags(pages.what_if(DEPLOYMENT, "2")).text
    assert "fit at once" not in pages.what_if(DEPLOYMENT, "1")
    assert 'value="2"' in pages.what_if(DEPLOYMENT, "2"), "the form stays filled in"


def test_what_if_answers_each_document_up_to_a_number() -> None:
    pages = Pages(small().cluster)
    text = Tags(pages.what_if(f"{POD}---\n{DEPLOYMENT}---\nkind: Service\n")).text
    assert "try: 2 GPUs link=nvlink" in text
    assert "six: 4 GPUs link=nvlink" in text
    many = "---\n".join(POD.replace("try", f"pod-{n}") for n in range(MOST_ASKED + 3))
    html = pages.what_if(many)
    assert html.count('class="queue answer"') == MOST_ASKED
    assert "3 more pods of this text were not evaluated" in html


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_can_be_asked_about(name: str) -> None:
    pages = Pages(small().cluster)
    form = Tags(pages.what_if_form(EXAMPLES[name]))
    assert " ".join(EXAMPLES[name].split()) in form.text
    html = pages.what_if(EXAMPLES[name])
    assert 'class="queue answer"' in html
    assert 'class="problem" id="problem"' not in html
