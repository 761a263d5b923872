"""A counterexample made small: fewer steps, fewer containers, fewer words in the node."""

import copy
from collections.abc import Iterator

from tests.differential.histories import History
from tests.differential.managers import Managers
from tests.differential.play import play

TRIES = 3  # Ties fall at random in the real allocator, so a smaller history is tried more than once


def shrunk(history: History, kind: str, managers: Managers) -> History:
    """The smallest history found that still shows a counterexample of this kind."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(history):
            if _shows(candidate, kind, managers):
                history, smaller = candidate, True
                break
    return history


def _shows(history: History, kind: str, managers: Managers) -> bool:
    return any(
        found.kind == kind and not found.unacknowledged
        for _ in range(TRIES)
        for found in play(history, managers).found
    )


def _smaller(history: History) -> Iterator[History]:
    """Histories with one thing less, the largest cuts first."""
    steps = history["steps"]
    for size in (len(steps) // 2, len(steps) // 4, 1):
        for at in range(0, len(steps), size) if size else ():
            yield {**history, "steps": steps[:at] + steps[at + size :]}
    for at, step in enumerate(steps):
        for change in _lighter(step):
            yield {**history, "steps": [*steps[:at], change, *steps[at + 1 :]]}
    node = history["node"]
    if node["cpuManager"]["options"]:
        yield {**history, "node": {**node, "cpuManager": {**node["cpuManager"], "options": {}}}}
    for manager, policy in (("cpuManager", "none"), ("memoryManager", "None")):
        if node[manager]["policy"] != policy:
            lighter = {**node[manager], "policy": policy, "options": {}}
            yield {**history, "node": {**node, manager: lighter}}


def _lighter(step: dict[str, object]) -> Iterator[dict[str, object]]:
    """A bind with fewer containers, an admission in which no pod ends."""
    if step.get("ends"):
        yield {**step, "ends": []}
    pod = step.get("pod")
    if not isinstance(pod, dict):
        return
    if pod.get("init"):
        yield {**step, "pod": {key: value for key, value in pod.items() if key != "init"}}
    if len(pod["containers"]) > 1:
        yield {**step, "pod": {**pod, "containers": pod["containers"][:1]}}
    plain = copy.deepcopy(pod)
    for container in (*plain.get("init", ()), *plain["containers"]):
        for name in ("cpu", "memory"):
            container["limits"].pop(name, None)
    if plain != pod:
        yield {**step, "pod": plain}
