"""The kubelet's configuration, from its file and over HTTPS."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
import trustme

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.httpserver import answering
from topology.agent.model.nodecontext import NOTHING_KNOWN, KubeletConfig
from topology.agent.probes.node import (
    ConfigurationUnseenError,
    KubeletSources,
    NodeWatch,
    from_file,
    from_kubelet,
)
from topology.core.devices import NodeName
from topology.kubeapi.apiserver import ApiServer

FILE = """
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
topologyManagerPolicy: restricted
topologyManagerScope: pod
cpuManagerPolicy: static
"""
CONFIGS = KubeletConfig("restricted", "pod", "static", "None", False, False, False)
CONFIGZ = {
    "kubeletconfig": {
        "topologyManagerPolicy": "restricted",
        "topologyManagerScope": "pod",
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "None",
    }
}


@contextmanager
def kubelet(
    ca: trustme.CA,
    status: int = 200,
    body: bytes = b"",
    on_question: Callable[[], None] = lambda: None,
) -> Iterator[str]:
    """A kubelet's server, which asks for a token; yields host:port."""

    def answer(request: BaseHTTPRequestHandler, _: bytes) -> tuple[int, bytes]:
        on_question()
        allowed = request.headers["Authorization"] == "Bearer ours" and request.path == "/configz"
        return status if allowed else 401, body or json.dumps(CONFIGZ).encode()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    with answering(answer, context) as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(ca: trustme.CA, tmp_path: Path) -> str:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


OURS = {"authorization": "Bearer ours"}


def test_the_kubelet_answers_with_its_configuration(ca: trustme.CA, ca_file: str) -> None:
    with kubelet(ca) as address:
        assert from_kubelet(address, OURS, ca_file) == CONFIGS


def test_an_untrusted_certificate_is_refused_unless_allowed(ca: trustme.CA, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    with kubelet(ca) as address:
        with pytest.raises(ConfigurationUnseenError, match="certificate verify failed"):
            from_kubelet(address, OURS, str(tmp_path / "other.pem"))
        assert from_kubelet(address, OURS, None, insecure=True) == CONFIGS


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        pytest.param(403, b"", "403", id="not allowed"),
        pytest.param(200, b"hello", "not a kubelet's configuration", id="not JSON"),
        pytest.param(200, b"[]", "not a kubelet's configuration", id="not an object"),
        pytest.param(200, b'{"kubeletconfig": 1}', "not a kubelet's", id="not a configuration"),
    ],
)
def test_answers_without_a_configuration(
    status: int, body: bytes, message: str, ca: trustme.CA, ca_file: str
) -> None:
    with (
        kubelet(ca, status, body) as address,
        pytest.raises(ConfigurationUnseenError, match=message),
    ):
        from_kubelet(address, OURS, ca_file)


def test_an_absent_kubelet_gives_the_same_error_each_time(ca_file: str) -> None:
    """The text ends up in the record: one that varied would be written each time."""
    texts = set()
    for _ in range(3):
        with pytest.raises(ConfigurationUnseenError) as caught:
            from_kubelet("127.0.0.1:1", OURS, ca_file)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_file_with_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    assert from_file(path) == CONFIGS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, "No such file", id="absent"),
        pytest.param("kind: Pod", "kind must be KubeletConfiguration", id="another kind"),
        pytest.param("{", "config.yaml", id="not YAML"),
        pytest.param("- 1", "kind must be KubeletConfiguration", id="a list"),
    ],
)
def test_files_without_a_configuration(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationUnseenError, match=message):
        from_file(path)


def test_an_operators_setting_comes_first_then_the_files_in_order(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(FILE)
    config = KubeletConfig(topology_manager_policy="none")
    sources = KubeletSources(config, (tmp_path / "absent.yaml", good))
    watch = NodeWatch(None, NodeName("n"), sources, lambda: None)
    assert watch.look()
    assert watch.state.kubelet == KubeletConfig(
        "none", "pod", "static", "None", False, False, False
    )
    assert watch.state.unseen == ()


def test_the_topology_managers_policy_alone_leaves_the_others_unseen(tmp_path: Path) -> None:
    config = KubeletConfig(topology_manager_policy="none")
    sources = KubeletSources(config, (tmp_path / "absent.yaml",))
    watch = NodeWatch(None, NodeName("n"), sources, lambda: None)
    watch.look()
    assert watch.state.kubelet == config
    assert [u.fact for u in watch.state.unseen] == ["kubelet's configuration"]


def test_what_could_not_be_had_is_reported(tmp_path: Path) -> None:
    sources = KubeletSources(files=(tmp_path / "absent.yaml",))
    watch = NodeWatch(None, NodeName("n"), sources, lambda: None)
    watch.look()
    assert watch.state.kubelet == NOTHING_KNOWN
    assert [u.fact for u in watch.state.unseen] == ["kubelet's configuration"]


def test_a_kubelet_that_restarts_while_it_is_asked_is_not_believed(
    ca: trustme.CA, tmp_path: Path
) -> None:
    with FakeApiServer() as server:
        api = ApiServer.from_kubeconfig(server.write_kubeconfig(tmp_path / "c", token="ours"))
        with kubelet(ca, on_question=lambda: watch.ask_again()) as address:
            sources = KubeletSources(address=address, insecure=True)
            watch = NodeWatch(api, NodeName("n"), sources, lambda: None)
            watch.look()
            assert watch.state.kubelet == CONFIGS
        watch.look()  # the kubelet that has started since does not answer yet
        assert watch.state.kubelet == NOTHING_KNOWN
        api.close()
