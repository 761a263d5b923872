"""Which GPUs do not answer the driver at this moment, and since when."""

from __future__ import annotations

from dataclasses import replace

from tests.topology.agent.moments import seen_gpu, vital
from topology.agent.decides.missing import MissingBook
from topology.agent.decides.observed import NvmlState, SeenNode
from topology.core.devices import GpuUuid
from topology.core.report import MissingGpu

NOON, LATER, LATEST = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z", "2026-01-01T14:00:00Z"
GONE = [GpuUuid("GPU-2")]


def state(*numbers: int, lost: tuple[int, ...] = (), nameless: tuple[int, ...] = ()) -> NvmlState:
    seen = SeenNode(tuple(seen_gpu(i, n) for i, n in enumerate(numbers)))
    vitals = tuple(replace(vital(n), lost=n in lost) for n in numbers)
    return NvmlState(seen, vitals, 1, "", asked=True, nameless=nameless)


def test_a_gpu_that_does_not_answer_is_missing_until_it_does() -> None:
    book = MissingBook()
    book.look(state(0, 1, 2), (), NOON)
    assert book.report("", ()) == ()
    for now in (LATER, LATEST):
        book.look(state(0, 1, 2, lost=(2,)), (), now)
        assert book.report("", ()) == (MissingGpu("GPU-2", True, LATER),)
    book.look(state(0, 1, 2), (), LATEST)
    assert book.report("", ()) == ()


def test_what_the_driver_counts_without_a_name_is_what_is_gone() -> None:
    book = MissingBook()
    book.look(state(0, 1, nameless=(2,)), GONE, NOON)
    assert book.report("", ()) == (MissingGpu("GPU-2", True, NOON),)
    book.look(state(0, 1), GONE, LATER)
    assert book.report("", ()) == (MissingGpu("GPU-2", False, NOON),)
    book.look(state(0, 1, nameless=(2,)), (), LATER)
    assert book.report("", ()) == (MissingGpu("GPU 2", True, LATER),)


def test_a_plugin_that_started_without_a_gone_gpu_does_not_miss_it() -> None:
    book = MissingBook()
    book.look(state(0, 1), GONE, LATER)
    said = (MissingGpu("GPU-2", False, LATER),)
    assert book.report("", ()) == said
    assert book.report(NOON, ()) == said
    assert book.report(LATER, ()) == said, "nobody knows which came first"
    assert book.report(LATEST, {"GPU-2"}) == said, "the kubelet hands it out still"
    assert book.report(LATEST, {"GPU-0"}) == ()
    book.look(state(0, 1, 2, lost=(2,)), (), LATEST)
    assert book.report("2026-01-01T15:00:00Z", ()) != (), (
        "one that is counted troubles every plugin"
    )


def test_an_agent_that_starts_anew_knows_since_when() -> None:
    book = MissingBook([MissingGpu("GPU-2", True, NOON)])
    book.look(NvmlState(), (), LATER)
    assert book.report("", ()) == (MissingGpu("GPU-2", True, NOON),), "nobody has looked yet"
    book.look(state(0, 1), GONE, LATER)
    assert book.report("", ()) == (MissingGpu("GPU-2", False, NOON),)
