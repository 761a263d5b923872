"""``make chart``: the templates of the Helm chart, made from the kustomize base.

The base says what is installed, once. :data:`PLACES` says where the chart lets its user change
something, and by which value; everything else is taken over as it is, and the base's namespace
becomes the release's. Rendered with its default values into the base's namespace the chart gives
the base's objects again (``tests/e2e/test_chart.py``). Why it is made so: docs/adr/0018.

A place names one field of an object. Its text replaces the field's value, or with ``lines`` the
whole line (or, behind a list, a line that is added to it).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TEMPLATES = HERE / "chart" / "templates"
NAMESPACE = "gpu-topology-system"
RELEASED = "{{ .Release.Namespace }}"
HEAD = "{{- /* Made by `make chart` from %s: change that. */ -}}\n"
FOR_EVER = 600  # seconds after which kubectl is given up

Object = dict[str, Any]
Step = str | int


class ChartError(Exception):
    """The base has something that the chart cannot be made of; the message says what."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the chart differs: a field of an object, by the steps of its path.

    A step is a key, the number of an item, or ``+`` behind the items. ``text`` is the template's.
    ``block`` says that it gives YAML of several lines, which are indented below the key; ``lines``
    that the text takes the place of the whole line. In ``text`` every line break begins a new line
    at the place's indentation, but for lines that hold nothing but template actions.
    """

    kind: str
    name: str
    path: tuple[Step, ...]
    text: str
    block: bool = False
    lines: bool = False


OURS, EXTENDER, AGENT = "gpu-topology", "gpu-topology-extender", "gpu-topology-agent"
POD: tuple[Step, ...] = ("spec", "template", "spec")
CONTAINER: tuple[Step, ...] = (*POD, "containers", 0)


def _when(condition: str, text: str) -> str:
    """The text where a value is true, or not empty."""
    return f"{{{{- if {condition} }}}}\n{text}\n{{{{- end }}}}"


def _each(values: str, text: str) -> str:
    """The text for each of several values; ``.`` in it is the one."""
    return f"{{{{- range {values} }}}}\n{text}\n{{{{- end }}}}"


def _shown(value: str) -> str:
    return f"{{{{ {value} }}}}"


def _lines(*texts: str) -> str:
    return "\n".join(texts)


FURTHER = _shown(". | quote")


def _workload(kind: str, name: str, values: str, image: str) -> Iterator[Place]:
    """What extender and agents have in common; ``image`` names the template of theirs."""
    policy, secrets = ".Values.image.pullPolicy", ".Values.image.pullSecrets"
    yield Place(kind, name, (*CONTAINER, "image"), _shown(f'include "{image}" .'))
    pulling = _when(policy, f"imagePullPolicy: {_shown(policy)}")
    yield Place(kind, name, (*CONTAINER, "imagePullPolicy"), pulling, lines=True)
    yield Place(kind, name, (*CONTAINER, "resources"), f"toYaml {values}.resources", block=True)
    listed = _when(secrets, _lines("imagePullSecrets:", _each(secrets, f"- name: {_shown('.')}")))
    yield Place(kind, name, (*POD, "imagePullSecrets"), listed, lines=True)
    yield Place(kind, name, (*POD, "priorityClassName"), _shown(f"{values}.priorityClassName"))
    yield Place(kind, name, (*POD, "tolerations"), f"toYaml {values}.tolerations", block=True)


def _extender() -> Iterator[Place]:
    where, values = ("Deployment", EXTENDER), ".Values.extender"
    yield from _workload(*where, values, "gpu-topology.image")
    yield Place(*where, ("spec", "replicas"), _shown(f"{values}.replicas"))
    labels = _when(
        f"{values}.nodeSelector", f"nodeSelector: {_shown(f'toJson {values}.nodeSelector')}"
    )
    yield Place(*where, (*POD, "nodeSelector"), labels, lines=True)
    require, refusals = f"{values}.require", f"{values}.refusals"
    flags = _lines(
        _when(f'ne {require} "expected"', f"- --require={_shown(require)}"),
        _when(f'ne {refusals} "certain"', f"- --refusals={_shown(refusals)}"),
        _when(f"{values}.shadow", "- --shadow"),
        _each(f"{values}.extraArgs", f"- {FURTHER}"),
    )
    yield Place(*where, (*CONTAINER, "args", "+"), flags, lines=True)
    # The second scheduler is an ordinary pod, whose packets come from its own address.
    second, addresses = ".Values.scheduler.enabled", f"{values}.schedulerAddresses"
    own = '    matchLabels: {{- include "gpu-topology.schedulerLabels" . | nindent 10 }}'
    sources = _lines(
        "from:",
        _when(second, _lines("- podSelector:", own)),
        _each(addresses, f"- ipBlock: {{cidr: {FURTHER}}}"),
    )
    policy = ("spec", "ingress", 0, "from")
    text = _when(f"or {second} {addresses}", sources)
    yield Place("NetworkPolicy", EXTENDER, policy, text, lines=True)


def _agent() -> Iterator[Place]:
    where, values = ("DaemonSet", AGENT), ".Values.agent"
    yield from _workload(*where, values, "gpu-topology.agentImage")
    labels = f"nodeSelector: {_shown(f'toJson {values}.nodeSelector')}"
    text = _when(f"not {values}.everyNode", labels)
    yield Place(*where, (*POD, "nodeSelector"), text, lines=True)
    runtime = f"{values}.runtimeClassName"
    text = _when(runtime, f"runtimeClassName: {_shown(runtime)}")
    yield Place(*where, (*POD, "runtimeClassName"), text, lines=True)
    text = _when(f"{values}.hostPID", "hostPID: true")
    yield Place(*where, (*POD, "hostPID"), text, lines=True)
    flags = _lines(
        _when(f"{values}.kubeletInsecureTLS", "- --kubelet-insecure-tls"),
        _each(f"{values}.extraArgs", f"- {FURTHER}"),
    )
    yield Place(*where, (*CONTAINER, "args", "+"), flags, lines=True)
    yield from _gpus_of_the_host(where, values)


def _gpus_of_the_host(where: tuple[str, str], values: str) -> Iterator[Place]:
    """Where NVIDIA's runtime gives the agent nothing, or gives it by a mount only."""
    driver, devices = f"{values}.hostDriver.enabled", f"{values}.deviceMounts"
    folder = "/usr/local/nvidia/lib64"
    text = _when(driver, f"- {{name: LD_LIBRARY_PATH, value: {folder}}}")
    yield Place(*where, (*CONTAINER, "env", "+"), text, lines=True)
    rights = _lines(
        f"allowPrivilegeEscalation: {_shown(driver)}", _when(driver, "privileged: true")
    )
    escalation = (*CONTAINER, "securityContext", "allowPrivilegeEscalation")
    yield Place(*where, escalation, rights, lines=True)
    all_gpus = "/var/run/nvidia-container-devices/all"
    mounts = _lines(
        _when(driver, f"- {{name: driver, mountPath: {folder}, readOnly: true}}"),
        _when(devices, f"- {{name: all-gpus, mountPath: {all_gpus}, readOnly: true}}"),
    )
    yield Place(*where, (*CONTAINER, "volumeMounts", "+"), mounts, lines=True)
    path = _shown(f"{values}.hostDriver.path | quote")
    host = f"  hostPath: {{path: {path}, type: Directory}}"
    nothing = "  hostPath: {path: /dev/null, type: CharDevice}"
    volumes = _lines(
        _when(driver, _lines("- name: driver", host)),
        _when(devices, _lines("- name: all-gpus", nothing)),
    )
    yield Place(*where, (*POD, "volumes", "+"), volumes, lines=True)


