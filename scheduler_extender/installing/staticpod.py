"""Edits kubeadm's static pod of kube-scheduler: the flag ``--config`` and the folder that it needs.

The kubelet restarts the pod when the pod's file changes. It does not notice a change of
kube-scheduler's configuration, so the pod has an annotation with a digest of the configuration.
"""

import posixpath
from dataclasses import dataclass
from typing import Any

import yaml

from scheduler_extender.installing import flags
from scheduler_extender.installing.yamledit import END, EditError, Step, document, put, take

PATH = "/etc/kubernetes/manifests/kube-scheduler.yaml"
FOLDER = "/etc/kubernetes/gpu-topology"
CONFIG = f"{FOLDER}/kube-scheduler-config.yaml"
KUBECONFIG = "/etc/kubernetes/scheduler.conf"
VOLUME = "gpu-topology"
DIGEST = "gpu-topology.io/kube-scheduler-config"
PROGRAM = "kube-scheduler"


@dataclass(frozen=True, slots=True)
class StaticPod:
    """The parts of the static pod's file that matter here."""

    text: str
    container: int
    words: dict[str, list[str]]  # the lists ``command`` and ``args`` of the container
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]
    annotations: dict[str, Any]
    user: object  # the user that kube-scheduler runs as; None means root

    def flags(self) -> dict[str, str]:
        """Return the values of kube-scheduler's flags."""
        return flags.read([word for each in self.words.values() for word in each])

    def config(self) -> str | None:
        """Return the path on the host of kube-scheduler's configuration; None without ``--config``.

        Raises :class:`EditError` if the configuration is not on the host.
        """
        inside = self.flags().get("config")
        if inside is None:
            return None
        for mount in sorted(self.mounts, key=lambda each: -len(str(each.get("mountPath")))):
            point, name = str(mount.get("mountPath")).rstrip("/"), mount.get("name")
            if inside == point or inside.startswith(f"{point}/"):
                paths = [each.get("hostPath") for each in self.volumes if each.get("name") == name]
                if paths and isinstance(paths[0], dict) and "path" in paths[0]:
                    steps = (paths[0]["path"], mount.get("subPath", ""), inside[len(point) :])
                    return posixpath.normpath("/".join(map(str, steps)))
        raise EditError(f"--config={inside[:100]} is not in a mounted folder of the host")


def read(text: str) -> StaticPod:
    """Parse the static pod from a text. Raises :class:`EditError`."""
    found = document(text, "Pod")
    spec, metadata = found.get("spec"), found.get("metadata")
    if found.get("kind") != "Pod" or not isinstance(spec, dict) or not isinstance(metadata, dict):
        raise EditError(f"kind: Pod is needed, not {str(found.get('kind'))[:60]!r}")
    containers = _mappings(spec, "containers")
    for number, container in enumerate(containers):
        words = {
            field: [str(word) for word in container.get(field) or []]
            for field in ("command", "args")
            if isinstance(container.get(field), list)
        }
        if container.get("name") == PROGRAM and any(words.values()):
            if "-c" in words.get("command", []) + words.get("args", []):
                raise EditError(
                    f"{PROGRAM}: a shell starts it (-c), so this command cannot add flags to it"
                )
            mounts, volumes = _mappings(container, "volumeMounts"), _mappings(spec, "volumes")
            annotations = metadata.get("annotations")
            noted = annotations if isinstance(annotations, dict) else {}
            secured = [each.get("securityContext") for each in (container, spec)]
            users = [s["runAsUser"] for s in secured if isinstance(s, dict) and "runAsUser" in s]
            return StaticPod(text, number, words, mounts, volumes, noted, (users or [None])[0])
    raise EditError(f"no container is named {PROGRAM} and has a command")


def _mappings(holder: dict[str, Any], field: str) -> list[dict[str, Any]]:
    found = holder.get(field) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise EditError(f"{field}: a list of mappings is needed")
    return found


def with_config(pod: StaticPod, digest: str) -> str:
    """Return the pod's text with the flag and the folder, where missing, and with the digest.

    Raises :class:`EditError` if kube-scheduler does not run as root, or a volume has our name.
    """
    if pod.user:
        raise EditError(
            f"{PROGRAM} runs as user {pod.user}, which cannot read files that root writes here"
        )
    text = pod.text
    at: list[Step] = ["spec", "containers", pod.container]
    if "config" not in pod.flags():
        field = list(pod.words)[-1]
        text = put(text, [*at, field, END], f"--config={CONFIG}")
    if not any(mount.get("mountPath") == FOLDER for mount in pod.mounts):
        if any(volume.get("name") == VOLUME for volume in pod.volumes):
            raise EditError(f"volumes: {VOLUME} is needed for {FOLDER}; rename the existing volume")
        mount = {"mountPath": FOLDER, "name": VOLUME, "readOnly": True}
        volume = {"hostPath": {"path": FOLDER, "type": "Directory"}, "name": VOLUME}
        text = _added(text, [*at, "volumeMounts"], mount, bool(pod.mounts))
        text = _added(text, ["spec", "volumes"], volume, bool(pod.volumes))
    if pod.annotations.get(DIGEST) == digest:
        return text
    quoted = f'"{digest}"'  # YAML would read a digest of digits alone as a number
    if pod.annotations:
        return put(text, ["metadata", "annotations", DIGEST], quoted)
    return put(text, ["metadata", "annotations"], f"{DIGEST}: {quoted}")


def _added(text: str, path: list[Step], item: dict[str, Any], there: bool) -> str:
    lines = str(yaml.safe_dump(item if there else [item]))
    return put(text, [*path, END] if there else path, lines)


def without_config(pod: StaticPod, *, keep_folder: bool) -> str:
    """Return the pod's text without the additions of :func:`with_config`.

    With ``keep_folder`` the flag and the folder stay.
    """
    text = pod.text
    if DIGEST in pod.annotations:
        text = take(text, ["metadata", "annotations", DIGEST])
    if keep_folder:
        return text
    at: list[Step] = ["spec", "containers", pod.container]
    names = [each.get("name") for each in pod.mounts if each.get("mountPath") == FOLDER]
    for number in reversed(range(len(pod.volumes))):
        if pod.volumes[number].get("name") in names:
            text = take(text, ["spec", "volumes", number])
    for number in reversed(range(len(pod.mounts))):
        if pod.mounts[number].get("mountPath") == FOLDER:
            text = take(text, [*at, "volumeMounts", number])
    for field, words in pod.words.items():
        if (flag := f"--config={CONFIG}") in words:
            text = take(text, [*at, field, words.index(flag)])
    return text
