"""The pages on installation and operations: their flags, files and commands work."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from scheduler_extender.cli import commands as cli
from tests.documents.blocks import INSTALLING, SECOND, statements, steps
from tests.manifests.building import (
    KUBERNETES,
    ROOT,
    objects,
)

PAGES_COMMANDS = ("extender", "agent", "node", "certificates", "install", "doctor")
HELM = {"--install", "--create-namespace", "--set"}
CONTAINERS = {"--rm", "--user", "--volume", "--mount"}  # of docker run and ctr run
KUBECTL = {"--for", "--field-selector"}
OAUTH2_PROXY = {
    *("--http-address", "--upstream", "--reverse-proxy"),
    *("--email-domain", "--provider", "--oidc-issuer-url"),
}
PAGES = ("install/kubeadm", "install/second-scheduler", "reference/settings", "operate/day-2")


def pages() -> str:
    return "".join((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)


def test_the_pages_name_flags_and_files_that_there_are() -> None:
    page = pages()
    group: Any = typer.main.get_command(cli.app)
    params = [p for name in PAGES_COMMANDS for p in group.commands[name].params]
    known = {flag for option in params for flag in option.opts}
    named = set(re.findall(r"(?<![\w!-])--[a-z][a-z-]*", page))
    assert named - known == {*KUBECTL, *CONTAINERS, *HELM, *OAUTH2_PROXY}
    assert named >= {"--host", "--stale-after", "--tls-cert", "--client-ca", "--client-name"}
    files = set(re.findall(r"(?<![\w/])manifests/[\w./-]*\w", page)) - {"manifests/base"}
    assert files
    assert all((ROOT / name).exists() for name in files)


def test_what_the_page_builds_is_what_it_installs_without_helm(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "install" / "kubeadm.md").read_text()
    (overlay,) = re.findall(r"^```sh\n(mkdir .*?)^```", page, re.MULTILINE | re.DOTALL)
    # Docker and the cluster are not here: what they are told is written down instead.
    checkout, tools = tmp_path / "checkout", tmp_path / "bin"
    # Python writes there while another process of the tests copies.
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "manifests", checkout / "manifests", ignore=unwanted)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    tools.mkdir()
    for name in ("docker", "kubectl"):
        (tools / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/said\n')
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    both = steps("kubeadm")[0].text + overlay
    subprocess.run(["sh", "-eu", "-c", both], check=True, cwd=checkout, env=environment)
    first, *words = (tmp_path / "said").read_text().splitlines()
    assert first == "docker info", "is the daemon there?"
    assert [line.split()[:4] for line in words[:2]] == [
        ["docker", "build", "--target", "extender"],
        ["docker", "build", "--target", "agent"],
    ]
    assert words[2] == "docker push registry.example.com/team/gpu-topology:0.1.0"
    assert words[3] == "docker push registry.example.com/team/gpu-topology-agent:0.1.0"
    assert words[4] == "kubectl apply -k ../gpu-topology-site"
    built = objects(tmp_path / "gpu-topology-site")
    images = {
        c["image"]
        for o in built
        if o["kind"] in ("Deployment", "DaemonSet")
        for c in o["spec"]["template"]["spec"]["containers"]
    }
    name = "registry.example.com/team/gpu-topology"
    assert images == {f"{name}:0.1.0", f"{name}-agent:0.1.0"}
    assert len(built) >= len(objects())


@pytest.mark.parametrize("kind", INSTALLING)
def test_a_handful_of_commands_install(kind: str) -> None:
    expected = 4 if kind == SECOND else 5
    assert len([each for block in steps(kind) for each in statements(block)]) == expected


def test_the_components_of_the_pages_build(tmp_path: Path) -> None:
    """As the pages have them: cert-manager, and the addresses of the schedulers."""
    page = pages()
    (component,) = re.findall(r"`(manifests/base/options/[\w-]+)`", page)
    every = re.findall(r"^(patches:\n- target: .*?)^```", page, re.MULTILINE | re.DOTALL)
    (patches,) = (each for each in every if "NetworkPolicy" in each)
    here = os.path.relpath(ROOT, tmp_path.resolve())
    overlay = {
        "resources": [f"{here}/manifests/base"],
        "components": [f"{here}/{component}"],
        **yaml.safe_load(patches),
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    built = objects(tmp_path)
    policies = {o["metadata"]["name"]: o for o in built if o["kind"] == "NetworkPolicy"}
    policy = policies["gpu-topology-extender"]
    kubernetes_validate.validate(policy, KUBERNETES, strict=True)
    first = policy["spec"]["ingress"][0]
    assert [source["ipBlock"]["cidr"] for source in first["from"]] == [
        "192.0.2.10/32",
        "192.0.2.11/32",
    ]
    assert [port["port"] for port in first["ports"]] == [8888]
    assert {"Issuer", "Certificate"} <= {o["kind"] for o in built}
