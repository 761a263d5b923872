"""The generated parts of docs/reference/annotations.md: the keys, their values, and examples.

The keys, their order and their defaults come from :data:`scheduler_extender.annotations.KEYS` and
:mod:`scheduler_extender.groupreference`. The allowed values are taken from the extender's answer to
a value that it cannot read. Each key has an example, and the result of the example is the
extender's own answer for machines of the catalogue. Only the meaning of a key is written here, in
:data:`ENTRIES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from manifests.reference import pages
from scheduler_extender.annotations import KEYS, PREFIX, Malformed
from scheduler_extender.explain.answers import Answer, answers_to
from scheduler_extender.files import clusterfile
from scheduler_extender.groupreference import group_ref_of
from scheduler_extender.quantities import BadValueError
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.record import requesting_record
from topology.core.placement import Verdict
from topology.core.requests import Constraints, Policy

UNREADABLE = "\N{REPLACEMENT CHARACTER}"  # a value that no key takes
GPU = "nvidia.com/gpu"
# A key about groups needs these keys, too.
GROUP = {"group": "train", "group-size": "2", "group-domain": "node"}


@dataclass(frozen=True, slots=True)
class On:
    """A machine of the catalogue, its description, and further fields of a cluster file's group."""

    machine: str
    words: str
    given: Mapping[str, Any] = field(default_factory=dict)
    count: int = 1


PAIRS = On("a100-pcie-4-bridged", "four A100 bridged in pairs")
CUBE = On("dgx1-v100", "a DGX-1V")
SWITCH = On("hgx-h100-8", "an HGX H100")
PLAIN = On("l40s-4", "four L40S")
SHARES = {"replicas": 4, "failRequestsGreaterThanOne": False}
SHARED = On("l40s-4", "four L40S, each shared by four pods", {"sharing": SHARES})
ONE_SOCKET = On("rtxpro6000-4", "four RTX PRO 6000 on one socket")
ONE_SHARED = On("t4-1", "one T4, shared by four pods", {"sharing": SHARES})
MIXED_MIG = {"strategy": "mixed", "profiles": ["3g.40gb", "2g.20gb", "2g.20gb"]}
CUT = On("dgx-a100-80", "eight A100, each cut so", {"mig": MIXED_MIG})
ONLY_FIRST = {**MIXED_MIG, "gpus": [0]}
ONE_CUT = On(
    "a100-pcie-4-bridged", "four A100, the first cut into three MIG instances", {"mig": ONLY_FIRST}
)
TRAYS = On("gb200-tray", "two trays of one NVL72 rack", count=2)
TWO_PLAIN = On("l40s-4", "two nodes of four L40S", count=2)


@dataclass(frozen=True, slots=True)
class Entry:
    """The meaning of a key, an example pod with it, and two machines that answer for this pod."""

    means: str
    example: str
    asked: tuple[On, On]
    count: int = 2
    resource: str = GPU
    beside: Mapping[str, str] = field(default_factory=dict)


# The entries by key, one for every key that the extender reads.
ENTRIES: Mapping[str, Entry] = {
    "link": Entry(
        "Every two GPUs are joined at least this closely: `nvlink`; `pix`, one PCIe switch; "
        "`pxb`, several PCIe switches; `phb`, one host bridge; `node`, one NUMA node. It does "
        "not join the pods of a [group](../concepts/groups.md).",
        "nvlink",
        (PAIRS, PLAIN),
    ),
    "min-nvlinks": Entry(
        "Every two GPUs have at least this many NVLinks. Through an NVSwitch all links of a "
        "GPU count.",
        "2",
        (CUBE, PLAIN),
    ),
    "shape": Entry(
        "The pairs that `link` or `min-nvlinks` concern. `pairwise`: all; `ring`: neighbours "
        "in one ring through all GPUs; `connected`: enough to reach every GPU. Alone it is "
        "ignored.",
        "ring",
        (CUBE, PAIRS),
        count=4,
        beside={"link": "nvlink"},
    ),
    "min-bandwidth": Entry(
        "In the best ring through all GPUs, the weakest hop has at least this bandwidth, both "
        "directions together.",
        "100",
        (SWITCH, PLAIN),
        count=4,
    ),
    "min-gpu-memory": Entry(
        'The total memory of each GPU. It reserves nothing: use `gpu-memory`. An "80 GB" H100 '
        "has 81,559 MiB: write 79Gi. Of a [shared GPU](../concepts/sharing.md) the share "
        "counts; beside `gpu-memory` or `sharing: exclusive`, the whole GPU.",
        "79Gi",
        (SWITCH, PLAIN),
        count=1,
    ),
    "gpu-model": Entry(
        "Each GPU is one of these models. `H100` matches products with this word, `A100-SXM4` "
        "those with these two in a row. `*` and `?` make a pattern for the whole name. Case, "
        "a leading NVIDIA or Tesla, spaces and dashes do not matter.",
        "A100,H100",
        (PAIRS, PLAIN),
        count=1,
    ),
    "same-numa": Entry("All GPUs are on one NUMA node.", "true", (ONE_SOCKET, PLAIN), count=4),
    "nic": Entry(
        "Each GPU has an RDMA NIC at least this close. The levels are those of `link`.",
        "pxb",
        (SWITCH, On("rtx4090-8", "eight RTX 4090 without an RDMA NIC")),
    ),
    "same-gpu": Entry(
        "All [MIG instances](../tasks/mig.md) or [shares](../concepts/sharing.md) of the pod "
        "are on one GPU.",
        "true",
        (ONE_CUT, CUT),
        resource="nvidia.com/mig-2g.20gb",
    ),
    "spread-gpus": Entry(
        "No two MIG instances or shares of the pod are on one GPU. It excludes `same-gpu`.",
        "true",
        (SHARED, ONE_SHARED),
    ),
    "gpu-memory": Entry(
        "The memory that the pod uses on each GPU. A [shared GPU](../concepts/sharing.md) "
        "must have it left, any other GPU in total.",
        "20Gi",
        (SHARED, On("t4-4", "four T4")),
        count=1,
    ),
    "sharing": Entry(
        "`exclusive`: the pod gets all [shares](../concepts/sharing.md) of its GPUs.",
        "exclusive",
        (PLAIN, SHARED),
        count=1,
    ),
    "policy": Entry(
        "`required`: a node that cannot promise the constraints is rejected. `preferred`: it "
        "scores lower.",
        "preferred",
        (PAIRS, PLAIN),
        beside={"link": "nvlink"},
    ),
    "group": Entry(
        "The name of the pod's [group](../concepts/groups.md). Omit it if a Job, JobSet, "
        "LeaderWorkerSet, PodGroup or Kueue names the group.",
        "train",
        (SWITCH, TWO_PLAIN),
        count=4,
        beside=GROUP,
    ),
    "group-size": Entry(
        "The number of pods in the group. The first pod is placed only if all have room.",
        "2",
        (SWITCH, TWO_PLAIN),
        count=4,
        beside=GROUP,
    ),
    "group-domain": Entry(
        "What the pods share: one node, one NVLink rack, or the value of this node label. "
        "Required with `group` and `group-size`, except in a gang.",
        "nvlink-domain",
        (TRAYS, TWO_PLAIN),
        count=4,
        beside=GROUP,
    ),
}


