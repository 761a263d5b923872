"""What is written into the Lease, beside what others have written there."""

from dataclasses import replace
from pathlib import Path

from scheduler_extender.leader.lease import DRAINED, OFFERED, LeaseStore
from tests.fakes.apiserver import FakeApiServer
from tests.scheduler_extender.leader.replicas import LEASE, NAMESPACE
from topology.kubeapi.apiserver import ApiServer


def test_a_renewal_keeps_labels_and_annotations_of_others(tmp_path: Path) -> None:
    theirs = {"labels": {"app": "x"}, "annotations": {"team": "y"}, "finalizers": ["z/z"]}
    with FakeApiServer() as fake:
        api = ApiServer.from_kubeconfig(fake.write_kubeconfig(tmp_path / "kubeconfig"))
        store = LeaseStore(api, NAMESPACE, LEASE.rpartition("/")[2])
        store.write(replace(store.read(), holder="a", seconds=15.0, term=1), takes=True)
        fake.put(
            LEASE, {**fake.read(LEASE), "metadata": {**fake.read(LEASE)["metadata"], **theirs}}
        )
        offered = store.write(replace(store.read(), offered=True))
        assert fake.read(LEASE)["metadata"]["annotations"] == {"team": "y", OFFERED: "true"}
        drained = store.write(replace(offered, offered=False, drained=1))
        assert fake.read(LEASE)["metadata"]["annotations"] == {"team": "y", DRAINED: "1"}
        assert drained == store.read()
        store.write(replace(drained, drained=-1))
        metadata = fake.read(LEASE)["metadata"]
        assert {field: metadata[field] for field in theirs} == theirs
        fake.remove(LEASE)
        store.write(replace(store.read(), holder="a", seconds=15.0, term=2), takes=True)
        assert "labels" not in fake.read(LEASE)["metadata"], "another Lease"
