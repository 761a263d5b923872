"""Note what has no effect in a pod file, and what the API server refuses.

Annotations have an effect only on the pod. Those of a Deployment itself, labels, and keys with
another prefix request nothing, and no component of the cluster reports that. So notes report it
here.
"""

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from scheduler_extender.annotations import (
    KEYS,
    MANAGED,
    OURS_TO_WRITE,
    PREFIX,
    UNASKED,
    is_unasked,
)
from scheduler_extender.exclusive import containers_with_roles
from scheduler_extender.files.podtemplates import ARGO, mapping
from scheduler_extender.quantities import cut
from scheduler_extender.wire import Pod, Resources

LIKE_OURS = 0.75  # similarity (0 to 1) from which on a prefix counts as a misspelling of ours


def misplaced_keys(kind: str, pod: Mapping[str, Any], outside: list[object]) -> Iterator[str]:
    """Yield notes on keys in the wrong place.

    They may be on the ``kind`` of object that makes the pod (``outside`` is its metadata), they may
    be labels, or they may be nearly equal to one of our keys.
    """
    for metadata in outside:
        for key in _keys(metadata, "annotations"):
            if key.startswith(PREFIX) or _meant(key):
                of_pods = "spec.podMetadata" if kind in ARGO else "spec…template.metadata"
                yield (
                    f"annotation {key} has no effect on the {kind}; move it to "
                    f"{of_pods}.annotations"
                )
    metadata = pod.get("metadata")
    for key in _keys(metadata, "annotations"):
        meant = _meant(key)
        if meant:
            yield f"annotation {key} has no effect; did you mean {meant}?"
    for holder in (*outside, metadata):
        for key in _keys(holder, "labels"):
            if key.startswith(PREFIX):
                yield f"label {key} has no effect; make it an annotation of the pod"
    for key in _keys(pod, "annotations"):
        if key.startswith(PREFIX):
            yield f"{key} has no effect there; move it to metadata.annotations"


def _keys(holder: object, field: str) -> list[str]:
    keys = mapping(mapping(holder).get(field))
    return sorted(key for key in keys if isinstance(key, str) and len(key) <= 316)


def _meant(key: str) -> str | None:
    """Return our key that the author seems to have meant.

    >>> _meant("gpu-topology.com/link"), _meant("min-nvlinks"), _meant("example.com/link")
    ('gpu-topology.io/link', 'gpu-topology.io/min-nvlinks', None)
    """
    prefix, slash, name = key.rpartition("/")
    ours = PREFIX.rstrip("/")
    word = name.lower()
    if not slash:
        return PREFIX + word if word in KEYS and word not in ("policy", "shape") else None
    if prefix == ours:
        return None
    alike = SequenceMatcher(None, prefix.lower(), ours, autojunk=False).ratio()
    if alike >= LIKE_OURS or (word in KEYS and "gpu" in prefix and "topology" in prefix):
        return PREFIX + (word if word in KEYS else name)
    return None


def notes_on_pod(pod: Pod) -> Iterator[str]:
    """Yield notes on annotations of ours that have no effect, and on amounts that are refused.

    The API server refuses requests of GPUs without equal limits.
    """
    given = pod.metadata.annotations or {}
    if f"{PREFIX}shape" in given and not given.keys() & {f"{PREFIX}link", f"{PREFIX}min-nvlinks"}:
        yield f"annotation {PREFIX}shape has no effect without {PREFIX}link or min-nvlinks"
    for key in sorted(given.keys() & OURS_TO_WRITE) if pod.spec.node_name is None else ():
        yield (
            f"annotation {key} is written by the extender: it has no effect on a pod and is "
            "overwritten"
        )
    if is_unasked(pod, MANAGED):
        yield UNASKED
    for container, _ in containers_with_roles(pod):
        resources = container.resources or Resources()
        limits = resources.limits or {}
        for name, amount in (resources.requests or {}).items():
            if name.startswith("nvidia.com/") and str(limits.get(name, "")) != str(amount):
                yield (
                    f"container {cut(container.name)}: the API server rejects "
                    f"requests.{cut(name)} without an equal number under limits"
                )
