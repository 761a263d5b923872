"""Pages of other sites, shown by a browser on this machine, get nothing from either port."""

import httpx
import pytest

from scheduler_extender.http.browsers import refusal
from scheduler_extender.http.servers import Addresses
from tests.nodes import pod, switched
from tests.scheduler_extender.serving import Running, running
from tests.waiting import PATIENCE

BIND = {"PodName": "a", "PodNamespace": "b", "PodUID": "u", "Node": "switched"}


def of_page(service: Running, port: int, path: str, headers: dict[str, str]) -> httpx.Response:
    """What a page of another site asks, as a browser sends it without asking first."""
    url = f"http://127.0.0.1:{service.ports[port]}{path}"
    if path.startswith("/scheduler"):
        plain = {"content-type": "text/plain"} | headers
        return httpx.post(url, json=BIND, headers=plain, timeout=PATIENCE, trust_env=False)
    return httpx.get(url, headers=headers, timeout=PATIENCE, trust_env=False)


@pytest.mark.parametrize(
    ("port", "path"),
    [(0, "/scheduler/bind"), (1, "/v1/nodes"), (1, "/v1/snapshot"), (0, "/none"), (2, "/metrics")],
)
@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"host": "page.example:8889"}, "Host: page.example:8889 is neither localhost nor"),
        ({"host": "127.0.0.1.page.example"}, "Host: 127.0.0.1.page.example is neither"),
        ({"host": "localhost@page.example"}, "Host: localhost@page.example is neither"),
        ({"origin": "https://page.example"}, "Origin: pages of https://page.example may not"),
        ({"origin": "null"}, "Origin: pages of null may not"),
        ({"origin": ""}, "Origin: pages of  may not"),
        ({"host": "page.example", "origin": "http://page.example"}, "Host: page.example is"),
    ],
)
def test_a_page_of_another_site_is_refused(
    port: int, path: str, headers: dict[str, str], why: str
) -> None:
    with running(switched()) as service:
        answer = of_page(service, port, path, headers)
        assert answer.status_code == 403
        assert why in answer.json()["error"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8889", "a.localhost:1", "127.0.0.1", "[::1]:8889", "10.0.0.7"]
)
def test_a_request_by_a_name_of_this_machine_is_answered(host: str) -> None:
    with running(switched()) as service:
        for headers in ({"host": host}, {"host": host, "origin": f"http://{host}"}):
            assert of_page(service, 1, "/v1/nodes", headers).status_code == 200
        assert service.filter(pod(2), "switched")["NodeNames"] == ["switched"]


@pytest.mark.parametrize(
    ("headers", "at_verbs", "at_people", "at_metrics"),
    [
        ({"host": "gpu-topology.gpu-topology-system.svc"}, 200, 403, 200),
        ({"host": "a.example", "origin": "https://b.example"}, 403, 403, 403),
    ],
)
def test_outside_loopback_any_name_may_lead_here_but_to_the_port_for_people(
    headers: dict[str, str], at_verbs: int, at_people: int, at_metrics: int
) -> None:
    with running(switched(), where=Addresses("0.0.0.0")) as service:
        assert of_page(service, 0, "/readyz", headers).status_code == at_verbs
        assert of_page(service, 1, "/v1/nodes", headers).status_code == at_people
        assert of_page(service, 2, "/readyz", headers).status_code == at_metrics


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "gpus.example", "origin": "https://gpus.example"}, 200),
        ({"host": "GPUS.example:443"}, 200),
        ({"host": "localhost:8889", "origin": "https://gpus.example"}, 200),
        ({"host": "gpus.example:8443"}, 403),
        ({"host": "gpus.example", "origin": "http://gpus.example"}, 403),
        ({"host": "gpus.example", "origin": "https://gpus.example:8443"}, 403),
        ({"host": "gpus.example:8443", "origin": "https://gpus.example:8443"}, 403),
        ({"host": "localhost:8889"}, 200),
        ({"host": "other.example"}, 403),
        ({"host": "gpus.example.evil.example"}, 403),
        ({"host": "a.gpus.example"}, 403),
        ({"host": "gpus.example", "origin": "https://other.example"}, 403),
        ({"host": "gpus.example", "origin": "null"}, 403),
    ],
)
def test_the_name_of_a_proxy_beside_us_leads_to_the_port_for_people(
    headers: dict[str, str], status: int
) -> None:
    with running(switched(), where=Addresses(public_host="GPUs.example")) as service:
        assert of_page(service, 1, "/v1/nodes", headers).status_code == status
        if headers["host"] != "localhost:8889":
            assert of_page(service, 0, "/readyz", headers).status_code == 403


@pytest.mark.parametrize(
    ("site", "into", "status"),
    [
        pytest.param("cross-site", "image", 403, id="another site shows it"),
        pytest.param("cross-site", "iframe", 403, id="another site frames it"),
        pytest.param("same-site", "empty", 403, id="a neighbour fetches it"),
        pytest.param("cross-site", "document", 200, id="another site links to it"),
        pytest.param("same-origin", "empty", 200, id="our own page"),
        pytest.param("none", "document", 200, id="the address bar"),
    ],
)
def test_a_page_of_another_site_may_link_here_and_no_more(
    site: str, into: str, status: int
) -> None:
    with running(switched()) as service:
        headers = {"sec-fetch-site": site, "sec-fetch-dest": into}
        assert of_page(service, 1, "/v1/nodes", headers).status_code == status


def test_a_client_that_names_no_host_is_no_browser() -> None:
    assert refusal([], local=True) is None
    assert refusal([(b"origin", b"http://a")], local=True) is not None
    assert refusal([(b"host", b"localhost"), (b"host", b"a.example")], local=True) is not None
    assert refusal([(b"host", b"[::1")], local=True) is not None