def _crd() -> Iterator[Place]:
    keep = _when(".Values.crd.keep", _lines("annotations:", "  helm.sh/resource-policy: keep"))
    name = "gputopologies.gpu-topology.io"
    yield Place("CustomResourceDefinition", name, ("metadata", "annotations"), keep, lines=True)


def _scheduler() -> Iterator[Place]:
    where, values = ("KubeSchedulerConfiguration", ""), ".Values.scheduler"
    yield Place(*where, ("profiles", 0, "schedulerName"), _shown(f"{values}.name | quote"))
    # docs/shadow.md: then nothing may hang on the extender.
    shadow = ".Values.extender.shadow"
    entry: tuple[Step, ...] = ("extenders", 0)
    for verb in ("bind", "preempt"):
        text = _when(f"not {shadow}", f"{verb}Verb: {verb}")
        yield Place(*where, (*entry, f"{verb}Verb"), text, lines=True)
    yield Place(*where, (*entry, "ignorable"), _shown(f"default false {shadow}"))
    share = ("percentageOfNodesToScore",)
    yield Place(*where, share, _shown(f"{values}.percentageOfNodesToScore"))


def _monitoring() -> Iterator[Place]:
    values = ".Values.monitoring"
    account = ("ClusterRoleBinding", "gpu-topology-prometheus", ("subjects", 0))
    for field in ("name", "namespace"):
        text = _shown(f"{values}.prometheus.{field} | quote")
        yield Place(*account[:2], (*account[2], field), text)
    further = _lines(
        f"{{{{- range $key, $value := {values}.labels }}}}",
        "{{ $key }}: {{ $value | quote }}",
        "{{- end }}",
    )
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        for name in {"ServiceMonitor": (OURS,), "PodMonitor": (AGENT,)}.get(kind, (OURS, AGENT)):
            yield Place(kind, name, ("metadata", "labels", "further"), further, lines=True)


