"""A real control plane on loopback: etcd, kube-apiserver, kube-scheduler, kube-controller-manager.

:mod:`tests.e2e.building` builds them from source.
"""

import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from tests.programs import free_port
from tests.waiting import FOREVER, PATIENCE, eventually

SCHEDULER = "system:kube-scheduler"
CONTROLLER_MANAGER = "system:kube-controller-manager"
KUBECTL = Path(sys.executable).with_name("kubectl")
# In the order in which they start.
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# Those that tests need. Others would work against tests that make and break nodes by hand: the node
# controllers taint and empty nodes without a kubelet.
CONTROLLERS = ("replicaset-controller", "disruption-controller", "resourcequota-controller")
PERIOD = 0.05  # seconds between two looks at what the control plane does


class ControlPlaneFailed(Exception):  # noqa: N818
    """A part did not start; the message ends with its log."""


def create_node(
    client: httpx.Client, name: str, gpus: int, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Create a Node that its kubelet would call Ready, and return it as stored.

    Raises :class:`httpx.HTTPStatusError` where the server refuses it.
    """
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110"}
    if gpus:
        amounts["nvidia.com/gpu"] = str(gpus)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "E2e"}],
        },
    }
    answer = client.post("/api/v1/nodes", json=node)
    answer.raise_for_status()
    return answer.json()  # type: ignore[no-any-return]


class Process:
    """A child in a session of its own, with a log file; it dies with us whatever happens."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [*DIES_WITH_PARENT, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._child.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def stop(self, number: int = signal.SIGTERM, patience: float = 10.0) -> None:
        """Stop it, by force where it takes longer than ``patience`` seconds; both are well."""
        if self.alive():
            self._child.send_signal(number)
            try:
                self._child.wait(patience)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()

    def signal(self, number: int) -> None:
        """Send it a signal, as SIGSTOP and SIGCONT."""
        if self.alive():
            self._child.send_signal(number)

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")


# A program that becomes the one named behind it, and is killed when its parent ends
# (PR_SET_PDEATHSIG). ``preexec_fn`` would do the same in a forked copy of this process, and a copy
# of gRPC's threads, which the fake kubelets have here, may hang before it gets there.
DIES_WITH_PARENT = (
    *(sys.executable, "-ISc"),
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])",
)


