"""The chart, by Helm itself: it renders what the base is, and installs, changes and goes."""

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.e2e.controlplane import ControlPlane
from tests.e2e.helm import CHART, IMAGE, RELEASE, Helm
from tests.manifests.building import (
    BASE,
    KUBERNETES,
    NAMESPACE,
    OPTIONS,
    ROOT,
    Object,
    arguments,
    daemon_sets,
    entry_in_shadow,
    extender,
    objects,
    scheduler_config,
    with_option,
)

pytestmark = pytest.mark.e2e

CRD = "gputopologies.gpu-topology.io"
MUTATES = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
# The chart's values that stand for the components of manifests/agent/options.
AGENT_VALUES = {
    "device-mounts": {"deviceMounts": True},
    "every-node": {"everyNode": True},
    "host-driver": {"hostDriver": {"enabled": True}},
    "host-pid": {"hostPID": True},
    "kubelet-insecure-tls": {"kubeletInsecureTLS": True},
    "runtime-class": {"runtimeClassName": "nvidia"},
    "selinux": {"selinux": True},
}
# The same for those of manifests/base/options.
BASE_VALUES = {"cert-manager": "certManager", "validation": "validation"}


def template(helm: Helm, *words: str, **values: Any) -> subprocess.CompletedProcess[str]:
    """Helm's answer about the base's image and these values."""
    image = {"repository": IMAGE, **values.pop("image", {})}
    return helm("template", RELEASE, str(CHART), *words, values={"image": image, **values})


