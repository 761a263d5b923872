"""The extender in configurations of kube-scheduler: merged, changed and taken out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler_extender.installing import schedulerconfig
from scheduler_extender.installing.flags import Settings
from scheduler_extender.installing.schedulerconfig import SHIPPED, Place
from scheduler_extender.installing.yamledit import EditError

SETTINGS: Settings = [
    (["clientConnection", "kubeconfig"], "/etc/scheduler.conf"),
    (["enableProfiling"], False),
]
PLACE = Place("10.96.7.8", "gpu-topology-system", "/etc/here", SETTINGS)
FOREIGN = Path(__file__).with_name("foreign.yaml").read_text()
GPU = "nvidia.com/gpu"
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def shipped() -> dict[str, Any]:
    """The entry that we ship, for :data:`PLACE`."""
    (entry,) = yaml.safe_load(SHIPPED.read_text())["extenders"]
    files = {"caFile": "ca.crt", "certFile": "scheduler.crt", "keyFile": "scheduler.key"}
    tls = {field: f"/etc/here/{name}" for field, name in files.items()}
    name = {"serverName": "gpu-topology.gpu-topology-system.svc"}
    return {**entry, "urlPrefix": "https://10.96.7.8:8888/scheduler", "tlsConfig": {**tls, **name}}


def test_a_new_one_is_the_one_that_we_ship() -> None:
    wanted = yaml.safe_load(SHIPPED.read_text())
    wanted["clientConnection"] = {"kubeconfig": "/etc/scheduler.conf"}
    wanted["enableProfiling"] = False
    new = schedulerconfig.new(PLACE)
    assert yaml.safe_load(new) == {**wanted, "extenders": [shipped()]}
    assert new.count("#") == SHIPPED.read_text().count("#")
    assert schedulerconfig.says_nothing_else(new, SETTINGS)
    assert not schedulerconfig.says_nothing_else(new + "parallelism: 4\n", SETTINGS)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(FOREIGN, id="another extender, profiles, comments"),
        pytest.param(HEAD, id="nothing else"),
        pytest.param(HEAD + "profiles:\n- {schedulerName: a}", id="no line end"),
    ],
)
def test_what_is_there_stays_and_comes_back(before: str) -> None:
    now = schedulerconfig.merged(before, PLACE)
    data, was = yaml.safe_load(now), yaml.safe_load(before)
    assert data.pop("extenders") == [*was.pop("extenders", []), shipped()]
    assert data == was
    assert [line for line in before.splitlines() if line not in now.splitlines()] == []
    assert schedulerconfig.merged(now, PLACE) == now
    assert schedulerconfig.without(now).rstrip() == before.rstrip()


@pytest.mark.parametrize("empty", ["extenders: []", "extenders:", "extenders: null"])
def test_an_empty_list_is_filled(empty: str) -> None:
    now = schedulerconfig.merged(f"{HEAD}{empty}\n", PLACE)
    assert yaml.safe_load(now)["extenders"] == [shipped()]


def test_json_is_taken_too() -> None:
    now = schedulerconfig.merged(
        '{"kind": "KubeSchedulerConfiguration", "apiVersion": "kubescheduler.config.k8s.io/v1", '
        '"extenders": [{"urlPrefix": "http://x"}]}',
        PLACE,
    )
    assert yaml.safe_load(now)["extenders"] == [{"urlPrefix": "http://x"}, shipped()]


def test_settings_that_a_person_chose_for_the_extender_stay() -> None:
    chosen = schedulerconfig.merged(FOREIGN, PLACE).replace("weight: 5", "weight: 9 # more")
    now = schedulerconfig.merged(chosen, replace(PLACE, address="fd00::1", namespace="gpus"))
    lines = dict(zip(chosen.splitlines(), now.splitlines(), strict=True))
    assert {old.strip(): new.strip() for old, new in lines.items() if old != new} == {
        "- urlPrefix: https://10.96.7.8:8888/scheduler": (
            "- urlPrefix: https://[fd00::1]:8888/scheduler"
        ),
        "serverName: gpu-topology.gpu-topology-system.svc": "serverName: gpu-topology.gpus.svc",
    }


def test_an_entry_without_tls_gets_it() -> None:
    plain = (
        f"{HEAD}extenders:\n- urlPrefix: http://gpu-topology.x.svc:8888/scheduler\n  weight: 2\n"
    )
    (entry,) = yaml.safe_load(schedulerconfig.merged(plain, PLACE))["extenders"]
    fields = ("urlPrefix", "enableHTTPS", "tlsConfig")
    assert entry == {"weight": 2, **{field: shipped()[field] for field in fields}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Pod\napiVersion: v1\n", "kind: KubeSchedulerConfiguration is needed, not 'Pod'"),
        (f"{HEAD}extenders: 3\n", "extenders: a list of mappings is needed"),
        (f"{HEAD}extenders: [3]\n", "extenders: a list of mappings is needed"),
        (
            f"{HEAD}extenders: [{{urlPrefix: http://a, bindVerb: bind}}]\n",
            "extenders: http://a binds pods .bindVerb., which only one extender may",
        ),
        (
            f"{HEAD}extenders: [{{urlPrefix: http://a, managedResources: [{{name: {GPU}}}]}}]",
            "extenders: http://a manages nvidia.com/gpu, which only one extender may",
        ),
        (
            f"{HEAD}extenders: [{{urlPrefix: http://gpu-topology}}, "
            f"{{urlPrefix: http://gpu-topology.a}}]",
            "extenders: 2 entries are for gpu-topology; keep one",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(text: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        schedulerconfig.merged(text, PLACE)


def test_an_address_that_is_none_is_nobodys() -> None:
    foreign = f"{HEAD}extenders: [{{urlPrefix: 'http://[::1'}}]\n"
    assert len(yaml.safe_load(schedulerconfig.merged(foreign, PLACE))["extenders"]) == 2
