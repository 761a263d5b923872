"""The report: one page, complete in itself, in which every figure of the files stands."""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.report import ReportError, colours, page, wording
from benchmarks.report.reading import together
from benchmarks.shipped import sweep as sweeps
from benchmarks.shipped.simulation import Rules
from benchmarks.shipped.sources import Workload
from benchmarks.shipped.speed import Speed
from benchmarks.shipped.sweep import Sweep, spread

POLICIES = ("gpu-topology", "MostAllocated")
CLUSTER = "dgx1-v100=2,l40s-4=1"
NASTY = "<script>alert(1)</script>"
LOADING = {"src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "ping"}
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.sections: list[str] = []
        self.rows: list[list[str]] = []
        self.marks: list[list[str]] = []
        self.sections_of_rows: list[int] = []
        self.styles = ""
        self.text = ""
        self.drawn = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        self.styles += given.get("style", "") + "\n"
        if tag == "section":
            self.sections.append("")
        elif tag == "tr":
            self.rows.append([])
            self.marks.append([])
            self.sections_of_rows.append(len(self.sections) - 1)
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.marks[-1].append(given.get("class", ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> and nothing is open"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles += data
            return
        self.text += data
        if "svg" in self.open:
            self.drawn += data + "\n"
        if "section" in self.open:
            self.sections[-1] += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def outside(self) -> list[str]:
        """Everything that would be loaded from elsewhere, or run."""
        found = [
            f"{tag} {name}={value}"
            for tag, given in self.tags
            for name, value in given.items()
            if (name in LOADING and not value.startswith("#")) or name.startswith("on")
        ]
        found += [tag for tag, _ in self.tags if tag in ("script", "link", "iframe", "base")]
        every = [self.styles, *(value for _, given in self.tags for value in given.values())]
        return found + re.findall(
            r"@import[^;]*|url\((?!#)[^)]*|https?:[^\s\"]*|//\w[^\s\"]*", "\n".join(every)
        )

    def figures_of(self, section: int, policy: str) -> list[str]:
        """The cells of a policy's only row."""
        rows = zip(self.rows, self.sections_of_rows, strict=True)
        found = [row for row, place in rows if place == section and row[:1] == [policy]]
        assert len(found) == 1, found
        return found[0][1:]


def tiny(**changes: Any) -> Sweep:
    given = {
        "clusters": (CLUSTER,),
        "workload": Workload("synthetic", 60),
        "loads": (0.9,),
        "policies": POLICIES,
        "seeds": (1, 2),
    }
    return Sweep(**{**given, **changes})


def played(sweep: Sweep) -> dict[str, Any]:
    """As it comes out of a file."""
    found: dict[str, Any] = json.loads(json.dumps(sweeps.run(sweep, workers=2)))
    return found


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return played(tiny())


@pytest.fixture(scope="module")
def shards() -> list[dict[str, Any]]:
    return [played(tiny(shard=(part, 3))) for part in range(3)]


COMPARED: dict[str, Any] = {
    "benchmark": "compare",
    "parameters": {
        "trace": "openb",
        "workloads": ["default"],
        "policies": ["FGD", "Damage"],
        "seeds": [42],
    },
    "experiments": [],
    "rows": [
        {
            "workload": "default",
            "policy": "FGD",
            "seeds": 1,
            "published": 95.39,
            "ours": 94.5,
            "difference": -0.89,
        },
        {
            "workload": "default",
            "policy": "Damage",
            "seeds": 1,
            "published": None,
            "ours": 94.0,
            "difference": None,
        },
        {
            "workload": "default",
            "policy": "upper bound",
            "published": None,
            "ours": 97.25,
            "difference": None,
        },
    ],
}


def changed(found: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    result = copy.deepcopy(found)
    change(result)
    return result


def rewritten(found: dict[str, Any], policy: str, **figures: object) -> dict[str, Any]:
    """With other figures in every run of a policy."""

    def change(result: dict[str, Any]) -> None:
        for run in result["runs"]:
            if run["policy"] == policy:
                run.update(figures)

    return changed(found, change)


# The page.


def test_every_policy_and_figure_stands_in_its_row(whole: dict[str, Any]) -> None:
    shown = Page(page([whole]))
    for row in whole["rows"]:
        wait = wording.unit(max(r["wait"][0] for r in whole["rows"]))[0]
        completion = wording.unit(max(r["completion"][0] for r in whole["rows"]))[0]
        assert shown.figures_of(0, row["policy"]) == [
            spread(row["kept"], ".1f", 0.01),
            spread(row["hop"], ".1f"),
            spread(row["wait"], ".2f", wait),
            spread(row["wait_asking"], ".2f", wait),
            spread(row["completion"], ".2f", completion),
            spread(row["completion_against_ours"], ".3f"),
            spread(row["completion_several_against_ours"], ".3f"),
            spread(row["allocated"], ".1f"),
            spread(row["fragmented"], ".1f"),
        ]


def test_nothing_is_loaded_from_elsewhere(whole: dict[str, Any]) -> None:
    assert Page(page([whole, COMPARED])).outside() == []


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param('<img src="//a.example/x.png">', id="image"),
        pytest.param('<p><a href="https://a.example">x</a></p>', id="link"),
        pytest.param("<style>@import 'x.css';</style>", id="import"),
        pytest.param('<p style="background:url(x.png)"></p>', id="style"),
        pytest.param("<script>1</script>", id="script"),
        pytest.param('<p onclick="x()"></p>', id="handler"),
    ],
)
def test_the_test_sees_what_is_loaded(bad: str) -> None:
    assert Page(bad).outside()


def test_parts_of_drawings_have_names_of_their_own(whole: dict[str, Any]) -> None:
    text = page([whole, COMPARED])
    shown = Page(text)
    names = [given["id"] for _, given in shown.tags if "id" in given]
    assert len(names) == len(set(names))
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
    assert used
    assert set(used) <= set(names)


def test_every_kind_of_drawing_is_there_once_for_a_case(whole: dict[str, Any]) -> None:
    labels = [given["aria-label"] for _, given in Page(page([whole])).tags if "aria-label" in given]
    titles = [label.partition(".")[0] for label in labels]
    assert titles == [
        "Figures",
        "Promises kept",
        "Completion",
        "Waiting",
        "Weakest hop",
        "Allocation",
        "Fragmentation",
        *(f"GPUs held, {policy}" for policy in POLICIES),
    ]


def test_several_loads_have_panels_of_their_own() -> None:
    found = played(tiny(loads=(0.5, 1.5), seeds=(1,)))
    shown = Page(page([found]))
    labels = [given.get("aria-label", "") for _, given in shown.tags]
    for load in ("load 0.5", "load 1.5"):
        assert sum(label.startswith(f"Allocation, {CLUSTER}, {load}") for label in labels) == 1
    assert any(label.startswith("Against load, Completion") for label in labels)
    assert "In 2 cases" in shown.text


def test_maps_colour_what_is_held(whole: dict[str, Any]) -> None:
    def none_held(result: dict[str, Any]) -> None:
        for run in result["runs"]:
            for moment in run.get("maps", {"moments": []})["moments"]:
                moment["free"] = [255, 255, 15]

    def held(found: dict[str, Any]) -> list[str]:
        strips = re.findall(r'class="plot map".*?</svg>', page([found]), re.DOTALL)
        assert len(strips) == len(POLICIES)
        return [re.findall(r'd="([^"]*)" style', strip)[0] for strip in strips]

    assert all(held(whole))
    assert not any(held(changed(whole, none_held)))


def test_parameters_stand_at_the_end(whole: dict[str, Any]) -> None:
    text = Page(page([whole])).text
    assert wording.simulate(whole["parameters"]) in text
    for name, value in wording.flat(whole["parameters"]):
        assert name in text
        assert value in text


@pytest.mark.parametrize("gang", [True, False])
def test_the_command_is_the_same_sweep(gang: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the program itself reads it."""
    sweep = tiny(
        clusters=(CLUSTER, "l40s-4=1"),
        workload=Workload("synthetic", 50, None, "preferred", 4),
        loads=(None, 0.7),
        adds=("l40s-4=2",),
        rules=Rules("fifo", gang, Speed(0.1, 40.0, 12.5)),
    )
    line = wording.simulate(json.loads(json.dumps(sweeps.parameters(sweep))))
    heard: list[Sweep] = []

    def listen(what: Sweep, **_: object) -> dict[str, Any]:
        heard.append(what)
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeps, "run", listen)
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "benchmarks"]
    CliRunner().invoke(app, words[3:])
    assert [sweeps.parameters(what) for what in heard] == [sweeps.parameters(sweep)]


# Sweeps.


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shards_are_the_sweep(
    order: tuple[int, ...], whole: dict[str, Any], shards: list[dict[str, Any]]
) -> None:
    parts = [shards[place] for place in order]
    (merged,) = together(parts)

    def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k != "cpu_seconds"} for row in rows]

    assert untimed(merged["rows"]) == untimed(whole["rows"])
    assert page(parts) == page([whole])


def test_a_missing_shard_is_said(shards: list[dict[str, Any]]) -> None:
    assert "Only 3 of 4 simulations" in page(shards[:2])
    assert "of 4 simulations" not in page(shards)


def test_a_sweep_of_which_nothing_is_here(whole: dict[str, Any]) -> None:
    empty = {**whole, "runs": [], "rows": []}
    with pytest.raises(ReportError, match="no simulation"):
        page([empty])
    assert page([empty, whole]) == page([whole])


def test_shards_that_contradict_one_another(shards: list[dict[str, Any]]) -> None:
    other = rewritten(shards[0], POLICIES[0], completion=1.0)
    with pytest.raises(ReportError, match="there twice with different figures") as caught:
        page([COMPARED, shards[0], other])
    assert caught.value.files == (1, 2)
    slower = rewritten(shards[0], POLICIES[0], cpu_seconds=1e6)
    assert page([*shards, slower]) == page(shards)


def test_another_sweep_is_another_section(whole: dict[str, Any]) -> None:
    other = played(tiny(policies=("Buddy",), seeds=(1,)))
    shown = Page(page([whole, other]))
    assert len(shown.sections) == 2
    assert shown.figures_of(1, "Buddy")
    assert "Buddy" not in shown.sections[0]
    assert "MostAllocated" not in shown.sections[1]


def test_the_modes_are_never_in_one_section(whole: dict[str, Any]) -> None:
    shown = Page(page([COMPARED, whole, COMPARED]))
    modes = [re.findall(r"Mode: (.*)", text) for text in shown.sections]
    assert modes == [["protocol"], ["as shipped"]]
    assert "Damage" not in shown.sections[1]
    assert "gpu-topology" not in shown.sections[0]


def test_a_comparison_with_other_figures_is_another_section() -> None:
    other = changed(COMPARED, lambda found: found["rows"][0].update(ours=95.5))
    shown = Page(page([COMPARED, other, COMPARED]))
    assert [shown.figures_of(place, "FGD")[1] for place in (0, 1)] == ["94.50", "95.50"]
    assert len(shown.sections) == 2


# Sentences.


def test_worse_is_said_as_plainly_as_better(whole: dict[str, Any]) -> None:
    worse = rewritten(whole, POLICIES[0], kept=0.5, completion=4000.0)
    worse = rewritten(worse, POLICIES[1], kept=0.9, completion=2000.0)
    text = page([worse])
    assert "gpu-topology kept 50.0 % of the promises to the jobs it placed" in text
    assert "of the others, MostAllocated kept most, 90.0 %." in text
    assert "0.500 times as long under MostAllocated, the fastest of the others." in text


def test_what_seeds_cannot_tell_is_said(whole: dict[str, Any]) -> None:
    same = rewritten(whole, POLICIES[0], completion=2000.0)
    same = rewritten(same, POLICIES[1], completion=2000.0)
    assert "no difference that the seeds can tell" in page([same])


def test_jobs_that_were_never_placed_are_counted(whole: dict[str, Any]) -> None:
    assert "never placed" not in page([whole])
    lost = rewritten(whole, POLICIES[1], placed=50)
    shown = Page(page([lost]))
    assert "0 of 120 under gpu-topology and 20 under the others" in shown.text
    assert shown.figures_of(0, POLICIES[1])[-1] == "20"


def test_the_best_of_a_column_is_marked(whole: dict[str, Any]) -> None:
    found = rewritten(whole, POLICIES[0], kept=0.5, hop=80.0, fragmented=3.0)
    found = rewritten(found, POLICIES[1], kept=0.9, hop=80.0, fragmented=2.0)
    shown = Page(page([found]))
    places = {row[0]: place for place, row in enumerate(shown.rows) if row and row[0] in POLICIES}
    marked = {name: ["best" in mark for mark in shown.marks[p]] for name, p in places.items()}
    kept, hop, fragmented = 1, 2, 7
    assert [marked[name][kept] for name in POLICIES] == [False, True]
    assert [marked[name][hop] for name in POLICIES] == [False, False]
    assert [marked[name][fragmented] for name in POLICIES] == [False, True]


def test_a_sweep_without_promises_waiting_or_several_gpus(whole: dict[str, Any]) -> None:
    nothing = dict.fromkeys(
        ("kept", "hop", "hop_least_tenth", "wait", "wait_asking", "completion", "allocated")
    )
    found = whole
    for policy in POLICIES:
        found = rewritten(found, policy, **nothing, waits=[], hops={}, curve=[], fragmented=None)
        found = rewritten(found, policy, placed=0, completion_several=None)
    shown = Page(page([found]))
    assert shown.figures_of(0, "gpu-topology") == ["–"] * 9 + ["120"]


# Comparisons.


def test_published_ours_and_difference() -> None:
    shown = Page(page([COMPARED]))
    assert shown.figures_of(0, "FGD") == ["95.39", "94.50", "\N{MINUS SIGN}0.89"]
    assert shown.figures_of(0, "Damage") == ["–", "94.00", "–"]
    assert shown.figures_of(0, "upper bound") == ["–", "97.25", "–"]
    best = [
        row[0] for row, marks in zip(shown.rows, shown.marks, strict=True) if "best" in str(marks)
    ]
    assert best == ["FGD"]


def test_sentences_of_a_comparison() -> None:
    text = page([COMPARED])
    assert "met within 0.3 points: 0 of 1; the furthest is FGD on default" in text
    assert "differs from the best published policy here by \N{MINUS SIGN}0.50 points" in text
    assert "to the upper bound it is 2.75 points" in text


# Strangers' names.


def test_names_are_escaped_wherever_they_stand(whole: dict[str, Any]) -> None:
    words = json.dumps(whole).replace("dgx1-v100", NASTY).replace("link=nvlink", NASTY)
    words = words.replace("MostAllocated", f"{NASTY}$x_1$\u4e2d").replace("synthetic", NASTY)
    shown = Page(page([json.loads(words)]))
    assert shown.outside() == []
    assert shown.text.count(NASTY) >= 6
    assert "</script>$x_1$\u4e2d" in shown.drawn
    compared = json.loads(json.dumps(COMPARED).replace("default", NASTY).replace("FGD", NASTY))
    assert Page(page([compared])).outside() == []


def test_files_with_bad_names_come_out_escaped(tmp_path: Path) -> None:
    """Through the whole program: a cluster file and a file of jobs with names like that."""
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    cluster, jobs = folder / "script>.yaml", folder / "script>.jsonl"
    cluster.write_text("kind: MachineGroup\nmachine: l40s-4\ncount: 2\nnamePrefix: n-\n")
    lines = [
        json.dumps({"name": NASTY, "arrival": i, "gpus": 2, "annotations": {"gpu-model": "L40S*"}})
        for i in range(8)
    ]
    jobs.write_text("\n".join(lines))
    figures, out = tmp_path / "figures.json", tmp_path / "report.html"
    words = ["simulate", "--cluster", str(cluster), "--jobs", str(jobs), "--seeds", "1"]
    at_once = tmp_path / "at-once.html"
    words += ["--policy", "MostAllocated", "--json", str(figures), "--html", str(at_once)]
    assert (said := CliRunner().invoke(app, words)).exit_code == 0, said.output
    said = CliRunner().invoke(app, ["report", str(figures), "--out", str(out)])
    assert said.exit_code == 0, said.output
    assert out.read_text() == at_once.read_text()
    shown = Page(out.read_text())
    assert shown.outside() == []
    assert str(cluster) in shown.text
    assert str(jobs) in shown.text
    assert "gpu-model=L40S*" in shown.text


# Bad files.


def without(*path: str) -> Callable[[dict[str, Any]], object]:
    def change(found: Any) -> None:
        for name in path[:-1]:
            found = found[0] if isinstance(found, list) else found
            found = found[name]
        found = found[0] if isinstance(found, list) else found
        del found[path[-1]]

    return change


def first_run(**figures: object) -> Callable[[dict[str, Any]], object]:
    return lambda found: found["runs"][0].update(figures)


BAD: list[tuple[str, str | bytes | Callable[[dict[str, Any]], object], str]] = [
    ("empty", "", "not JSON"),
    ("html", "<html>", "not JSON"),
    ("bytes", b"\xff\xfe\x00", "not UTF-8"),
    ("deep", "[" * 100_000, "not JSON"),
    ("list", "[1]", "not an object"),
    ("nothing", "{}", "benchmark is 'None'"),
    ("other", '{"benchmark": "latency", "rows": []}', "benchmark is 'latency'"),
    ("odd", '{"benchmark": ["simulate"]}', "benchmark is"),
    ("mode", lambda found: found.update(mode="protocol"), "mode:"),
    ("no parameters", without("parameters"), "parameters:"),
    ("no runs", without("runs"), "runs:"),
    ("no policy", without("runs", "policy"), "runs.0.policy:"),
    ("no workload", without("parameters", "workload", "source"), "parameters.workload.source:"),
    ("text", first_run(kept="all"), "runs.0.kept:"),
    ("infinite", first_run(wait=float("inf")), "runs.0.wait:"),
    ("negative", first_run(placed=-1), "runs.0.placed:"),
    ("quantiles", first_run(waits=[1.0, 2.0]), "51 quantiles"),
    ("hops", first_run(hops={"<b>": {"5": 1}}), "runs.0.hops"),
    ("curve", first_run(curve=[{"arrived": 1.0}]), "runs.0.curve.0"),
    (
        "masks",
        first_run(maps={"nodes": [["a", 8]], "moments": [{"time": 1.0, "free": []}]}),
        "1 masks are needed",
    ),
]


@pytest.mark.parametrize(("content", "said"), [pytest.param(c, s, id=name) for name, c, s in BAD])
def test_a_bad_file_gives_one_line(
    content: str | bytes | Callable[[dict[str, Any]], object],
    said: str,
    whole: dict[str, Any],
    tmp_path: Path,
) -> None:
    file, out = tmp_path / "bad.json", tmp_path / "report.html"
    if callable(content):
        content = json.dumps(changed(whole, content))
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused([file], out)
    assert str(file) in line
    assert said in line
    assert "allowed are files that simulate --json and compare --json write" in line
    assert not out.exists()


def refused(files: list[Path], out: Path) -> str:
    """The one line that is said."""
    result = CliRunner().invoke(app, ["report", *map(str, files), "--out", str(out)])
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert [line for line in lines if "Traceback" in line] == []
    assert lines[-1].startswith("Error: ")
    assert len([line for line in lines if not re.match("Usage:|Try |$", line)]) == 1, lines
    return lines[-1]


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    assert "No such file" in refused([tmp_path / "none.json"], tmp_path / "report.html")
    assert "Is a directory" in refused([tmp_path], tmp_path / "report.html")


def test_both_files_are_named_where_they_contradict(
    shards: list[dict[str, Any]], tmp_path: Path
) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(shards[0]))
    b.write_text(json.dumps(rewritten(shards[0], POLICIES[0], kept=0.123)))
    line = refused([a, b], tmp_path / "report.html")
    assert f"{a}, {b}: " in line
    assert "allowed are" in line


def test_the_page_never_replaces_its_figures(whole: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(before := json.dumps(whole))
    assert "is one of the files" in refused([file], file)
    assert file.read_text() == before
    assert "--out" in refused([file], tmp_path)


def test_parameters_of_another_version(whole: dict[str, Any]) -> None:
    other = changed(whole, lambda found: found["parameters"]["workload"].update(colour="red"))
    with pytest.raises(ReportError, match="another version"):
        page([other])


# Colours and words.


def test_a_policy_has_the_same_colour_on_every_page() -> None:
    alone, among = colours.Palette(["Buddy"]), colours.Palette(["x.py:A", "FGD", "Buddy"])
    assert alone.paint("Buddy") == among.paint("Buddy")
    assert among.paint("x.py:A") not in {among.paint(name) for name in ("FGD", "Buddy")}
    for declared in (list(among.light()), list(among.dark())):
        assert len({line.partition(":")[0] for line in declared}) == len(declared)
        hues = [line.partition(":")[2] for line in declared]
        usual = ("gpu-topology", "LeastAllocated", "MostAllocated", "Preserve", "Buddy")
        used = {hues[int(among.paint(name)[4:], 16)] for name in usual}
        assert len(used) == len(usual)
