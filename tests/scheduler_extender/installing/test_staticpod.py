"""kubeadm's static pod: the flag and the folder are put in, and taken out again."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.installing import staticpod
from scheduler_extender.installing.staticpod import CONFIG, FOLDER
from scheduler_extender.installing.yamledit import EditError

KUBEADM = Path(__file__).with_name("kube-scheduler.yaml").read_text()


def pod(text: str) -> Any:
    return yaml.safe_load(text)


def test_only_lines_are_added_and_all_of_them_go_again() -> None:
    now = staticpod.with_config(staticpod.read(KUBEADM), "1234")
    assert [line for line in KUBEADM.splitlines() if line not in now.splitlines()] == []
    (container,) = pod(now)["spec"]["containers"]
    assert container["command"] == [
        *pod(KUBEADM)["spec"]["containers"][0]["command"],
        f"--config={CONFIG}",
    ]
    mount, volume = container["volumeMounts"][-1], pod(now)["spec"]["volumes"][-1]
    assert mount == {"mountPath": FOLDER, "name": volume["name"], "readOnly": True}
    assert volume["hostPath"] == {"path": FOLDER, "type": "Directory"}
    assert pod(now)["metadata"]["annotations"] == {staticpod.DIGEST: "1234"}
    read = staticpod.read(now)
    assert read.config() == CONFIG
    assert staticpod.with_config(read, "1234") == now
    assert staticpod.without_config(read, keep_folder=False) == KUBEADM


def test_another_digest_changes_one_line() -> None:
    now = staticpod.with_config(staticpod.read(KUBEADM), "1234")
    then = staticpod.with_config(staticpod.read(now), "5678")
    assert then == now.replace("1234", "5678")


def test_its_own_configuration_is_found_on_the_host_and_stays() -> None:
    theirs = KUBEADM.replace(
        "    - --leader-elect=true\n",
        "    - --leader-elect=true\n    - --config\n    - /conf/x/s.yaml\n",
    ).replace(
        "  volumes:\n",
        "  volumes:\n  - {name: conf, hostPath: {path: /srv/conf/}}\n",
    )
    theirs = theirs.replace(
        "    volumeMounts:\n", "    volumeMounts:\n    - {name: conf, mountPath: /conf}\n"
    )
    read = staticpod.read(theirs)
    assert read.config() == "/srv/conf/x/s.yaml"
    now = staticpod.with_config(read, "1")
    command = pod(now)["spec"]["containers"][0]["command"]
    assert command == pod(theirs)["spec"]["containers"][0]["command"]
    assert staticpod.without_config(staticpod.read(now), keep_folder=False) == theirs


def test_flags_may_stand_in_args_and_there_may_be_no_volumes() -> None:
    text = (
        "kind: Pod\nmetadata: {annotations: {a: b}}\nspec:\n  containers:\n"
        "  - name: proxy\n    image: x\n"
        "  - name: kube-scheduler\n    command: [kube-scheduler]\n    args: [--v=2]\n"
    )
    now = staticpod.with_config(staticpod.read(text), "1")
    container = pod(now)["spec"]["containers"][1]
    assert container["command"] == ["kube-scheduler"]
    assert container["args"] == ["--v=2", f"--config={CONFIG}"]
    assert len(container["volumeMounts"]) == len(pod(now)["spec"]["volumes"]) == 1
    assert pod(now)["metadata"]["annotations"] == {"a": "b", staticpod.DIGEST: "1"}
    back = staticpod.without_config(staticpod.read(now), keep_folder=False)
    assert pod(back) == pod(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Deployment\n", "kind: Pod is needed, not 'Deployment'"),
        ("kind: Pod\nmetadata: {}\nspec: {containers: 3}\n", "containers: a list of mappings"),
        (
            "kind: Pod\nmetadata: {}\nspec: {containers: [{name: etcd, command: [etcd]}]}\n",
            "no container is named kube-scheduler and has a command",
        ),
        (
            KUBEADM.replace("    - kube-scheduler\n", "    - sh\n    - -c\n    - kube-scheduler\n"),
            "kube-scheduler: a shell starts it",
        ),
    ],
)
def test_another_pod_is_refused(text: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        staticpod.read(text)


def test_a_volume_that_has_our_name_is_refused() -> None:
    taken = KUBEADM.replace("  volumes:\n", "  volumes:\n  - {name: gpu-topology, emptyDir: {}}\n")
    with pytest.raises(EditError, match="volumes: gpu-topology is needed for"):
        staticpod.with_config(staticpod.read(taken), "1")


@pytest.mark.parametrize("place", ["spec:\n", "    image: registry"])
def test_one_that_could_not_read_what_root_writes_is_refused(place: str) -> None:
    indent = "    " if "image" in place else "  "
    user = f"{indent}securityContext: {{runAsUser: 1001}}\n"
    pod = KUBEADM.replace(
        "  securityContext:\n    seccompProfile:\n      type: RuntimeDefault\n", ""
    )
    text = pod.replace(place, place + user if place == "spec:\n" else user + place)
    with pytest.raises(EditError, match="kube-scheduler runs as user 1001, which cannot read"):
        staticpod.with_config(staticpod.read(text), "1")
    assert staticpod.without_config(staticpod.read(text), keep_folder=False) == text


def test_a_configuration_in_a_part_of_a_volume_is_found() -> None:
    mount = "    - {mountPath: /etc/kube/s.yaml, name: own, subPath: scheduler/s.yaml}\n"
    text = KUBEADM.replace("--leader-elect=true", "--config=/etc/kube/s.yaml")
    text = text.replace("    volumeMounts:\n", f"    volumeMounts:\n{mount}")
    volume = "  - {name: own, hostPath: {path: /srv/conf}}\n"
    text = text.replace("  volumes:\n", f"  volumes:\n{volume}")
    assert staticpod.read(text).config() == "/srv/conf/scheduler/s.yaml"


def test_the_last_value_of_a_flag_holds() -> None:
    twice = KUBEADM.replace("--leader-elect=true", "--v=1\n    - --v\n    - 3")
    assert staticpod.read(twice).flags()["v"] == "3"


def test_a_configuration_inside_the_image_is_refused() -> None:
    inside = KUBEADM.replace("--leader-elect=true", "--config=/inside.yaml")
    with pytest.raises(
        EditError, match=r"--config=/inside\.yaml is not in a mounted folder of the host"
    ):
        staticpod.read(inside).config()
