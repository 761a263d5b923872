"""``gpu-topology doctor``: what each check says of an installation in which one thing is wrong."""

from collections.abc import Callable, Iterator

import pytest
from prometheus_client.samples import Sample

from scheduler_extender.doctor.checks import CHECKS
from scheduler_extender.doctor.findings import State
from scheduler_extender.doctor.installationchecks import SOON, certificates
from scheduler_extender.doctor.observations import Seen
from tests.commands import ROOT
from tests.fakes.apiserver import FakeApiServer
from tests.installation import (
    BUS,
    CASES,
    SYSTEM,
    Installation,
    by_dra,
    condition,
    in_shadow,
    second_scheduler,
    without_flag,
)
from tests.scheduler_extender.fakeinstallation import Site
from tests.test_docs import anchors


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with FakeApiServer() as fake:
        yield Site(fake, tmp_path_factory.mktemp("doctor"))


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    with installed.restored():
        yield installed


def test_a_good_installation_is_reported_as_well(site: Site) -> None:
    found = site.findings()
    bad = [each.text for every in found.values() for each in every if each.state is not State.OK]
    assert len(bad) == 1
    assert (
        "the extender does not answer a request made with config.yaml: "
        "https://127.0.0.1:1/scheduler/filter: Conn" in bad[0]
    )
    assert list(found) == list(CHECKS)


@pytest.mark.parametrize(("breaks", "check", "state", "message"), CASES)
def test_what_is_wrong_is_reported_with_what_to_do(
    site: Site, breaks: Callable[[Installation], None], check: str, state: str, message: str
) -> None:
    breaks(site)
    found = site.findings()
    findings = [each for each in found[check] if each.state.value == state and message in each.text]
    assert findings, found[check]
    for each in findings:
        assert each.remedy
        page, _, anchor = each.page.partition("#")
        assert anchor in anchors(ROOT / page), each.page


def test_beside_a_second_scheduler_the_first_one_needs_no_configuration(site: Site) -> None:
    without_flag(site)
    second_scheduler(site, (ROOT / "manifests/scheduler/kube-scheduler-config.yaml").read_text())
    found = site.findings()["scheduler"]
    assert not [each.text for each in found if "kube-scheduler-cp1" in each.text]
    (second,) = (each for each in found if each.text.startswith("ConfigMap gpu-topology-scheduler"))
    assert second.state is not State.FAIL, second


def test_in_shadow_an_entry_needs_neither_bind_nor_patience(site: Site) -> None:
    in_shadow(site)
    site.configure(lambda entry: entry.update(filterVerb="filter"))
    (found,) = site.findings()["scheduler"]
    assert (found.state, found.text[-11:]) == (State.OK, ", in shadow")


@pytest.mark.parametrize(
    ("left", "state", "message"),
    [
        (-7200.0, State.FAIL, "the extender's certificate expired 2 h ago"),
        (7200.0, State.WARN, "the extender's certificate expires in 2 h"),
        (SOON, State.OK, "the extender's certificate expires in 14 d"),
    ],
)
def test_the_end_of_a_certificate_is_also_known_from_the_metrics(
    left: float, state: State, message: str
) -> None:
    ends = Sample("gpu_topology_tls_expires_timestamp_seconds", {}, 1e9 + left)
    (found,) = certificates(Seen(system=SYSTEM, version="0.1.0", observed_at=1e9, metrics=[ends]))
    assert (found.state, found.text) == (state, message)


def test_nodes_with_a_dra_driver_need_no_plugin(site: Site) -> None:
    by_dra(BUS, "nvidia.com/gpu")(site)
    site.report(conditions=[condition("Ready"), condition("Complete", "False", "no plugin")])
    site.kubelet["topologyManagerPolicy"] = "single-numa-node"
    found = site.findings()
    assert [each.text for each in found["plugin"]] == ["1 of 1 nodes: a DRA driver"]
    states = {found[name][-1].state for name in ("plugin", "agents", "kubelets", "probe")}
    assert states == {State.OK}, found


@pytest.mark.parametrize("hidden", ["deviceclasses", "resourceclaims", "resourceslices"])
def test_a_client_that_may_not_read_dra_objects_does_not_read_that_all_is_well(
    site: Site, hidden: str
) -> None:
    by_dra(BUS, "nvidia.com/gpu")(site)
    found = site.findings(f"/{hidden}")
    ((state, text),) = [(each.state, each.text) for each in found["plugin"]]
    assert state is State.UNSEEN
    assert text.endswith(f"whether DRA does is unknown: you may not list {hidden}")
    others = [each for name, message in found.items() if name != "probe" for each in message]
    assert State.FAIL not in {each.state for each in others}, others


DENIED = [
    pytest.param(["/customresourcedefinitions/"], "resource", id="definitions"),
    pytest.param(["/validatingadmissionpolicies"], "policies", id="policies"),
    pytest.param(["/validatingadmissionpolicybindings"], "policies", id="bindings"),
    pytest.param(["/deployments/"], "extender", id="deployments"),
    pytest.param(["/leases/"], "extender", id="leases"),
    pytest.param(["/secrets/", "/configmaps/"], "certificates", id="secrets"),
    pytest.param(["/api/v1/nodes$"], "features", id="nodes"),
    pytest.param(["/gputopologies"], "agents", id="records"),
    pytest.param(["/proxy/configz"], "kubelets", id="kubelets"),
]


@pytest.mark.parametrize(("paths", "check"), DENIED)
def test_what_may_not_be_read_is_not_seen_and_nothing_fails_for_that(
    site: Site, paths: list[str], check: str
) -> None:
    found = site.findings(*paths)
    assert any("you may not read" in each.text for each in found[check]), found[check]
    every = [each for name, message in found.items() if name != "probe" for each in message]
    assert {each.state for each in every} <= {State.OK, State.UNSEEN}, every


def test_a_client_that_may_read_nothing_reads_only_that(site: Site) -> None:
    found = site.findings(".*")
    assert {each.state for name in CHECKS for each in found[name]} == set(State) - {State.WARN}
    assert [each.state for each in found["scheduler"]] == [State.OK], "the file is ours to read"