def rendered(helm: Helm, *words: str, **values: Any) -> list[Object]:
    """What the chart makes of values, in the base's namespace and with its image."""
    done = template(helm, "--namespace", NAMESPACE, *words, **values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def by_name(found: list[Object]) -> dict[tuple[str, str], Object]:
    """Objects by kind and name, none of them twice."""
    known = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(known) == len(found)
    return known


def without_namespace(found: list[Object]) -> dict[tuple[str, str], Object]:
    """The objects without the Namespace, which a release has and does not contain."""
    return by_name([each for each in found if each["kind"] != "Namespace"])


def test_the_chart_renders_the_objects_of_the_base(helm: Helm) -> None:
    expected, found = without_namespace(objects()), by_name(rendered(helm))
    crd = found["CustomResourceDefinition", CRD]["metadata"]
    assert crd.pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found.keys() == expected.keys()
    for key, each in found.items():
        assert each == expected[key], key


def test_a_value_without_a_word_is_no(helm: Helm) -> None:
    """Of ``shadow:`` with nothing behind it Helm makes null, which leaves no value at all. A
    release that was installed before the value existed has none, either (``--reuse-values``)."""
    found = rendered(helm, extender={"shadow": None}, scheduler={"enabled": True})
    assert found == rendered(helm, extender={"shadow": False}, scheduler={"enabled": True})
    none_named = rendered(helm, scheduler={"enabled": True, "mayNameNodes": None})
    assert by_name(none_named).keys() == by_name(found).keys()


def test_a_release_elsewhere_never_names_the_bases_namespace(helm: Helm) -> None:
    on = {"enabled": True}
    done = template(helm, "--namespace", "elsewhere", scheduler=on, certManager=on)
    assert done.returncode == 0, done.stderr
    assert NAMESPACE not in done.stdout
    assert "system:serviceaccount:elsewhere:gpu-topology-extender" in done.stdout


def sorted_lists(found: Any) -> Any:
    """The same with what is a list by name in Kubernetes in the order of its names."""
    if isinstance(found, dict):
        return {key: sorted_lists(value) for key, value in found.items()}
    if isinstance(found, list):
        parts = [sorted_lists(each) for each in found]
        if all(isinstance(each, dict) and "name" in each for each in parts):
            return sorted(parts, key=lambda each: str(each["name"]))
        return parts
    return found


@pytest.mark.parametrize("option", OPTIONS)
def test_a_value_of_the_agent_does_what_the_component_does(
    helm: Helm, option: str, tmp_path: Path
) -> None:
    assert sorted(AGENT_VALUES) == OPTIONS
    made = by_name(rendered(helm, agent=AGENT_VALUES[option]))
    plain = daemon_sets()
    for name, expected in daemon_sets(with_option(option, tmp_path)).items():
        selector = expected["spec"]["template"]["spec"]["nodeSelector"]
        if not selector:  # the chart leaves an empty one out
            del expected["spec"]["template"]["spec"]["nodeSelector"]
        found = made["DaemonSet", name]
        assert sorted_lists(found) == sorted_lists(expected)
        assert sorted_lists(found) != sorted_lists(plain[name])


@pytest.mark.parametrize("option", BASE_VALUES)
def test_a_value_adds_what_the_component_of_the_base_adds(
    helm: Helm, option: str, tmp_path: Path
) -> None:
    assert sorted(BASE_VALUES) == sorted(path.name for path in (BASE / "options").iterdir())
    base = os.path.relpath(BASE, tmp_path.resolve())
    overlay = {"resources": [base], "components": [f"{base}/options/{option}"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    expected = without_namespace(objects(tmp_path))
    values = {BASE_VALUES[option]: {"enabled": True}}
    assert by_name(rendered(helm, crd={"keep": False}, **values)) == expected
    assert len(expected) > len(without_namespace(objects()))


def test_monitoring_adds_what_its_folder_has(helm: Helm) -> None:
    expected = without_namespace([*objects(), *objects(ROOT / "manifests" / "monitoring")])
    found = rendered(helm, crd={"keep": False}, monitoring={"enabled": True})
    assert by_name(found) == expected


def test_the_flags_of_the_extender_are_those_of_the_values(helm: Helm) -> None:
    values = {
        "require": "guaranteed",
        "refusals": "ignore",
        "shadow": True,
        "dashboard": "https://grafana.example/d/gpus?orgId=1",
        "extraArgs": ["--stale-after=300"],
        "schedulerAddresses": ["192.0.2.10/32"],
    }
    image = {"repository": "example/gpus", "tag": "7", "pullPolicy": "Always", "pullSecrets": ["s"]}
    found = by_name(rendered(helm, extender=values, image=image))
    spec = found["Deployment", "gpu-topology-extender"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    flags = [
        "--require=guaranteed",
        "--refusals=ignore",
        "--shadow",
        "--dashboard=https://grafana.example/d/gpus?orgId=1",
        "--stale-after=300",
    ]
    assert container["args"][-5:] == flags
    assert (container["image"], container["imagePullPolicy"]) == ("example/gpus:7", "Always")
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    first, _ = found["NetworkPolicy", "gpu-topology-extender"]["spec"]["ingress"]
    assert first["from"] == [{"ipBlock": {"cidr": "192.0.2.10/32"}}]


DIGESTS = [f"sha256:{digit * 64}" for digit in "abc"]


def images(found: list[Object]) -> dict[str, str]:
    """The images of the objects, by the name of the container."""
    specs = [e["spec"]["template"]["spec"] for e in found if "template" in e.get("spec", {})]
    return {each["name"]: each["image"] for spec in specs for each in spec["containers"]}


def test_each_image_has_a_digest_of_its_own(helm: Helm) -> None:
    on = {"enabled": True, "image": {"digest": DIGESTS[2]}}
    image = {"repository": "localhost:5000/gpus", "digest": DIGESTS[0]}
    agent = {"image": {"digest": DIGESTS[1]}}
    assert images(rendered(helm, image=image, agent=agent, scheduler=on)) == {
        "certificates": f"localhost:5000/gpus@{DIGESTS[0]}",
        "extender": f"localhost:5000/gpus@{DIGESTS[0]}",
        "agent": f"localhost:5000/gpus-agent@{DIGESTS[1]}",
        "kube-scheduler": f"registry.k8s.io/kube-scheduler@{DIGESTS[2]}",
    }
    assert images(rendered(helm, image=image))["agent"] == "localhost:5000/gpus-agent:0.1.0"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        pytest.param(
            {"image": {"repository": ""}},
            "image.repository is empty: set it to the extender's image in your registry",
            id="no-image",
        ),
        pytest.param(
            {"image": {"repository": "foo:1.0"}},
            'image.repository is "foo:1.0": allowed is a name without tag and digest',
            id="a-tag",
        ),
        pytest.param(
            {"agent": {"image": {"repository": f"foo@{DIGESTS[0]}"}}},
            f'agent.image.repository is "foo@{DIGESTS[0]}": allowed is a name without tag',
            id="the-agents-digest",
        ),
        pytest.param(
            {"image": {"tag": DIGESTS[0]}},
            f'image.tag is "{DIGESTS[0]}": allowed is a tag, such as 0.1.0; '
            "a digest is written to image.digest",
            id="a-digest-as-tag",
        ),
        pytest.param(
            {"scheduler": {"enabled": True, "image": {"tag": "v1:34"}}},
            'scheduler.image.tag is "v1:34"',
            id="the-schedulers-tag",
        ),
    ],
)
def test_an_image_that_cannot_be_pulled_is_refused_in_a_line(
    helm: Helm, values: Object, why: str
) -> None:
    done = template(helm, **values)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "Error: " in line)
    assert f": {why}" in line


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"scheduler": {"enabled": True}}, id="second-scheduler"),
        pytest.param({"certManager": {"enabled": True}}, id="cert-manager"),
        pytest.param({"validation": {"enabled": True}}, id="validation"),
    ],
)
def test_helm_finds_no_fault_with_the_chart(helm: Helm, values: Object) -> None:
    image = {"image": {"repository": IMAGE}}
    done = helm("lint", "--strict", str(CHART), values={**image, **values})
    assert done.returncode == 0, done.stdout + done.stderr
    for each in rendered(helm, "--api-versions", MUTATES, **values):
        if each["apiVersion"].startswith("cert-manager.io/"):
            continue
        if each["kind"].startswith("MutatingAdmissionPolicy"):
            continue  # asked of a real API server: test_second_scheduler.py
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param({"extender": {"require": "possible"}}, "require", id="unknown-word"),
        pytest.param({"extender": {"replicas": 0}}, "replicas", id="no-replicas"),
        pytest.param({"agent": {"runtimeclassname": "n"}}, "runtimeclassname", id="misspelt"),
        pytest.param({"shadow": True}, "shadow", id="at-the-wrong-place"),
        pytest.param({"image": {"digest": "sha256:1"}}, "/image/digest", id="no-digest"),
        pytest.param(
            {"scheduler": {"name": "default-scheduler"}}, "name", id="the-first-ones-name"
        ),
        pytest.param({"scheduler": {"steering": "yes"}}, "steering", id="unknown-steering"),
        pytest.param({"agent": {"hostDriver": {"path": "lib"}}}, "path", id="relative-path"),
        pytest.param(
            {"extender": {"schedulerAddresses": ["192.0.2.1"]}}, "schedulerAddresses", id="no-cidr"
        ),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_its_name(
    helm: Helm, values: Object, field: str
) -> None:
    done = template(helm, **values)
    assert done.returncode == 1
    assert "values don't meet the specifications of the schema" in done.stderr
    assert field in done.stderr


