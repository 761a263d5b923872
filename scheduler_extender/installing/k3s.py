"""The flags of k3s' kube-scheduler, from the key ``kube-scheduler-arg`` of k3s' configuration.

k3s reads ``config.yaml``, then the files of ``config.yaml.d`` in the order of their names. The last
value of a key counts; a key that ends in ``+`` adds to the values before it. So a file of our own
can add the flag, and no existing file is edited.
"""

import re
from collections.abc import Mapping
from typing import Any

from scheduler_extender.installing import flags
from scheduler_extender.installing.yamledit import EditError
from topology.yamltext import documents

FILE = "/etc/rancher/k3s/config.yaml"
FILES = f"{FILE}.d"
OURS = f"{FILES}/gpu-topology.yaml"
READ = (".yaml", ".yml")  # the suffixes of the files that k3s reads in that folder
FOLDER = "/etc/rancher/k3s/gpu-topology"
CONFIG = f"{FOLDER}/kube-scheduler-config.yaml"
DATA = "/var/lib/rancher/k3s"
KEY = "kube-scheduler-arg"
SERVICES = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
UNITS = (  # the caller adds the files of the k3s.service.d folder beside each service
    *(f"{folder}/k3s.service{more}" for folder in SERVICES for more in ("", ".env")),
    *("/etc/default/k3s", "/etc/sysconfig/k3s", "/etc/init.d/k3s", "/etc/rancher/k3s/k3s.env"),
)
_SAYS = re.compile(r"\s*(?:ExecStart|command_args|Environment|(?:export\s+)?K3S_\w+)=")
_ELSEWHERE = re.compile(
    r"""(?:^|[\s"']|Environment=)(--kube-scheduler-arg|--config|--data-dir|-c|-d|K3S_CONFIG_FILE"""
    r"""|K3S_DATA_DIR)(?:=|\s)\s*["']?([^\s"']*)"""
)
TEXT = f"""\
# Written by `gpu-topology install k3s`, which also removes it: --remove
{KEY}+:
- config={CONFIG}
"""


def started_with(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the flags of k3s' kube-scheduler, and k3s' own defaults that matter here.

    ``texts`` are the contents of k3s' files by their paths. Raises :class:`EditError`.
    """
    given: dict[str, list[Any]] = {}
    for path in sorted(texts, key=lambda each: (each != FILE, each)):
        try:
            read = [each for each in documents(texts[path]) if each is not None]
        except ValueError as error:
            raise EditError(f"{path}: {error}") from error
        if len(read) > 1 or not all(isinstance(each, dict) for each in read):
            raise EditError(f"{path}: one mapping of flags and values is needed")
        for key, value in (read[0] if read else {}).items():
            name, added = str(key).removesuffix("+"), value if isinstance(value, list) else [value]
            given[name] = [*given.get(name, []), *added] if str(key).endswith("+") else added
    folder = (given.get("data-dir") or [DATA])[-1]
    words = [f"--{str(word).removeprefix('--')}" for word in given.get(KEY, [])]
    own = {"kubeconfig": f"{folder}/server/cred/scheduler.kubeconfig", "profiling": "false"}
    return own | flags.read([word if "=" in word else f"{word}=true" for word in words])


def check_unit(path: str, text: str) -> None:
    """Refuse a service file that passes to k3s settings that we read only from k3s' own files.

    Raises :class:`EditError`.
    """
    for line in filter(_SAYS.match, text.replace("\\\n", " ").splitlines()):
        for name, value in _ELSEWHERE.findall(line):
            if value not in (FILE, DATA):
                said = f"this command reads and writes only {FILE}; move the setting there"
                raise EditError(f"{path}: {name}: {said}")
