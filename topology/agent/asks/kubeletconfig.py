"""The kubelet's configuration: from itself over HTTPS (``/configz``), or from its file.

``/configz`` is what really runs, flags and drop-in files included. It takes the right to get
``nodes/configz`` (Kubernetes 1.33 and newer know it). A file is what somebody wrote for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import urllib3
from urllib3.exceptions import HTTPError

from topology import regularfile
from topology.agent.decides.allocation import KubeletFacts, kubelet_facts
from topology.yamltext import documents

TIMEOUT = 5.0
MAX_FILE = 1024 * 1024
"""Bytes of a configuration file."""


class ConfigurationUnseenError(Exception):
    """The kubelet's configuration could not be had; the message says why."""


def from_file(path: Path) -> KubeletFacts:
    """The facts in a KubeletConfiguration file, YAML or JSON.

    Raises :class:`ConfigurationUnseenError`.
    """
    try:
        content = next(iter(documents(regularfile.content(path, MAX_FILE).decode())), None)
    except (OSError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise ConfigurationUnseenError(f"{path}: {cause}"[:300]) from error
    if not isinstance(content, dict) or content.get("kind") != "KubeletConfiguration":
        raise ConfigurationUnseenError(f"{path}: kind: allowed is KubeletConfiguration")
    return kubelet_facts(content)


def from_kubelet(
    address: str, headers: Mapping[str, str], ca_file: str | None, *, insecure: bool = False
) -> KubeletFacts:
    """The facts that the kubelet at ``host:port`` tells of itself.

    Its certificate is checked with ``ca_file`` unless ``insecure``: many clusters let their
    kubelets sign their own. Raises :class:`ConfigurationUnseenError`.
    """
    url = f"https://{address}/configz"
    with urllib3.PoolManager(
        cert_reqs="CERT_NONE" if insecure else "CERT_REQUIRED", ca_certs=ca_file
    ) as pool:
        if insecure:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        try:
            answer = pool.request(
                "GET", url, headers=dict(headers), timeout=TIMEOUT, retries=False, redirect=False
            )
        except (HTTPError, OSError) as error:
            # Without the addresses of objects, which differ from one try to the next.
            cause = re.sub(r"<[^>]* at 0x[0-9a-f]+>:? ?", "", " ".join(str(error).split()))
            raise ConfigurationUnseenError(f"{url}: {cause}"[:300]) from error
    if answer.status != 200:
        raise ConfigurationUnseenError(f"{url}: {answer.status} {answer.reason or ''}".strip())
    try:
        content = json.loads(answer.data)["kubeletconfig"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationUnseenError(f"{url}: not a kubelet's configuration") from error
    if not isinstance(content, dict):
        raise ConfigurationUnseenError(f"{url}: not a kubelet's configuration")
    return kubelet_facts(content)