PAGES = ("install/upgrade", "install/managed", "install/is-it-worth-it")


def helm_commands() -> list[str]:
    """The commands of the pages that install the chart."""
    blocks = [
        block
        for page in PAGES
        for block in re.findall(r"^```sh\n(.*?)^```", text_of(page), re.M | re.S)
    ]
    whole = "\n".join(blocks).replace("\\\n", " ")
    return [line for line in whole.splitlines() if line.startswith("helm ")]


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


@pytest.mark.parametrize("command", helm_commands())
def test_a_command_of_the_pages_renders(helm: Helm, command: str) -> None:
    words = shlex.split(command.replace('"$IMAGE"', "registry.example.com/gpu-topology"))
    assert words[:4] == ["helm", "upgrade", "--install", RELEASE]
    assert ROOT / words[4] == CHART
    installs = {"--create-namespace", "--take-ownership"}  # no words of `helm template`
    flags = [word for word in words[5:] if word not in installs]
    done = helm("template", RELEASE, str(CHART), *flags)
    assert done.returncode == 0, done.stderr
    images = re.findall(r"image: (\S*/gpu-topology)(?:-agent)?(:\S*)", done.stdout)
    (repository,) = (word for word in words if word.startswith("image.repository="))
    assert {"".join(image) for image in images} == {f"{repository.partition('=')[2]}:0.1.0"}