def allowed(key: str) -> str:
    """Return the allowed values of a key, in the extender's words when it refuses another value."""
    if key in KEYS:
        try:
            KEYS[key][1](UNREADABLE)
        except BadValueError as error:
            return str(error).removeprefix("allowed are ")
    else:
        try:
            group_ref_of(_pod(key, {**GROUP, key: UNREADABLE}))
        except BadValueError as error:
            return str(error).partition("allowed are ")[2]
    raise ValueError(f"{key} takes everything")


def absent(key: str) -> str:
    """Return the value that counts if a pod lacks a key, or a dash if there is none."""
    if key not in KEYS:
        return "–"
    name, read = KEYS[key]
    defaults = {f.name: f.default for f in fields(Constraints)} | {"policy": Policy.REQUIRED}
    default = defaults[name]
    for word in allowed(key).split(", "):
        try:
            if read(word) == default:
                return word
        except BadValueError:
            break  # a sentence instead of a list of words: an absent key sets no constraint
    return "–"


def table() -> str:
    """Return a table with a row for each key: its allowed values, and its default."""
    rows = ((f"[{key}](#{key})", allowed(key), absent(key)) for key in ENTRIES)
    return pages.table(("key", "allowed values", "default"), rows)


def examples() -> str:
    """Return a section for each key: its meaning, and the answers of machines to an example pod.

    If several keys have the same example, only the last one shows it.
    """
    keys = list(ENTRIES)
    shown = {"\n".join(_example(key)): key for key in keys}
    sections = (
        [
            f"### {key}",
            "",
            ENTRIES[key].means,
            "",
            *(_example(key) if key in shown.values() else ()),
        ]
        for key in keys
    )
    return "\n".join(line for section in sections for line in section).rstrip()


def _example(key: str) -> Iterator[str]:
    entry = ENTRIES[key]
    named = [f"`{name}: {_written(value)}`" for name, value in _annotations(key).items()]
    devices = "1 GPU" if entry.count == 1 else f"{entry.count} GPUs"
    if entry.resource != GPU:
        devices = f"{entry.count} `{entry.resource}`"
    told = (f"{re.split('[,.]', answer(key, on))[0]} on {on.words}" for on in entry.asked)
    yield f"{', '.join([*named, devices])}: {'; '.join(told)}."
    yield ""


def answer(key: str, on: On) -> str:
    """Return the answer of an empty cluster of these machines to the example of a key."""
    group = {"kind": "MachineGroup", "machine": on.machine, "count": on.count, "namePrefix": "n-"}
    content = clusterfile.parse(yaml.safe_dump({**group, **on.given}))
    cluster = Cache(lambda: 0.0, Settings(Verdict.EXPECTED, None, all_pods_known=False))
    clusterfile.feed(cluster, content)
    pod = requesting_record(_pod(key, _annotations(key)), cluster.settings.managed)
    if pod is None or isinstance(pod.request, Malformed):
        raise ValueError(f"the example of {key} is no request: {pod}")
    (first, *others) = answers_to(cluster.snapshot(), pod)
    if any(_said(first) != _said(other) for other in others):
        raise ValueError(f"the example of {key}: equal nodes answer differently")
    return _said(first)


def _said(found: Answer) -> str:
    if found.message:
        return f'rejected, "{found.message}".'
    if found.promises:
        return "guaranteed."
    return f'placed without a promise, "{found.doubt.message}".' if found.doubt else "placed."


def _annotations(key: str) -> dict[str, str]:
    entry = ENTRIES[key]
    return {**entry.beside, key: entry.example}


def _written(value: str) -> str:
    """Return a value quoted so that YAML reads it as a text."""
    text = str(yaml.safe_dump(value)).removesuffix("...\n").strip()
    return text.replace("'", '"')


def _pod(key: str, annotations: Mapping[str, str]) -> Any:
    entry = ENTRIES[key]
    limits = {entry.resource: str(entry.count)}
    return clusterfile.read_pod(
        {
            "metadata": {
                "name": "example",
                "uid": "example",
                "annotations": {PREFIX + name: value for name, value in annotations.items()},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
    )


PARTS = (table, examples)  # the generated parts of the page, in their order
