"""kube-scheduler's flags, and the settings of a configuration that replace them.

With ``--config`` kube-scheduler silently ignores its deprecated flags (its ``ApplyDeprecated``), so
``--profiling=false`` would be lost. It still reads the flags of leader election and serving.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from scheduler_extender.installing.yamledit import EditError, Step

_TRUTHS = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}


def _truth(text: str) -> bool:
    return _TRUTHS[text.lower()]


_IN_PLACE: dict[str, tuple[list[Step], Callable[[str], object]]] = {
    "kubeconfig": (["clientConnection", "kubeconfig"], str),
    "kube-api-content-type": (["clientConnection", "contentType"], str),
    "kube-api-qps": (["clientConnection", "qps"], float),
    "kube-api-burst": (["clientConnection", "burst"], int),
    "profiling": (["enableProfiling"], _truth),
    "contention-profiling": (["enableContentionProfiling"], _truth),
}
Settings = Sequence[tuple[list[Step], object]]  # paths in a configuration, each with its new value


def read(words: Sequence[str]) -> dict[str, str]:
    """Return the value of each flag. If a flag occurs several times, its last value counts.

    >>> read(["kube-scheduler", "--v", "2", "--profiling", "--config=/a", "--v=3"])
    {'v': '3', 'profiling': 'true', 'config': '/a'}
    """
    found = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            name = name[2:].replace("_", "-")
            switch = _IN_PLACE.get(name, ([], str))[1] is _truth
            found[name] = value if equals else "true" if switch else following
    return found


def settings(flags: Mapping[str, str]) -> Settings:
    """Return the settings that replace these flags in a configuration.

    Raises :class:`EditError` if a flag's value is invalid.
    """
    found = []
    for name, (path, meaning) in _IN_PLACE.items():
        if name in flags:
            try:
                found.append((path, meaning(flags[name])))
            except (ValueError, LookupError) as error:
                kinds = {float: "a number", int: "a whole number"}
                said = kinds.get(meaning, "true or false")  # type: ignore[call-overload]
                raise EditError(f"--{name}: {said} is needed, not {flags[name][:60]!r}") from error
    return found