def values_of_the_pages() -> list[Any]:
    found = []
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(# values .*?)^```", text_of(page), re.M | re.S):
            found.append(pytest.param(yaml.safe_load(block), id=block.splitlines()[0][2:]))
    return found


@pytest.mark.parametrize("values", values_of_the_pages())
def test_the_values_of_the_pages_change_the_agents_and_validate(helm: Helm, values: Object) -> None:
    found = by_name(rendered(helm, **values))["DaemonSet", "gpu-topology-agent"]
    kubernetes_validate.validate(found, KUBERNETES, strict=True)
    assert found != by_name(rendered(helm))["DaemonSet", "gpu-topology-agent"]
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    arguments(container["args"])  # flags that there are
    labels = values["agent"].get("nodeSelector")
    if labels:
        assert spec["nodeSelector"] == {k: v for k, v in labels.items() if v is not None}


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = template(helm, "--kube-version", "v1.29.9")
    assert done.returncode == 1
    assert "requires kubeVersion: >=1.30.0-0" in done.stderr
    done = template(helm, "--kube-version", "v1.30.1-eks-5e0fdde")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("more", ["certManager", "validation", "monitoring"])
def test_the_agents_alone_come_without_a_part_of_the_extender(helm: Helm, more: str) -> None:
    found = rendered(helm, extender={"enabled": False}, **{more: {"enabled": True}})
    labels = [each["metadata"].get("labels", {}) for each in found]
    components = {each.get("app.kubernetes.io/component") for each in labels}
    assert components - {None} == {"agent"}
    rules = [rule for each in found if each["kind"] == "ClusterRole" for rule in each["rules"]]
    assert {each["metadata"]["name"] for each in found if each["kind"] == "ServiceAccount"} == {
        "gpu-topology-agent"
    }
    assert not {"patch", "delete"} & {verb for rule in rules for verb in rule["verbs"]}


def test_a_second_scheduler_without_the_extender_is_refused(helm: Helm) -> None:
    done = template(helm, extender={"enabled": False}, scheduler={"enabled": True})
    assert done.returncode == 1
    assert "the second kube-scheduler asks the extender" in done.stderr


def test_in_shadow_nothing_hangs_on_the_extender(helm: Helm) -> None:
    values = {"scheduler": {"enabled": True}, "extender": {"shadow": True}}
    config = by_name(rendered(helm, **values))["ConfigMap", "gpu-topology-scheduler"]
    (entry,) = yaml.safe_load(config["data"]["config.yaml"])["extenders"]
    page = entry_in_shadow()
    assert {field: entry.get(field) for field in page} == page
    assert entry["ignorable"] is True


def test_the_second_scheduler_asks_the_extender_as_the_shipped_one_does(helm: Helm) -> None:
    values = {"scheduler": {"enabled": True, "percentageOfNodesToScore": 0}}
    config = by_name(rendered(helm, **values))["ConfigMap", "gpu-topology-scheduler"]
    found = yaml.safe_load(config["data"]["config.yaml"])
    folder = "/etc/gpu-topology/tls"
    files = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
    tls = {**extender()["tlsConfig"], **{key: f"{folder}/{name}" for key, name in files.items()}}
    assert found["extenders"] == [{**extender(), "tlsConfig": tls}]
    assert found["profiles"] == [{"schedulerName": "gpu-topology"}]
    same = {"apiVersion", "kind", "percentageOfNodesToScore"}
    assert {k: found[k] for k in same} == {k: scheduler_config()[k] for k in same}
    assert found["leaderElection"]["resourceName"] != "kube-scheduler"


@pytest.mark.parametrize("name", ["1", "true", "null", "gpus.example"])
def test_the_second_schedulers_name_is_a_text_whatever_it_looks_like(helm: Helm, name: str) -> None:
    config = by_name(rendered(helm, scheduler={"enabled": True, "name": name}))[
        "ConfigMap", "gpu-topology-scheduler"
    ]
    found = yaml.safe_load(config["data"]["config.yaml"])
    assert found["profiles"] == [{"schedulerName": name}]


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [
        pytest.param("v1.33.4-gke.1036000", "v1.33.4", id="gke"),
        pytest.param("v1.34", "v1.34.0", id="argo-cd"),
        pytest.param("1.34+", "v1.34.0", id="eks-by-argo-cd"),
    ],
)
def test_the_second_scheduler_is_of_the_clusters_version(
    helm: Helm, cluster: str, tag: str
) -> None:
    found = rendered(helm, "--kube-version", cluster, scheduler={"enabled": True})
    assert images(found)["kube-scheduler"] == f"registry.k8s.io/kube-scheduler:{tag}"