PLACES = (*_extender(), *_agent(), *_crd(), *_scheduler(), *_monitoring())

# The templates: the kinds of objects in each, and the value without which it is empty.
FILES = {
    "crd.yaml": ({"CustomResourceDefinition"}, ".Values.crd.install"),
    "rbac.yaml": (
        {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"},
        None,
    ),
    "policy.yaml": ({"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}, None),
    "extender.yaml": ({"Deployment", "PodDisruptionBudget", "Service", "NetworkPolicy"}, None),
    "agent.yaml": ({"DaemonSet"}, ".Values.agent.enabled"),
}
# The base's components: the file of their objects, and the value that asks for them.
OPTIONS = {
    "cert-manager": ("certificates.yaml", ".Values.certManager.enabled"),
    "validation": ("policies.yaml", ".Values.validation.enabled"),
}
LEFT_OUT = {"Namespace"}  # Helm makes the release's namespace, or it is there before


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the templates, or with ``--check`` say whether they are as they would be written."""
    parser = argparse.ArgumentParser(description="make the chart's templates from the base")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    only_check = parser.parse_args(arguments).check
    stale = [
        path
        for name, text in templates().items()
        if not (path := TEMPLATES / name).exists() or path.read_text() != text
    ]
    if only_check:
        sys.stderr.writelines(f"{path.name} is out of date: run `make chart`\n" for path in stale)
        return 1 if stale else 0
    for name, text in templates().items():
        (TEMPLATES / name).write_text(text)
    return 0


def templates() -> dict[str, str]:
    """The generated templates: file name and text. Raises :class:`ChartError`."""
    base, unused = kustomized(HERE / "base"), set(PLACES)
    found = {}
    for name, (kinds, condition) in FILES.items():
        objects = [each for each in base if each["kind"] in kinds]
        found[name] = _file("manifests/base", objects, condition, unused)
    if (
        left := {each["kind"] for each in base}
        - LEFT_OUT
        - set().union(*(k for k, _ in FILES.values()))
    ):
        raise ChartError(f"no template takes {', '.join(sorted(left))}")
    for option, (name, value) in OPTIONS.items():
        made = _documents(HERE / "base" / "options" / option / name)
        found[f"{option}.yaml"] = _file(f"manifests/base/options/{option}", made, value, unused)
    watched = kustomized(HERE / "monitoring")
    condition = ".Values.monitoring.enabled"
    found["monitoring.yaml"] = _file(
        "manifests/monitoring", watched, condition, unused, foreign=True
    )
    found["_schedulerconfig.tpl"] = _scheduler_configuration(unused)
    if unused:
        named = sorted(f"{p.kind} with {'.'.join(map(str, p.path))}" for p in unused)
        raise ChartError(f"the base has no {', no '.join(named)}")
    return found


def kustomized(folder: Path) -> list[Object]:
    """The objects that ``kubectl apply -k`` would send for a folder."""
    kubectl = Path(sys.executable).with_name("kubectl")
    done = subprocess.run(  # noqa: S603 (our own folder)
        [str(kubectl), "kustomize", str(folder)], capture_output=True, text=True, timeout=FOR_EVER
    )
    if done.returncode != 0:
        raise ChartError(f"kubectl kustomize {folder.name}: {done.stderr.strip()}")
    return list(yaml.safe_load_all(done.stdout))


def _documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def _file(
    source: str,
    objects: list[Object],
    condition: str | None,
    unused: set[Place],
    *,
    foreign: bool = False,
) -> str:
    """One template with these objects. ``foreign`` templates in them are Prometheus' and Grafana's:
    Helm hands them on."""
    text = "".join(f"---\n{_template(each, unused, foreign=foreign)}" for each in objects)
    if condition is not None:
        text = f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"
    return HEAD % source + text


def _scheduler_configuration(unused: set[Place]) -> str:
    """The configuration of the second kube-scheduler, as a named template.

    Who it is, and where its files lie, is the chart's; the extender's entry is the shipped one.
    """
    source = "manifests/scheduler/kube-scheduler-config.yaml"
    (found,) = _documents(HERE / "scheduler" / "kube-scheduler-config.yaml")
    del found["clientConnection"]  # it runs in the cluster, with its service account
    found["leaderElection"] = {
        "leaderElect": True,
        "resourceName": "gpu-topology-scheduler",
        "resourceNamespace": NAMESPACE,
    }
    (extender,) = found["extenders"]
    folder = "/etc/gpu-topology/tls"
    files = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
    extender["tlsConfig"] |= {field: f"{folder}/{name}" for field, name in files.items()}
    body = _template(found, unused)
    return (
        HEAD % source
        + '{{- define "gpu-topology.schedulerConfiguration" -}}\n'
        + body
        + "{{- end }}\n"
    )


def _template(made: Object, unused: set[Place], *, foreign: bool = False) -> str:
    """An object as the text of a template."""
    name = made.get("metadata", {}).get("name", "")
    if ("{{" in (plain := _dumped(made)) and not foreign) or "@@" in plain:
        raise ChartError(f"{made['kind']} {name} has text that a template would read as its own")
    here = [p for p in PLACES if (p.kind, p.name) == (made["kind"], name)]
    for number, place in enumerate(here):
        _mark(made, place, f"@@{number}@@")
        unused.discard(place)
    lines = []
    for line in _dumped(made).splitlines():
        mark = line.partition("@@")[2].partition("@@")[0]
        lines += (
            _filled(line, here[int(mark)], f"@@{mark}@@")
            if mark
            else [line.replace("{{", '{{ "{{" }}')]
        )
    return "\n".join(lines).replace(NAMESPACE, RELEASED) + "\n"


def _dumped(made: Object) -> str:
    return yaml.safe_dump(made, sort_keys=False, width=10_000)


def _mark(made: Object, place: Place, mark: str) -> None:
    """Put the mark where the place is. A key that is not there yet is added by ``lines`` only."""
    *way, last = place.path
    at: Any = made
    for step in way:
        at = at[step]
    if last == "+":
        at.append(mark)
    elif place.lines or last in at or isinstance(at, list):
        at[last] = mark
    else:
        raise ChartError(f"{place.kind} {place.name} has no {'.'.join(map(str, place.path))}")


def _filled(line: str, place: Place, mark: str) -> list[str]:
    """The template's lines for a line with a mark."""
    indent = line[: len(line) - len(line.lstrip())]
    if place.lines:
        if line.lstrip().startswith("- ") and place.path[-1] != "+":
            raise ChartError(f"{place.path} is the first key of a list's item")
        parts = place.text.splitlines()
        return [p if p.startswith("{{-") else f"{indent}{p}" for p in parts]
    block = f"{{{{- {place.text} | nindent {len(indent) + 2} }}}}"
    text = block if place.block else place.text
    quoted = f"'{mark}'" if f"'{mark}'" in line else mark
    return [line.replace(quoted, text)]


if __name__ == "__main__":
    sys.exit(main())
