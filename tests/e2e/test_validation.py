"""Annotations refused where they are written, by the component `options/validation`.

A real API server judges values, and so does the parser of the extender, which is the contract: what
the API server refuses the parser refuses too, with the same reason, and of each key it refuses what
people get wrong.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from scheduler_extender.annotations import KEYS, PREFIX, Malformed, PodRequest, parse
from scheduler_extender.groupreference import GROUP_KEYS
from scheduler_extender.wire import Pod
from tests.e2e.agentidentity import ROOT
from tests.e2e.cluster import PODS
from tests.e2e.controlplane import ControlPlane
from tests.e2e.pods import gpu_pod
from tests.waiting import eventually

pytestmark = pytest.mark.e2e
COMPONENT = ROOT / "manifests" / "base" / "options" / "validation"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
GROUPED = {"group": "train", "group-size": "4", "group-domain": "nvlink-domain"}
DRY = {"dryRun": "All"}
Object = dict[str, Any]


@pytest.fixture(scope="module")
def api(
    control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """An API server with the component, once it is in force."""
    folder = tmp_path_factory.mktemp("validation")
    with ControlPlane(folder, control_plane_binaries) as plane, plane.client() as found:
        plane.kubectl("apply", "--server-side", "-f", str(COMPONENT / "policies.yaml"))
        eventually(lambda: not made(found, {"link": "nvlnk"}).is_success, "the policy is in force")
        yield found


def pod(annotations: Object) -> Object:
    found = gpu_pod("tried", [2])
    found["metadata"]["annotations"] = {PREFIX + k: v for k, v in annotations.items()}
    return found


def made(api: httpx.Client, annotations: Object) -> httpx.Response:
    return api.post(PODS, json=pod(annotations), params=DRY)


def parsed(annotations: Object) -> Any:
    found = pod(annotations)
    found["metadata"]["uid"] = "tried"
    asks = parse(msgspec.convert(found, Pod))
    return asks.request if isinstance(asks, PodRequest) else asks


GOOD = [
    ("play-seconds", "30"),
    *[("link", v) for v in ("nvlink", "NVLink", " pix ", "node")],
    *[("min-nvlinks", v) for v in ("1", "18", "04")],
    *[("min-bandwidth", v) for v in ("100", "37.5", "0.000001")],
    *[
        ("min-gpu-memory", v)
        for v in ("40Gi", "1e9", "79.5Gi", "+65536Ki", "67108864", "99999999.")
    ],
    *[("gpu-model", v) for v in ("A100*", "NVIDIA A100*, H100", "tesla_v100?")],
    # As the block scalars of YAML end, and fold.
    *[("gpu-model", v) for v in ("A100*\n", "A100*,\n  H100\n", "A100\tSXM4*")],
    # White space as it comes out of documents that people copy from.
    *[("gpu-model", "NVIDIA\u00a0A100*"), ("gpu-model", "A100*,\u2003H100"), ("link", "\u00a0pix")],
    *[("link", "nvlink\n"), ("policy", "preferred\n"), ("min-gpu-memory", "40Gi\n")],
    *[("same-numa", v) for v in ("true", "False")],
    *[("shape", v) for v in ("ring", "connected", "Pairwise")],
    *[("nic", v) for v in ("pix", "node")],
    *[("sharing", "shared"), ("policy", "preferred"), ("gpu-memory", "20Gi")],
    *[("same-gpu", "false"), ("spread-gpus", "true")],
]
BAD = [
    *[("link", v) for v in ("nvlnk", "", "sys", "nvlink,pix", "x" * 50)],
    *[("min-nvlinks", v) for v in ("0", "19", "-1", "two", "1.5")],
    *[("min-bandwidth", v) for v in ("0", "-1", "1e3", "fast", "1.", ".5")],
    *[("min-gpu-memory", v) for v in ("40GB", "", "0", "-1Gi", "Gi", "40 Gi", "1e3Ki")],
    *[("min-gpu-memory", v) for v in ("80", "040000", "1048576", "67108863", "63Mi", "1.", "0.5")],
    *[("gpu-model", v) for v in ("", "A100*,", "A100;H100", "[AH]100")],
    *[("same-numa", v) for v in ("yes", "1", "")],
    *[("shape", "star"), ("nic", "nvlink"), ("nic", "phx")],
    *[("sharing", "none"), ("policy", "must"), ("gpu-memory", "20GiB"), ("gpu-memory", "40000")],
    *[("same-gpu", "on"), ("spread-gpus", "2"), ("lnk", "nvlink"), ("Link", "nvlink")],
    # A letter that folds to one of ours.
    *[("link", "nvlin\u212a"), ("gpu-model", "\u212a80")],
    *[("group", v) for v in ("", "-a", "a b")],
    *[("group-size", v) for v in ("1", "4097", "many")],
    *[("group-domain", v) for v in ("", "a/b/c", "rack!")],
]


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_what_can_be_read_is_taken(api: httpx.Client, key: str, value: str) -> None:
    assert not isinstance(parsed({key: value}), Malformed)
    answer = made(api, {key: value})
    assert answer.is_success, answer.text


@pytest.mark.parametrize(("key", "value"), BAD)
def test_what_cannot_be_read_is_refused_with_the_extenders_reason(
    api: httpx.Client, key: str, value: str
) -> None:
    annotations = {**GROUPED, key: value} if key in GROUP_KEYS else {key: value}
    reason = parsed(annotations)
    assert isinstance(reason, Malformed)
    answer = made(api, annotations)
    assert answer.status_code == 422, answer.text
    assert answer.json()["message"].endswith(f"denied request: {reason.reason}")


def test_a_group_is_taken(api: httpx.Client) -> None:
    assert made(api, GROUPED).is_success
    assert made(api, {**GROUPED, "group-domain": "topology.kubernetes.io/zone"}).is_success


def test_every_key_has_a_rule() -> None:
    assert {key for key, _ in BAD} >= {*KEYS, *GROUP_KEYS}


def test_nothing_is_refused_that_the_extender_reads(api: httpx.Client) -> None:
    rng = random.Random(15)
    words = [v for _, v in (*GOOD, *BAD)]
    letters = "aZ09.,*?-_/ +eEkKmMGi\t()\u212a\u00a0\u2003\x0b\x85"
    refused = 0
    for _ in range(250):
        key = rng.choice([*KEYS, *GROUP_KEYS])
        value = rng.choice(words)
        if rng.random() < 0.7:
            at = rng.randrange(len(value) + 1)
            value = value[:at] + rng.choice(letters) + value[at + rng.randrange(2) :]
        annotations = {**GROUPED, key: value} if key in GROUP_KEYS else {key: value}
        found, answer = parsed(annotations), made(api, annotations)
        refused += not answer.is_success
        if not answer.is_success:
            assert isinstance(found, Malformed), (key, value, answer.text)
    assert refused > 60


def test_a_long_value_is_refused(api: httpx.Client) -> None:
    assert isinstance(parsed({"gpu-model": "a" * 1025}), Malformed)
    answer = made(api, {"gpu-model": "a" * 1025})
    assert "at most 1024 characters are allowed" in answer.json()["message"]


def deployment(asked: Object, **meta: Object) -> Object:
    template = pod(asked)
    template["metadata"] = {
        "labels": {"app": "x"},
        "annotations": template["metadata"]["annotations"],
    }
    template["spec"]["restartPolicy"] = "Always"
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    metadata = {"name": "tried", **meta}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def test_templates_are_judged_where_they_change(api: httpx.Client) -> None:
    refused = api.post(DEPLOYMENTS, json=deployment({"link": "nvlnk"}), params=DRY)
    assert 'annotation gpu-topology.io/link="nvlnk": allowed are' in refused.json()["message"]
    api.post(DEPLOYMENTS, json=deployment({"link": "nvlink"})).raise_for_status()
    merge = {"Content-Type": "application/merge-patch+json"}
    patch = {"spec": {"template": {"metadata": {"annotations": {PREFIX + "link": "nvlnk"}}}}}
    answer = api.patch(f"{DEPLOYMENTS}/tried", json=patch, headers=merge)
    assert answer.status_code == 422, answer.text
    answer = api.patch(f"{DEPLOYMENTS}/tried", json={"spec": {"replicas": 3}}, headers=merge)
    assert answer.is_success, answer.text


def test_a_cron_jobs_template_is_judged(api: httpx.Client) -> None:
    def cron_job(value: str) -> Object:
        template = pod({"link": value})
        template["metadata"].pop("name")
        template["spec"]["restartPolicy"] = "Never"
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}
        kind = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tried"}}
        return {**kind, "spec": spec}

    assert api.post(CRON_JOBS, json=cron_job("nvlink"), params=DRY).is_success
    assert api.post(CRON_JOBS, json=cron_job("nvlnk"), params=DRY).status_code == 422


def prefixed(prefix: str) -> Object:
    found = pod({})
    found["metadata"]["annotations"] = {f"{prefix}link": "nvlink"}
    return found


ON_ITSELF = (
    "of the Deployment itself do not reach its pods: write them under "
    "spec.template.metadata.annotations"
)
OURS_ONLY = "only annotations under gpu-topology.io/ have an effect"


@pytest.mark.parametrize(
    ("where", "body", "words"),
    [
        (DEPLOYMENTS, deployment({}, annotations={PREFIX + "link": "nvlink"}), ON_ITSELF),
        (
            DEPLOYMENTS,
            deployment({}, labels={PREFIX + "link": "nvlink"}),
            "labels gpu-topology.io/... have no",
        ),
        (PODS, prefixed("gpu-topology/"), OURS_ONLY),
        (PODS, prefixed("gputopology/"), OURS_ONLY),
        (PODS, prefixed("gpu-topology.com/"), OURS_ONLY),
        (DEPLOYMENTS, deployment({"link": "nvlink"}), ""),
    ],
    ids=["on the Deployment", "a label", "no .io", "no dash", "of .com", "nothing of ours"],
)
def test_what_reaches_no_pod_is_warned_of(
    api: httpx.Client, where: str, body: Object, words: str
) -> None:
    body = {**body, "metadata": {**body["metadata"], "name": "warned"}}

    def warned() -> str:
        answer = api.post(where, json=body, params=DRY)
        assert answer.is_success, answer.text
        return " ".join(answer.headers.get_list("Warning"))

    if words:
        eventually(lambda: words in warned(), words)
    else:
        assert "gpu-topology" not in warned()
