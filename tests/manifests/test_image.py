"""The images, and what the manifests say of them."""

import json
import re
import tomllib

import pytest

from tests.manifests.building import (
    ROOT,
    SAMPLES,
    container,
    pod_spec,
    sample,
    the,
)


def test_images_name_no_registry() -> None:
    images = {container()["image"]}
    images |= {c["image"] for p in SAMPLES for c in sample(p)["spec"]["containers"]}
    for image in images:
        first = image.partition("/")[0] if "/" in image else ""
        assert not re.search(r"[.:]", first), image
        assert re.search(r":[^:/]+$", image), f"{image} has no tag"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert container()["image"] == f"gpu-topology:{project['version']}"
    (agent,) = the("DaemonSet", "gpu-topology-agent")["spec"]["template"]["spec"]["containers"]
    assert agent["image"] == f"gpu-topology-agent:{project['version']}"


def stage(name: str) -> list[str]:
    """The Dockerfile's lines of one stage, its FROM first."""
    lines = [
        line
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    starts = [i for i, line in enumerate(lines) if line.startswith("FROM ")]
    ends = [*starts[1:], len(lines)]
    (found,) = (
        lines[first:end]
        for first, end in zip(starts, ends, strict=True)
        if lines[first].endswith(f" AS {name}")
    )
    return found


@pytest.mark.parametrize("image", ["agent", "extender"])
def test_the_dockerfile_installs_hashed_packages_and_then_ours(image: str) -> None:
    steps = stage(image)
    assert steps[0] == f"FROM ${{PYTHON}} AS {image}"
    installs = [line for line in steps if "pip install" in line]
    assert len(installs) == 2
    assert installs[0].endswith(f"--require-hashes -r requirements/{image}.txt")
    assert installs[1].endswith("--no-deps --no-index dist/*.whl")
    assert "COPY --from=wheel /opt/build/dist dist" in steps
    made = stage("wheel")
    assert made[0] == steps[0].replace(image, "wheel")
    (builder,) = (line for line in made if "pip install" in line)
    assert builder.endswith("--require-hashes -r requirements/build.txt")
    copied = {line.split()[1] for line in made if line.startswith("COPY")}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(build["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    (entry,) = (json.loads(s.removeprefix("ENTRYPOINT ")) for s in steps if "ENTRYPOINT" in s)
    assert entry == ["gpu-topology"]
    assert entry[0] in build["project"]["scripts"]


def test_docker_is_sent_what_the_dockerfile_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    ignored, *rest = [line for line in lines if not line.startswith("#")]
    sent = {line.removeprefix("!") for line in rest if line.startswith("!")}
    assert (ignored, set(rest) - {f"!{name}" for name in sent}) == ("*", {"**/__pycache__"})
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.M)
    assert sent == {path.partition("/")[0] for line in copies for path in line.split()}
    assert all((ROOT / name).exists() for name in sent)


def test_the_image_runs_as_the_user_that_the_pod_asks_for() -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", "\n".join(stage("extender")), re.MULTILINE)
    whole = pod_spec()["securityContext"]
    assert user == (str(whole["runAsUser"]), str(whole["runAsGroup"]))
    users = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(users) == {user}


def test_the_dockerfile_has_a_stage_for_each_image() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert stages == ["wheel", "agent", "extender"]  # the last is what `docker build .` builds