def test_a_pod_that_is_not_ready_holds_up_no_drain(helm: Helm) -> None:
    found = rendered(helm, scheduler={"enabled": True})
    budgets = [each["spec"] for each in found if each["kind"] == "PodDisruptionBudget"]
    assert [b["unhealthyPodEvictionPolicy"] for b in budgets] == ["AlwaysAllow"] * 2


def test_only_the_second_scheduler_reaches_the_extender(helm: Helm) -> None:
    found = by_name(rendered(helm, scheduler={"enabled": True}))
    first, _ = found["NetworkPolicy", "gpu-topology-extender"]["spec"]["ingress"]
    labels = found["Deployment", "gpu-topology-scheduler"]["spec"]["selector"]["matchLabels"]
    assert first["from"] == [{"podSelector": {"matchLabels": labels}}]


@pytest.mark.parametrize(
    ("values", "makes"),
    [
        pytest.param({"scheduler": {"enabled": True}}, True, id="second-scheduler"),
        pytest.param({}, False, id="the-first-alone"),
        pytest.param({"scheduler": {"enabled": True, "certificates": False}}, False, id="by-hand"),
        # A release that was installed before the value existed (--reuse-values).
        pytest.param({"scheduler": {"enabled": True, "certificates": None}}, False, id="older"),
        pytest.param(
            {"scheduler": {"enabled": True}, "certManager": {"enabled": True}},
            False,
            id="cert-manager",
        ),
    ],
)
def test_the_chart_makes_the_certificates_if_no_other_does(
    helm: Helm, values: Object, makes: bool
) -> None:
    found = by_name(rendered(helm, **values))
    (extender,) = found["Deployment", "gpu-topology-extender"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert ("--renew-certificates" in extender["args"]) is makes
    named = {kind for kind, name in found if name.startswith("gpu-topology-certificates")}
    assert named == ({"Job", "Role", "RoleBinding", "ServiceAccount"} if makes else set())
    if makes:
        (job,) = found["Job", "gpu-topology-certificates"]["spec"]["template"]["spec"]["containers"]
        assert job["args"] == ["certificates", "--keep", f"--namespace={NAMESPACE}"]


OPENSHIFT = ("--api-versions", "security.openshift.io/v1")


@pytest.mark.parametrize("agent", [{}, *AGENT_VALUES.values()])
def test_openshift_admits_the_pods(helm: Helm, agent: Object) -> None:
    """By its rules for SecurityContextConstraints, and what its nonroot-v2 admits."""
    values = {"agent": agent, "scheduler": {"enabled": True}}
    found = by_name(rendered(helm, *OPENSHIFT, **values))
    scc = found["SecurityContextConstraints", "gpu-topology-agent"]
    nonroot = {e["name"] for e in found["RoleBinding", "gpu-topology-nonroot"]["subjects"]}
    uses = {"apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"]}
    *_, rule = found["Role", "gpu-topology-certificates-job"]["rules"]
    assert rule == {**uses, "resourceNames": ["nonroot-v2"], "verbs": ["use"]}
    nonroot.add("gpu-topology-certificates-job")
    for each in found.values():
        if "template" not in each.get("spec", {}):
            continue
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        used = {kind for volume in pod.get("volumes", []) for kind in volume if kind != "name"}
        shared, own = pod["securityContext"], container["securityContext"]
        assert shared["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own["capabilities"] == {"drop": ["ALL"]}
        if each["kind"] != "DaemonSet":
            assert pod["serviceAccountName"] in nonroot
            assert shared["runAsUser"] > 0
            assert own["allowPrivilegeEscalation"] is False
            assert used <= {"secret", "configMap"}
            continue
        assert scc["users"] == [f"system:serviceaccount:{NAMESPACE}:{pod['serviceAccountName']}"]
        assert shared["runAsUser"] == scc["runAsUser"]["uid"]
        assert shared["seLinuxOptions"] == {"type": "spc_t"}
        assert used <= set(scc["volumes"])
        assert own["readOnlyRootFilesystem"] is scc["readOnlyRootFilesystem"]
        assert own["allowPrivilegeEscalation"] is scc["allowPrivilegeEscalation"]
        assert own.get("privileged", False) is scc["allowPrivilegedContainer"]
        assert pod.get("hostPID", False) is scc["allowHostPID"]


def test_without_an_extender_openshift_gets_no_binding_for_it(helm: Helm) -> None:
    found = by_name(rendered(helm, *OPENSHIFT, extender={"enabled": False}))
    assert ("SecurityContextConstraints", "gpu-topology-agent") in found
    assert ("RoleBinding", "gpu-topology-nonroot") not in found


STEERING = [
    pytest.param("auto", True, {"MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"}, id="new"),
    pytest.param("auto", False, {"ValidatingAdmissionPolicy"}, id="old"),
    pytest.param("refuse", True, {"ValidatingAdmissionPolicy"}, id="refuse"),
    pytest.param("none", True, set[str](), id="none"),
]


@pytest.mark.parametrize(("steering", "can", "kinds"), STEERING)
def test_pods_are_steered_as_far_as_the_cluster_can(
    helm: Helm, steering: str, can: bool, kinds: set[str]
) -> None:
    words = ("--api-versions", MUTATES) if can else ()
    found = rendered(helm, *words, scheduler={"enabled": True, "steering": steering})
    named = {e["kind"] for e in found if e["metadata"]["name"] == "gpu-topology-steering"}
    assert named == kinds | {f"{kind}Binding" for kind in kinds}


# With a real API server.


@pytest.fixture(scope="module")
def cluster(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("chart"), control_plane_binaries) as found:
        yield found


def test_a_release_is_installed_changed_and_removed(
    helm: Helm, cluster: ControlPlane, tmp_path: Path
) -> None:
    """From the package, as it is handed out; its versions are the project's."""
    where = (cluster.kubeconfig(), NAMESPACE)
    package = helm.package(tmp_path)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert package.name == f"gpu-topology-{version}.tgz"
    chart = yaml.safe_load(helm("show", "chart", str(package)).stdout)
    assert chart["version"] == chart["appVersion"] == version
    notes = helm.install(*where, chart=package)
    assert "gpu-topology certificates --output ../gpu-topology-tls " in notes, "as the pages say"
    assert "Nothing has changed for any pod yet" in notes
    with cluster.client() as api:
        deployments = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
        definition = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD}"
        scheduler = f"{deployments}/gpu-topology-scheduler"
        assert api.get(f"{deployments}/gpu-topology-extender").is_success
        assert api.get(definition).is_success
        assert not api.get(scheduler).is_success

        notes = helm.install(*where, values={"scheduler": {"enabled": True}}, chart=package)
        image = api.get(scheduler).json()["spec"]["template"]["spec"]["containers"][0]["image"]
        kubernetes = api.get("/version").json()["gitVersion"]
        assert image.endswith(f":{kubernetes.partition('-')[0]}")
        assert "A Job has made it" in notes
        steering = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
        assert api.get(f"{steering}/gpu-topology-steering").is_success

        helm.install(*where, "--reset-values", chart=package)
        assert not api.get(scheduler).is_success
        assert not api.get(f"{steering}/gpu-topology-steering").is_success

        named = ("--kubeconfig", str(where[0]), "--namespace", where[1])
        done = helm("uninstall", RELEASE, *named)
        assert done.returncode == 0, done.stderr
        assert not api.get(f"{deployments}/gpu-topology-extender").is_success
        assert api.get(definition).is_success


def test_helm_sees_that_a_cluster_is_openshift(helm: Helm, cluster: ControlPlane) -> None:
    group, plural = "security.openshift.io", "securitycontextconstraints"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True}
    spec = {
        "group": group,
        "scope": "Cluster",
        "names": {"kind": "SecurityContextConstraints", "plural": plural},
        "versions": [{**version, "schema": {"openAPIV3Schema": anything}}],
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    with cluster.client() as api:
        name = f"{plural}.{group}"
        api.post(definitions, json={"metadata": {"name": name}, "spec": spec}).raise_for_status()
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}")
        helm.install(cluster.kubeconfig(), NAMESPACE)
        made = api.get(f"/apis/{group}/v1/{plural}/gpu-topology-agent").json()
        assert made["users"] == [f"system:serviceaccount:{NAMESPACE}:gpu-topology-agent"]
        bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings"
        bound = api.get(f"{bindings}/gpu-topology-nonroot").json()
        assert bound["roleRef"]["name"] == "system:openshift:scc:nonroot-v2"
