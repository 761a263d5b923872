"""The demo's pods, a typical week of a platform team, drawn at random by a seed."""

import random
from typing import Any

from scheduler_extender.annotations import PREFIX

KINDS: tuple[tuple[int, str, int, dict[str, str]], ...] = (
    # weight, name, GPUs, annotations
    (30, "notebook", 1, {}),
    (8, "infer-l40s", 1, {"gpu-model": "L40S", "min-gpu-memory": "40Gi"}),
    (8, "infer-small", 1, {"gpu-model": "L40S", "gpu-memory": "14Gi"}),
    (8, "batch", 2, {}),
    (22, "finetune", 2, {"link": "nvlink"}),
    (5, "infer-tp2", 2, {"link": "nvlink", "min-gpu-memory": "79Gi", "policy": "preferred"}),
    (12, "train", 4, {"link": "nvlink"}),
    (5, "train-wide", 4, {"min-bandwidth": "200", "gpu-model": "A100*,H100*"}),
    (4, "pretrain", 8, {"shape": "ring", "link": "nvlink", "nic": "node"}),
    (3, "tray", 4, {"gpu-model": "GB200", "min-nvlinks": "18"}),
    (2, "render", 2, {"gpu-model": "L40S", "same-numa": "true"}),
    (1, "legacy", 1, {"gpu-model": "K80*"}),
    (1, "sixteen", 16, {"link": "nvlink"}),
    (1, "typo", 2, {"link": "nvlnk"}),
)
# Kinds whose pods have no controller that recreates them. The other pods belong to a Job or a
# ReplicaSet, so that ``unblock`` may evict them.
BY_HAND = frozenset({"notebook"})


def pods(count: int, seed: int) -> list[dict[str, Any]]:
    """Return ``count`` Pod manifests, which are the same for the same seed.

    Every kind occurs at least once if ``count`` allows.
    """
    rng = random.Random(seed)  # noqa: S311
    kinds = list(KINDS[:count])
    weights = [kind[0] for kind in KINDS]
    kinds += rng.choices(KINDS, weights, k=count - len(kinds))
    rng.shuffle(kinds)
    return [_pod(i, *kind[1:]) for i, kind in enumerate(kinds)]


def _pod(number: int, name: str, gpus: int, annotations: dict[str, str]) -> dict[str, Any]:
    serving = name.startswith("infer")
    api, kind = ("apps/v1", "ReplicaSet") if serving else ("batch/v1", "Job")
    owner = {"apiVersion": api, "kind": kind, "name": name, "uid": name, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{number:03}",
            "namespace": "demo",
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "annotations": {PREFIX + key: value for key, value in annotations.items()},
            **({} if name in BY_HAND else {"ownerReferences": [owner]}),
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "example/work",
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ]
        },
        "status": {"phase": "Pending"},
    }
