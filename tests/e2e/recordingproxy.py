"""A proxy between kube-scheduler and the extender that records every request and answer.

It changes nothing: the extender sees the scheduler's own requests, and the scheduler its answers.
"""

import json
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

import httpx

from tests.fakes.httpserver import answering
from tests.waiting import PATIENCE


@dataclass(frozen=True, slots=True)
class Call:
    """One request of kube-scheduler's: the verb, the pod's name, what was asked and answered."""

    verb: str
    pod: str
    asked: dict[str, Any]
    answer: dict[str, Any]

    @property
    def passed(self) -> list[str]:
        """The nodes that passed filter."""
        return list(self.answer.get("NodeNames") or self.answer.get("nodenames") or ())

    @property
    def offered(self) -> list[str]:
        """The nodes that filter was asked about: those that passed the scheduler's own filters."""
        return list(self.asked.get("NodeNames") or self.asked.get("nodenames") or ())

    @property
    def error(self) -> str:
        """Why a bind was refused; empty where it was not."""
        return str(self.answer.get("Error") or self.answer.get("error") or "")


def gang_cycle(calls: Sequence[Call], pods: Sequence[str]) -> list[Call]:
    """The filter and bind calls of the cycle in which a gang was placed: each member is filtered,
    then each is bound, and no pod is filtered in between.

    kube-scheduler may have begun earlier and given up, as where a member has changed meanwhile.
    """
    found = [call for call in calls if call.pod in pods and call.verb in ("filter", "bind")]
    first = next(at for at, call in enumerate(found) if call.verb == "bind")
    filtered, bound = found[first - len(pods) : first], found[first:]
    assert sorted(call.pod for call in filtered) == sorted(pods)
    assert [call.verb for call in bound] == ["bind"] * len(pods)
    assert sorted(call.pod for call in bound) == sorted(pods)
    return [*filtered, *bound]


class RecordingProxy:
    """Passes requests on to the extender's port while the context is open.

    It shows the scheduler the extender's certificate, and the extender the scheduler's, both out of
    the folder ``tls``.
    """

    def __init__(self, port: int, tls: Path, extender: int) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(tls / "extender.crt", tls / "extender.key")
        self._server = answering(self.ask, served, port=port)
        shown = ssl.create_default_context(cafile=tls / "ca.crt")
        shown.load_cert_chain(tls / "scheduler.crt", tls / "scheduler.key")
        url = f"https://127.0.0.1:{extender}"
        self._extender = httpx.Client(base_url=url, verify=shown, timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)
        self._extender.close()

    def ask(self, request: BaseHTTPRequestHandler, asked: bytes) -> tuple[int, bytes]:
        """Pass one request on; the status and body of the answer."""
        try:
            answer = self._extender.post(request.path, content=asked)
        except httpx.TransportError as error:
            return 502, str(error).encode()
        self._note(request.path.rpartition("/")[2], asked, answer)
        return answer.status_code, answer.content

    def _note(self, verb: str, asked: bytes, answer: httpx.Response) -> None:
        question, message = json.loads(asked), answer.json() if answer.is_success else {}
        pod = question.get("Pod") or question.get("pod") or {}
        name = pod.get("metadata", {}).get("name") or question.get("PodName") or ""
        reported = message if isinstance(message, dict) else {"scores": message}
        with self._lock:
            self._calls.append(Call(verb, name, question, reported))

    def bound(self, pods: Sequence[str]) -> bool:
        """Whether the binds of all these pods have been answered."""
        return set(pods) <= {call.pod for call in self.calls() if call.verb == "bind"}

    def calls(self) -> list[Call]:
        """What went through so far, in the order of the answers."""
        with self._lock:
            return list(self._calls)
