"""What k3s starts its kube-scheduler with: the key ``kube-scheduler-arg`` of its configuration.

k3s reads ``config.yaml``, then the files of ``config.yaml.d`` by their names. The last value of a
key holds; a key that ends in ``+`` adds to the values before it. So a file of our own adds the
flag, and nobody's file is edited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler_extender.installing.yamledit import EditError
from topology.yamltext import documents

FILE = "/etc/rancher/k3s/config.yaml"
FILES = f"{FILE}.d"
OURS = f"{FILES}/gpu-topology.yaml"
READ = (".yaml", ".yml")  # how the names end of the files that k3s reads there
FOLDER = "/etc/rancher/k3s/gpu-topology"
CONFIG = f"{FOLDER}/kube-scheduler-config.yaml"
KUBECONFIG = "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
KEY = "kube-scheduler-arg"
TEXT = f"""\
# Written by `gpu-topology install k3s`, which also removes it: --remove
{KEY}+:
- config={CONFIG}
"""


def config(texts: Mapping[str, str]) -> str | None:
    """The configuration that k3s' kube-scheduler is started with; None if no file names one.

    ``texts`` are k3s' files by their paths. Raises :class:`EditError`.
    """
    words: list[Any] = []
    for path in sorted(texts, key=lambda each: (each != FILE, each)):
        try:
            read = [each for each in documents(texts[path]) if each is not None]
        except ValueError as error:
            raise EditError(f"{path}: {error}") from error
        if len(read) > 1 or not all(isinstance(each, dict) for each in read):
            raise EditError(f"{path}: one mapping of flags and values is needed")
        for key, value in (read[0] if read else {}).items():
            if str(key).removesuffix("+") == KEY:
                added = value if isinstance(value, list) else [value]
                words = [*words, *added] if str(key).endswith("+") else added
    named = [str(word).removeprefix("--") for word in words]
    return next((w.partition("=")[2] for w in reversed(named) if w.startswith("config=")), None)
