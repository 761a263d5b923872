"""``make chart`` writes the templates of the Helm chart from the kustomize base.

The base says what is installed. ``chartplaces.yaml`` lists the fields that the chart's user can
change, with the value for each. Everything else is copied, and the base's namespace becomes the
release's. With default values and the base's namespace, the rendered chart equals the base
(``tests/e2e/test_chart.py``). The reasons are in docs/contribute/adr/0018.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TEMPLATES = HERE / "chart" / "templates"
NAMESPACE = "gpu-topology-system"
RELEASED = "{{ .Release.Namespace }}"
HEAD = "{{- /* Made by `make chart` from %s: change that. */ -}}\n"
FOR_EVER = 600  # seconds after which kubectl is stopped

Object = dict[str, Any]
Step = str | int


class ChartError(Exception):
    """The error that the chart cannot be made from the base. The message names the cause."""


@dataclass(frozen=True, slots=True)
class Place:
    """A field of an object, and the template's text there. ``chartplaces.yaml`` has the rules."""

    path: tuple[Step, ...]
    text: str
    how: str  # "value", "block" or "lines"

    def __str__(self) -> str:
        return ".".join(map(str, self.path))


def places() -> dict[str, list[Place]]:
    """Return the fields in ``chartplaces.yaml``, by the kind and name of the object."""
    given = yaml.safe_load((HERE / "chartplaces.yaml").read_text())
    return {of: [_place(*field) for field in fields.items()] for of, fields in given.items()}


def _place(path: str, told: str | dict[str, str]) -> Place:
    steps = tuple(int(step) if step.isdecimal() else step for step in path.split("."))
    ((how, text),) = ({"value": told} if isinstance(told, str) else told).items()
    return Place(steps, text, how)


# The templates, with the kinds of objects in each. Unless the value is true, a template is empty.
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
# The base's components, with the file of their objects and the value that enables them.
OPTIONS = {
    "cert-manager": ("certificates.yaml", ".Values.certManager.enabled"),
    "validation": ("policies.yaml", ".Values.validation.enabled"),
}
LEFT_OUT = {"Namespace"}  # Helm makes the release's namespace, or it exists already


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the templates, or with ``--check`` return 1 if any of them is out of date."""
    parser = argparse.ArgumentParser(description="make the chart's templates from the base")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    only_check, made = parser.parse_args(arguments).check, templates()
    stale = [
        path
        for name, text in made.items()
        if not (path := TEMPLATES / name).exists() or path.read_text() != text
    ]
    if only_check:
        sys.stderr.writelines(f"{path.name} is out of date: run `make chart`\n" for path in stale)
        return 1 if stale else 0
    for name, text in made.items():
        (TEMPLATES / name).write_text(text)
    return 0


def templates() -> dict[str, str]:
    """Return the generated templates as texts by file name. Raises :class:`ChartError`."""
    base, unused = kustomized(HERE / "base"), places()
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
        named = sorted(
            f"{of.partition('/')[0]} with {place}" for of, here in unused.items() for place in here
        )
        raise ChartError(f"the base has no {', no '.join(named)}")
    return found


def kustomized(folder: Path) -> list[Object]:
    """Return the objects that ``kubectl apply -k`` would send for a folder."""
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
    unused: dict[str, list[Place]],
    *,
    foreign: bool = False,
) -> str:
    """Return one template with these objects.

    With ``foreign``, template text in them belongs to Prometheus or Grafana, and Helm passes it on.
    """
    text = "".join(
        _if_wanted(each, f"---\n{_template(each, unused, foreign=foreign)}") for each in objects
    )
    if condition is not None:
        text = f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"
    return HEAD % source + text


def _if_wanted(made: Object, text: str) -> str:
    """Return the text of an object, on condition that its component is installed."""
    if made["metadata"].get("labels", {}).get("app.kubernetes.io/component") != "extender":
        return text
    return f"{{{{- if .Values.extender.enabled }}}}\n{text}{{{{- end }}}}\n"


def _scheduler_configuration(unused: dict[str, list[Place]]) -> str:
    """Return the configuration of the second kube-scheduler, as a named template.

    The chart sets the identity and the paths of files. The extender's entry is the shipped one.
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


def _template(made: Object, unused: dict[str, list[Place]], *, foreign: bool = False) -> str:
    """Return an object as the text of a template."""
    name = made.get("metadata", {}).get("name", "")
    if ("{{" in (plain := _dumped(made)) and not foreign) or "@@" in plain:
        raise ChartError(f"{made['kind']} {name} has text that Helm would read as a template")
    here = unused.pop(f"{made['kind']}/{name}", [])
    for number, place in enumerate(here):
        _mark(made, place, f"@@{number}@@")
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
    """Put the mark into the field. Only ``lines`` may add a key that is not there yet."""
    *way, last = place.path
    at: Any = made
    for step in way:
        at = at[step]
    if last == "+":
        at.append(mark)
    elif place.how == "lines" or last in at or isinstance(at, list):
        at[last] = mark
    else:
        raise ChartError(f"{made['kind']} {made.get('metadata', {}).get('name')} has no {place}")


def _filled(line: str, place: Place, mark: str) -> list[str]:
    """Return the template's lines for a line with a mark."""
    indent = line[: len(line) - len(line.lstrip())]
    if place.how == "lines":
        if line.lstrip().startswith("- ") and place.path[-1] != "+":
            raise ChartError(f"{place.path} is the first key of a list's item")
        parts = place.text.splitlines()
        return [p if p.startswith("{{-") else f"{indent}{p}" for p in parts]
    block = f"{{{{- {place.text} | nindent {len(indent) + 2} }}}}"
    text = block if place.how == "block" else place.text
    quoted = f"'{mark}'" if f"'{mark}'" in line else mark
    return [line.replace(quoted, text)]


if __name__ == "__main__":
    sys.exit(main())