class ControlPlane:
    """etcd and kube-apiserver, running while the context is open; schedulers are started into it.

    ``users`` maps a name to its groups; each gets a bearer token beside the admin's and the
    scheduler's. The API server writes down what the ``audited`` ask (:meth:`audit`).
    """

    def __init__(
        self,
        folder: Path,
        bin_folder: Path,
        users: Mapping[str, Sequence[str]] | None = None,
        audited: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._bin = bin_folder
        self._port = free_port()
        self._etcd = (free_port(), free_port())
        self._processes: dict[str, Process] = {}
        self.apiserver_flags: list[str] = []  # Further flags of kube-apiserver, for its next start
        self.scheduler_flags: list[str] = []  # the same for kube-scheduler
        self.url = f"https://127.0.0.1:{self._port}"
        self.tokens = {
            name: secrets.token_hex(16)
            for name in ("admin", SCHEDULER, CONTROLLER_MANAGER, *(users or {}))
        }
        masters = ["system:masters"]
        # Controllers that share one identity need the rights of all of them.
        self._groups = {"admin": masters, CONTROLLER_MANAGER: masters, **(users or {})}
        self._issued: dict[str, str] = {}
        self._audited = list(audited)

    def __enter__(self) -> Self:
        try:
            self.start_etcd()
            self.start_apiserver()
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_all()

    @property
    def ca(self) -> Path:
        """The API server's self-signed certificate."""
        return self._folder / "certs" / "apiserver.crt"

    def add_issued(self, user: str, token: str) -> None:
        """Let :meth:`client` and :meth:`kubeconfig` use a token that the API server issued itself.

        ``user`` is a name of ours; who it is to the API server stands in the token.
        """
        self._issued[user] = token

    def _token(self, user: str) -> str:
        return self._issued[user] if user in self._issued else self.tokens[user]

    def kubectl(self, *words: str) -> str:
        """What kubectl prints as the admin; a failure ends the test with what it said."""
        command = [str(KUBECTL), f"--kubeconfig={self.kubeconfig()}", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FOREVER)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def client(self, user: str = "admin") -> httpx.Client:
        """A client of the API as a user."""
        headers = {"Authorization": f"Bearer {self._token(user)}"}
        context = ssl.create_default_context(cafile=self.ca)
        return httpx.Client(base_url=self.url, headers=headers, verify=context, timeout=PATIENCE)

    def grant(
        self,
        user: str,
        rules: Sequence[Mapping[str, Any]],
        *,
        name: str = "",
        namespace: str = "",
    ) -> None:
        """Give a user these rights, in one namespace or everywhere; ``name`` is the role's, by
        default the user's."""
        group = "rbac.authorization.k8s.io"
        kind = "Role" if namespace else "ClusterRole"
        where = f"/apis/{group}/v1" + (f"/namespaces/{namespace}" if namespace else "")
        role = {"metadata": {"name": name or user}}
        reference = {"kind": kind, "name": name or user, "apiGroup": group}
        subject = {"kind": "User", "name": user, "apiGroup": group}
        bound = {**role, "roleRef": reference, "subjects": [subject]}
        with self.client() as admin:
            admin.post(f"{where}/{kind.lower()}s", json={**role, "rules": rules}).raise_for_status()
            admin.post(f"{where}/{kind.lower()}bindings", json=bound).raise_for_status()

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig file for a user."""
        path = self._folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self._token(user)}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def start_apiserver(self) -> None:
        """Start kube-apiserver on its port and data; again after :meth:`stop_apiserver`."""
        tokens = self._folder / "tokens.csv"
        rows = [
            f'{token},{name},{name},"{",".join(self._groups.get(name, []))}"'
            for name, token in self.tokens.items()
        ]
        tokens.write_text("\n".join(rows) + "\n")
        # The server makes its own certificate before it reads this key, so one key serves for both.
        key = self.ca.with_suffix(".key")
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd[0]}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--cert-dir={self._folder / 'certs'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=Node,RBAC",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://e2e.invalid",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",  # as kubeadm has it
            # Most controllers do not run here: nobody would make the default service account, and
            # nobody would take the taint off a new node.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            *self.apiserver_flags,
            *self._audit_flags(),
        )
        self._wait("kube-apiserver", self._serves)

    def _audit_flags(self) -> list[str]:
        if not self._audited:
            return []
        rules = [{"level": "Metadata", "users": self._audited}, {"level": "None"}]
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": rules,
        }
        path = self._folder / "audit-policy.yaml"
        path.write_text(yaml.safe_dump(policy))
        return [f"--audit-policy-file={path}", f"--audit-log-path={self._audit_log}"]

    @property
    def _audit_log(self) -> Path:
        return self._folder / "audit.log"

    def audit(self) -> list[dict[str, Any]]:
        """What the audited users have asked and been answered so far, as audit events."""
        # The last line may be half written.
        lines = self._audit_log.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def stop_apiserver(self) -> None:
        """An outage: the API server goes away, its data stays."""
        # A polite stop would wait for the open watches to end, and they do not: 10 s, then a kill.
        self._processes.pop("kube-apiserver").stop(signal.SIGKILL)

    def stop_etcd(self) -> None:
        """End etcd with SIGKILL; its data stays."""
        self._processes.pop("etcd").stop(signal.SIGKILL)

    def pid(self, name: str) -> int:
        """The process of etcd, kube-apiserver or kube-scheduler."""
        return self._processes[name].pid

    def signal(self, name: str, number: int) -> None:
        """Send a part a signal, as SIGSTOP and SIGCONT."""
        self._processes[name].signal(number)

    def start_scheduler(self, configuration: str) -> Process:
        """Start kube-scheduler; ``{kubeconfig}`` in the configuration is filled in."""
        path = self._folder / "scheduler.yaml"
        kubeconfig = str(self.kubeconfig(SCHEDULER))
        path.write_text(configuration.replace("{kubeconfig}", kubeconfig))
        return self.start_scheduler_with(f"--config={path}", "--secure-port=0")

    def start_scheduler_with(self, *flags: str) -> Process:
        """Start kube-scheduler with these flags."""
        return self._start("kube-scheduler", *flags, "-v=3", *self.scheduler_flags)

    def stop_scheduler(self) -> None:
        """Stop kube-scheduler."""
        self._processes.pop("kube-scheduler").stop()

    def start_controllers(self, controllers: Sequence[str] = CONTROLLERS, *flags: str) -> Process:
        """Start kube-controller-manager with these of its controllers; most tests need none."""
        return self._start(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig(CONTROLLER_MANAGER)}",
            f"--controllers={','.join(controllers)}",
            "--leader-elect=false",
            "--secure-port=0",
            "-v=2",
            *flags,
        )

    def log(self, name: str) -> str:
        """The log of a part, all its starts together."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    @property
    def etcd_url(self) -> str:
        """Where etcd answers clients."""
        return f"http://127.0.0.1:{self._etcd[0]}"

    def start_etcd(self) -> None:
        """Start etcd on its ports and data; again after :meth:`stop_etcd`."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self._etcd)
        self._start(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
        )
        self._wait("etcd", lambda: httpx.get(f"{client}/health", timeout=PATIENCE).is_success)

    def _serves(self) -> bool:
        if not self.ca.exists():
            return False
        with self.client() as client:
            return client.get("/readyz").is_success

    def _start(self, name: str, *flags: str) -> Process:
        log = self._folder / f"{name}.log"
        self._processes[name] = Process(name, [str(self._bin / name), *flags], log)
        return self._processes[name]

    def _wait(self, name: str, serves: Any) -> None:
        process = self._processes[name]

        def starts() -> bool:
            if not process.alive():
                return True
            try:
                return bool(serves())
            except (httpx.TransportError, OSError):
                return False

        with suppress(AssertionError):
            eventually(starts, every=0.1)
            if process.alive():
                return
        raise ControlPlaneFailed(f"{name} did not start:\n{process.text()[-3000:]}")

    def _stop_all(self) -> None:
        # Clients first, whatever was restarted since: a server waits for those that watch it.
        for name in reversed(PROGRAMS):
            if name in self._processes:
                self._processes.pop(name).stop()
