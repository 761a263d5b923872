"""An installation on a fake API server, and what ``gpu-topology doctor`` says of it."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from scheduler_extender.cli import main
from scheduler_extender.doctor.checks import judged
from scheduler_extender.doctor.collector import Asked, Look
from scheduler_extender.doctor.findings import Finding
from scheduler_extender.doctor.observations import Configuration
from tests import installation
from tests.commands import ROOT, Done, asked
from tests.fakes.apiserver import FakeApiServer
from tests.installation import SYSTEM, Json, now
from topology.kubeapi.apiserver import ApiServer

# The collections in which the manifests' objects are.
WHERE = {
    "CustomResourceDefinition": installation.CRDS,
    "ValidatingAdmissionPolicy": installation.POLICIES,
    "ValidatingAdmissionPolicyBinding": installation.BINDINGS,
    "Deployment": installation.DEPLOYMENTS,
    "Service": f"/api/v1/namespaces/{SYSTEM}/services",
}
FILES = ("base/crd", "base/policy", "agent/policy", "base/deployment", "base/service")


class Site(installation.Installation):
    """The installation; everything is well."""

    def __init__(self, fake: FakeApiServer, folder: Path) -> None:
        tls = folder / "tls"
        assert asked(main, "certificates", "--output", tls).returncode == 0
        super().__init__(folder, tls)
        self.fake = fake
        self.kubeconfig = fake.write_kubeconfig(folder / "kubeconfig")
        for found in _manifests():
            if found["metadata"]["name"] == "gpu-topology-extender" and found["kind"] != "Service":
                found["status"] = {"readyReplicas": 2}
            if found["kind"] == "Service":
                found["spec"]["clusterIPs"] = ["10.96.0.5"]
            if found["kind"] in WHERE:
                fake.put(WHERE[found["kind"]], found)
        fake.put(installation.NODES, installation.node(**{"nvidia.com/gpu.present": "true"}))
        fake.put(installation.DAEMON_SETS, installation.plugin())
        fake.put(installation.LEASES, installation.lease())
        fake.put(installation.SLICES, installation.endpoint_slice())
        fake.put(installation.SECRETS, installation.secret(tls))
        fake.put(installation.SCHEDULERS, installation.static_pod(f"--config={self.file}"))
        self.write(installation.RECORD, installation.record())
        url = "https://127.0.0.1:1/scheduler"  # nobody listens there
        self.file.write_text(yaml.safe_dump(installation.configuration(tls, url)))
        fake.proxied[installation.CONFIGZ] = {"kubeletconfig": self.kubelet}

    def read(self, path: str) -> Json:
        return self.fake.read(path)

    def write(self, path: str, found: Json) -> None:
        """As the real one does, the API server says when what was written."""
        written = [{"time": now(), "subresource": part} for part in ("status", "")]
        if "observedAt" in found.get("status", {}) or "renewTime" in found.get("spec", {}):
            found["metadata"]["managedFields"] = written
        self.fake.put(path.rpartition("/")[0], found)

    def delete(self, path: str) -> None:
        self.fake.remove(path)

    def findings(self, *hidden: str) -> dict[str, list[Finding]]:
        """What the checks say, told of the configuration's file; the paths that are ``hidden`` may
        not be read."""
        for path in hidden:
            self.fake.refuse(403, None, path=path)
        file = Configuration(where="config.yaml", text=self.file.read_text())
        api = ApiServer.from_kubeconfig(self.kubeconfig)
        try:
            return judged(Look(api, Asked(system=SYSTEM, version="0.1.0", files=[file])).all())
        finally:
            api.close()
            self.fake.allow()

    def doctor(self, *words: object) -> Done:
        """What the command says."""
        return self.command(*words, "--kubeconfig", self.kubeconfig)

    def command(self, *words: object) -> Done:
        """What the command says to these words alone."""
        return asked(main, "doctor", *words)


def _manifests() -> Iterator[Json]:
    for name in FILES:
        text = (ROOT / "manifests" / f"{name}.yaml").read_text()
        yield from (found for found in yaml.safe_load_all(text) if found)
