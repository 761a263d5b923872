"""Reaches the extender over kubectl port-forward, and opens its map in the browser.

The extender's port for people listens only on the loopback address of its pod. So only a user who
may forward a port of that pod can send requests to it.
"""

import re
import shutil
import signal
import subprocess
import sys
import threading
import webbrowser
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

import msgspec
import typer
import urllib3

from scheduler_extender.annotations import TERM
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.kubeconfig import Access, asking
from scheduler_extender.wire import Pod
from topology.kubeapi.apiserver import ApiError, path

SELECTOR = "app.kubernetes.io/name=gpu-topology,app.kubernetes.io/component=extender"
PEOPLE, METRICS = "admin", "metrics"  # the names of the ports of its container
TIMEOUT = 10.0  # seconds for one answer
BEGINS = 60.0  # seconds for kubectl to open a port; it may ask the user to log in first
READS = 1.0  # seconds to read what kubectl printed last
SAID = 20  # lines of kubectl that are kept
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_LACKS = re.compile(r'cannot (\w+) resource "([\w/]+)"')
_EACH = "Handling connection for "  # kubectl prints this for each connection

T = TypeVar("T")


class Forwarded:
    """A port of the extender's ``pod`` that kubectl forwards to this machine."""

    def __init__(self, flag: str, pod: str, child: subprocess.Popen[str]) -> None:
        self._flag, self._pod, self._child = flag, pod, child
        self._said: deque[str] = deque(maxlen=SAID)
        self._listens_or_ended = threading.Event()
        # kubectl blocks if its output is not read.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.url = ""

    def begin(self, system: str) -> None:
        """Wait until kubectl listens on a local port. Raises :class:`BadInputError` if it fails."""
        self._reader.start()
        self._listens_or_ended.wait(BEGINS)
        if self.url:
            return
        self.end()
        if (lacks := _LACKS.search(" ".join(self._said))) is not None:
            raise BadInputError(_missing(self._flag, f"{lacks[1]} {lacks[2]}", system))
        raise BadInputError(f"{self._flag}: kubectl port-forward: {self._last()}")

    def get(self, path: str, kind: type[T]) -> T:
        """Return the decoded answer. Raises :class:`BadInputError`."""
        return self._answer(path, lambda body: msgspec.json.decode(body, type=kind))

    def text(self, path: str) -> str:
        """Return the answer as text. Raises :class:`BadInputError`."""
        return self._answer(path, bytes.decode)

    def until_it_ends(self) -> str:
        """Wait until kubectl ends, for example with its pod, and return its last line."""
        self._child.wait()
        return self.end()

    def end(self) -> str:
        """End kubectl, and return its last line."""
        self._child.terminate()
        try:
            self._child.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._reader.ident is not None:
            self._reader.join(READS)
        if self._reader.is_alive():
            # A program that kubectl has started keeps the pipe open. Closing it would wait, too.
            self._child.stdout = None
        return self._last()

    def _answer(self, path: str, read: Callable[[bytes], T]) -> T:
        try:
            with urllib3.PoolManager() as pools:
                answer = pools.request("GET", self.url + path, timeout=TIMEOUT, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise BadInputError(
                f"{self._flag}: the pod {self._pod} does not answer: {self.end()}"
            ) from error
        if answer.status != 200:
            said = answer.data[:200].decode("utf-8", "replace")
            raise BadInputError(
                f"{self._flag}: the pod {self._pod} answers {answer.status} for {path}: {said}"
            )
        try:
            return read(answer.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInputError(
                f"{self._flag}: the answer of the pod {self._pod} is not one of an extender"
            ) from error

    def _read(self) -> None:
        """Keep the last lines that kubectl prints, and find the port."""
        assert self._child.stdout is not None  # noqa: S101 (asked for)
        for line in self._child.stdout:
            if line.strip() and not line.startswith(_EACH):
                self._said.append(line.strip())
            if not self.url and (found := _FORWARDED.match(line)) is not None:
                self.url = f"http://127.0.0.1:{found[1]}"
                self._listens_or_ended.set()
        self._listens_or_ended.set()

    def _last(self) -> str:
        return self._said[-1] if self._said else "kubectl printed nothing"


@contextmanager
def forwarded(flag: str, access: Access, system: str, port: str = PEOPLE) -> Iterator[Forwarded]:
    """Forward a port of the leading replica, or of another ready one, while the block runs.

    kubectl ends with the block. Raises :class:`BadInputError`, whose message names the ``flag``.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise BadInputError(f"{flag}: kubectl is not on the PATH; it is needed to forward the port")
    pod = _replica(flag, access, system)
    command = [program]
    command += [] if access.kubeconfig is None else ["--kubeconfig", str(access.kubeconfig)]
    command += [] if access.context is None else ["--context", access.context]
    command += ["--namespace", system, "port-forward", "--address=127.0.0.1", f"pod/{pod}"]
    with (
        _terminated(),
        subprocess.Popen(  # noqa: S603 (kubectl, with the user's own words)
            [*command, f":{port}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child,
    ):
        found = Forwarded(flag, pod, child)
        try:
            found.begin(system)
            yield found
        finally:
            found.end()


def open_map(access: Access, system: str) -> NoReturn:
    """Open the map in the browser once it answers, and wait for Ctrl-C or for kubectl's end.

    Raises :class:`BadInputError`.
    """
    with forwarded("--open", access, system) as port:
        page = f"{port.url}/map"
        port.text("/map")
        typer.echo(f"The map is at {page} until you press Ctrl-C.")
        if not webbrowser.open(page):
            typer.echo("No browser could be started; open the address yourself.", err=True)
        raise BadInputError(f"--open: kubectl port-forward has ended: {port.until_it_ends()}")


def _replica(flag: str, access: Access, system: str) -> str:
    """Return the name of the extender's pod to use: the leader's, if it is ready.

    Only the leader knows the binds that are being written.
    """
    with asking(access) as (api, _):
        try:
            where = path("/api/v1/namespaces", system, "pods")
            body = api.get(where, (("labelSelector", SELECTOR),), timeout=TIMEOUT)
            pods = msgspec.json.decode(body, type=_Pods).items or []
        except ApiError as error:
            if error.status != 403:
                raise
            raise BadInputError(_missing(flag, "list pods", system)) from error
    if not pods:
        raise BadInputError(
            f"{flag}: the namespace {system} has no pod of the extender; give its namespace with "
            "--system"
        )
    # Use only a pod that the kubelet has found ready and that is not being deleted.
    staying = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    ready = [
        pod
        for pod in staying
        if any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())
    ]
    if not ready:
        raise BadInputError(f"{flag}: no pod of the extender in the namespace {system} is ready")
    return max(ready, key=_term).metadata.name


def _missing(flag: str, right: str, system: str) -> str:
    return f"{flag}: you need permission to {right} in the namespace {system}"


def _term(pod: Pod) -> int:
    """Return the last term in which the pod led, 0 if it never did. The latest term's pod leads."""
    number = (pod.metadata.annotations or {}).get(TERM, "").partition(" ")[0]
    return int(number) if number.isdecimal() and len(number) <= 10 else 0


class _Pods(msgspec.Struct):
    items: list[Pod] | None = None


@contextmanager
def _terminated() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the command by an exception, so that kubectl is ended, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {each: signal.signal(each, end) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
