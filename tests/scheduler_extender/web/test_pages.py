"""What the pages of the map say, how large they are, and that nothing of strangers gets into them
but as text."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from scheduler_extender.annotations import Malformed
from scheduler_extender.explain.answers import answers_to
from scheduler_extender.explain.explanation import Explanation, explanation_of
from scheduler_extender.explain.gpustates import Flag, NodeState, Use, node_state
from scheduler_extender.framework import equivalence
from scheduler_extender.framework.capacity import Capacities, Capacity
from scheduler_extender.framework.nodedecision import decide
from scheduler_extender.groupreference import Group, GroupReference
from scheduler_extender.state.answers.decision import Decision
from scheduler_extender.state.node.objects import NodeObject
from scheduler_extender.web.drawing import tile, whole
from scheduler_extender.web.examples import EXAMPLES
from scheduler_extender.web.overview import FILTERS, Filters, overview
from scheduler_extender.web.pages import MOST_ASKED, WHAT_IF_SECONDS, Pages
from scheduler_extender.web.waiting import ASKED, UNASKED, outlook_of, waiting_queues
from tests.scheduler_extender.web.cluster import NVLINK, STARTED, Building, large, small
from tests.waiting import eventually
from topology.core.devices import NodeName
from topology.core.memo import forget
from topology.core.placement import Reason

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>&"
NAMESPACE = HOSTILE.replace("/", "")  # a page of a pod is found by what stands before the slash
MOST = 300_000  # bytes of a page
NOW = STARTED + 3 * 3600.0


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


def test_a_cordon_is_shown_on_a_page_that_was_shown_before() -> None:
    made = small()
    pages = Pages(made.cluster)
    assert "cordoned" not in (pages.node("volta-02") or "")
    made.cluster.put_node(NodeName("volta-02"), NodeObject(cordoned=True))
    eventually(lambda: "cordoned" in (pages.node("volta-02") or ""))


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
    assert [(queue.request, len(queue.pods)) for queue in found] == [
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


def heads(text: str) -> set[str]:
    """The words above the columns of a table that can be sorted."""
    return set(re.findall(r'<th scope="col"[^>]*><a [^>]*>([^<]*)', text))


def test_a_column_that_no_pod_fills_is_left_out() -> None:
    assert {"Since (UTC)", "GPUs idle for"} <= heads(page(small(), "pods"))
    made = Building()
    made.pod("bound", 1, made.node("l40s-4", "n"), running=False)
    told = page(made, "pods")
    assert "team-a/bound" in told
    assert heads(told) == {"Pod", "Request", "State", "Node"}


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
        found = pages.waiting(Filters(name=name))
        assert re.findall(r"<li><a [^>]*>team-a/([\w-]+)", found) == there
    train = Filters(name="train-l")
    assert '<a href="/map/pods?name=train-l">1 running pod matches' in pages.waiting(train)
    assert "team-a/train-llm" in pages.pods(train)
    assert "No pod like that waits" in pages.waiting(Filters(name="nobody"))


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
    assert UNASKED not in pages.waiting(Filters(name=f"other-{ASKED + 1}"))


PAGES = ["map", "nodes", "pods", "waiting", "node", "pod", "pod-waiting", "what-if"]


def page(
    made: Building,
    which: str,
    node: str = "dgx-01",
    pods: tuple[str, str] = ("team-a/train-llm", "team-a/wants-0"),
) -> str:
    pages = Pages(made.cluster)
    if which == "map":
        return pages.map(Filters())
    if which == "nodes":
        return pages.nodes(Filters())
    if which == "waiting":
        return pages.waiting()
    if which == "pods":
        return pages.pods()
    if which.startswith("pod"):
        return pages.pod(pods[which == "pod-waiting"])
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
    pod = made.pod(HOSTILE, 1, hostile, namespace=NAMESPACE)
    made.report(hostile, [(pod, (0,))])
    waits = made.pod("waits" + HOSTILE, 8, None, NVLINK, namespace=NAMESPACE)
    made.cluster.put_problem(NodeName("odd" + HOSTILE), HOSTILE)
    text = page(made, which, HOSTILE, (pod.full_name, waits.full_name))
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
        "waiting": lambda: pages.waiting(Filters(name=HOSTILE)),
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
    assert "l40s-99" in pages.map(Filters())
    assert "l40s-99" not in first


WAITS = "team-a/waits-0"


@pytest.mark.parametrize("which", PAGES)
def test_pages_stay_small_over_5000_nodes(which: str, crowd: Building) -> None:
    began = time.monotonic()
    pods = next(pod.full_name for pod in crowd.cluster.snapshot().pods if pod.node), WAITS
    text = page(crowd, which, "node-00000.rack-0.example", pods)
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
    told = pages.what_if(EXAMPLES[name])
    assert 'class="queue answer"' in told
    assert 'class="problem" id="problem"' not in told


def test_a_pod_says_what_it_asks_for_and_has_and_who_else_would_take_it() -> None:
    text = Tags(page(small(), "pod")).text
    assert "Requests 4 GPUs: every two linked by NVLink (link=nvlink)" in text
    assert "on dgx-01" in text
    assert "it got GPUs 0-3, which meet its constraints" in text
    others = text.partition("Other nodes")[2]
    assert "volta-02 guaranteed" in others
    assert "dgx-01" not in others


def test_a_pod_with_other_gpus_than_it_requires_says_so() -> None:
    text = page(small(), "pod", pods=("team-a/wrong", ""))
    fault = re.search(r'<p class="told problem">([^<]*)</p>', text)
    assert fault is not None
    assert "which do not meet link=nvlink" in fault[1]
    assert text.count('class="found"') == 2, "its GPUs are marked in the drawing"


def test_a_waiting_pod_has_the_answer_of_why() -> None:
    made = small()
    why = explanation_of(made.cluster.snapshot(), made.pod("wants-0", 8, None, NVLINK))
    assert isinstance(why, Explanation)
    text = Tags(page(made, "pod-waiting")).text
    for words in (why.headline, why.request_in_words, *(miss.words for miss in why.nearest)):
        assert words in text
    assert why.nearest
    assert all(each.words in text for each in why.helps)


def test_a_pod_whose_annotations_cannot_be_read_has_a_page() -> None:
    made = small()
    made.cluster.put_pod(replace(made.pod("odd", 1), request=Malformed("link: no such level")))
    assert "no node takes it: link: no such level" in page(made, "pod", pods=("team-a/odd", ""))


def test_a_member_says_where_its_gang_is() -> None:
    made = small()
    there = made.node("l40s-4", "l40s-03")
    gang = GroupReference(Group("team-a", "train"), gang=True, size=2)
    for pod in (made.pod("train-0", 1, there), made.pod("train-1", 1)):
        made.cluster.put_pod(replace(pod, group_ref=gang))
    text = Tags(page(made, "pod", pods=("team-a/train-1", ""))).text
    assert "Gang train: 1 of 2 members are placed, on l40s-03" in text


def test_what_a_pod_does_not_use_is_shown_wherever_the_pod_is() -> None:
    made = small()
    assert "<td>2 h</td>" in page(made, "node")
    assert "<td>2 h</td>" in page(made, "pods")
    pod = page(made, "pod", pods=("team-b/notebook-2", ""))
    assert "GPU 5 has been idle for 2 h" in pod
    assert "idle" not in page(made, "pod"), "train-llm uses its GPUs"


@pytest.mark.parametrize(
    ("page", "to"),
    [("node", "team-a/train-llm"), ("pods", "team-a/train-llm"), ("waiting", "team-a/wants-0")],
)
def test_pods_are_links_to_their_pages(page: str, to: str) -> None:
    made = small()
    text = globals()["page"](made, page)
    assert f'<a href="/map/pods/{to}">{to}</a>' in text
    assert Pages(made.cluster).pod(to)


def rows(text: str) -> list[str]:
    return re.findall(r'<tr><th scope="row"><a [^>]*>([^<]*)', text)


def test_tables_are_sorted_by_a_column_both_ways() -> None:
    pages = Pages(small().cluster)
    names = rows(pages.nodes(Filters()))
    assert names == sorted(names)
    assert rows(pages.nodes(Filters(sort="-name"))) == names[::-1]
    assert rows(pages.nodes(Filters(sort="-quads")))[0] == "volta-02"
    assert rows(pages.nodes(Filters(sort="nothing"))) == names
    assert rows(pages.pods())[0] == "team-a/train-llm", "the most GPUs first"
    assert rows(pages.pods(Filters(sort="-idle")))[0] == "team-b/notebook-2"
    assert rows(pages.pods(Filters(sort="node")))[0] == "team-a/serve-1"
    assert rows(pages.pods(Filters(sort="-state")))[:2] == ["team-a/leaves", "team-a/wrong"]


def test_the_pods_of_a_node_are_sorted_by_a_column_both_ways() -> None:
    pages = Pages(small().cluster)
    by_name = rows(pages.node("volta-01", Filters(sort="name")) or "")
    assert len(by_name) > 1
    assert by_name == sorted(by_name)
    text = pages.node("volta-01", Filters(sort="-name")) or ""
    assert rows(text) == by_name[::-1]
    head = 'aria-sort="descending"><a href="/map/nodes/volta-01?sort=name#pods">Pod</a>'
    assert head in text
    assert 'href="/map/nodes/volta-01?sort=-requests#pods"' in text
    assert 'id="pods"' in text


def test_the_table_of_pods_says_which_gpus_each_has() -> None:
    made = small()
    made.cluster.assume(NodeName("l40s-02"), made.pod("assumed", 1))
    text = page(made, "pods")
    lines = dict(zip(rows(text), text.split("<tr>")[2:], strict=True))
    wrong = Tags(lines["team-a/wrong"].partition("</tr>")[0]).text
    assert re.search(r"1,7 \S+ in use \(mismatched\) volta-01", wrong)
    assert "assumed l40s-02" in Tags(lines["team-a/assumed"].partition("</tr>")[0]).text


def test_a_sorted_column_says_so_and_its_link_sorts_the_other_way() -> None:
    pages = Pages(small().cluster)
    text = pages.nodes(Filters(name="volta", sort="-quads"))
    head = '<th scope="col" aria-sort="descending"><a href="/map/nodes?name=volta&amp;sort=quads">'
    assert text.count("aria-sort") == 1
    assert head in text
    assert 'href="/map/nodes?name=volta&amp;sort=-pairs"' in text, "counts begin with the most"
    assert "all nodes" not in pages.nodes(Filters(sort="-quads")), "nothing is left out"


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(name="wants-?"), []),
        (Filters(name="serve-*"), ["team-a/serve-1", "team-a/serve-2", "team-a/serve-3"]),
        (Filters(name="team-?/notebook*"), ["team-b/notebook-2"]),
        (Filters(name="rve-*"), []),
        (Filters(name="VE-2"), ["team-a/serve-2"]),
        (Filters(namespace="team-b"), ["team-b/notebook-2"]),
        (Filters(namespace="team"), []),
        (Filters(namespace="*-b", name="note"), ["team-b/notebook-2"]),
        (Filters(namespace="team-a", name="note"), []),
        (Filters(name="1 GPU", namespace="team-b"), ["team-b/notebook-2"]),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else f"{value.namespace} {value.name}",
)
def test_pods_are_found_by_part_by_glob_and_by_namespace(
    filters: Filters, names: list[str]
) -> None:
    assert rows(Pages(small().cluster).pods(filters)) == names


def test_a_glob_finds_nodes_too_and_a_namespace_the_nodes_of_its_pods() -> None:
    pages = Pages(small().cluster)
    assert rows(pages.nodes(Filters(name="*-02"))) == ["bridge-02", "l40s-02", "volta-02"]
    assert rows(pages.nodes(Filters(namespace="team-b"))) == ["dgx-01"]


@pytest.mark.parametrize(
    ("which", "filters", "near"),
    [
        ("map", Filters(name="volt-01", kind="x"), ["/map?name=volta-01"]),
        ("nodes", Filters(name="volt-01"), ["/map/nodes?name=volta-01"]),
        ("pods", Filters(name="trian-llm"), ["/map/pods?name=train-llm"]),
        ("waiting", Filters(name="want-16"), ["/map/waiting?name=wants-16"]),
        ("pods", Filters(namespace="taem-b"), ["/map/pods?namespace=team-b"]),
        ("pods", Filters(name="qqqq"), []),
    ],
)
def test_similar_names_are_links_where_nothing_is_found(
    which: str, filters: Filters, near: list[str]
) -> None:
    pages = Pages(small().cluster)
    text = getattr(pages, which)(filters)
    links = re.findall(r'<a class="flag" href="([^"]*)', text.partition("Similar names")[2])
    assert set(near) <= set(links)
    assert bool(links) is bool(near)
    for link in links:
        wanted = Filters(**dict(parse_qsl(urlsplit(link).query)))
        assert "Similar names" not in getattr(pages, which)(wanted), "something is found there"


def test_similar_names_of_many_long_ones_cost_little() -> None:
    made = Building()
    for number in range(4000):
        made.pod(f"{'a' * 200}{number:05d}", 1)
    began = time.process_time()
    Pages(made.cluster).pods(Filters(name="a" * 190 + "b"))
    assert time.process_time() - began < 10, "all 4,000 take several times as long"


def test_a_dashboard_is_linked_at_the_time_of_the_page() -> None:
    made = small()
    made.cluster.today = lambda: 7200.0
    assert "Grafana" not in Pages(made.cluster).map(Filters())
    text = Pages(made.cluster, "https://grafana.example/d/gpus?orgId=1&from=now-6h").pods()
    link = "https://grafana.example/d/gpus?orgId=1&amp;from=3600000&amp;to=7200000"
    assert f'href="{link}"' in text
