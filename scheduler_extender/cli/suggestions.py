"""What somebody may have meant by a name that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

MOST_COMPARED = 10_000  # names; of more the rest is not looked at


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error: the known names that are like it, or nothing.

    >>> did_you_mean("train-1", ["train-01", "serve-1", "web"])
    ': did you mean train-01?'
    >>> did_you_mean("other", ["web"])
    ''
    """
    close = get_close_matches(name, list(islice(known, MOST_COMPARED)), cutoff=0.75)
    return f": did you mean {', '.join(close)}?" if close else ""


def pod_meant(namespace: str, name: str, known: Iterable[tuple[str, str]]) -> str:
    """The same for a pod; ``known`` are namespaces and names. A pod of this very name in another
    namespace comes before those with a name like it in this one."""
    pods = list(known)
    elsewhere = sorted(f"{where}/{name}" for where, called in pods if called == name)
    if elsewhere:
        return f": did you mean {', '.join(elsewhere[:3])}?"
    whole = (f"{where}/{called}" for where, called in pods)
    here = did_you_mean(name, (called for where, called in pods if where == namespace))
    return here or did_you_mean(f"{namespace}/{name}", whole)
