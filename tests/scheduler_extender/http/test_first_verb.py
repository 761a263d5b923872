"""The first verb that kube-scheduler sends loads no module."""

import subprocess
import sys

LOADED = """
import encodings.idna, http.client, json, sys
from scheduler_extender.serving import in_memory, in_thread
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.answers.decision import Settings
from tests.nodes import pod, switched
from topology.core.report import Report

cluster = Cache(lambda: 0.0, Settings(stale_after=None))
cluster.put_record(switched(4, "a"), Report("boot", 1))
service = in_memory(cluster)
with in_thread(service) as servers:
    before = set(sys.modules)
    client = http.client.HTTPConnection("127.0.0.1", servers.ports[0])
    body = {"Pod": pod(2, {"link": "nvlink"}), "NodeNames": ["a"]}
    client.request("POST", "/scheduler/filter", json.dumps(body))
    assert json.loads(client.getresponse().read())["NodeNames"] == ["a"]
    print(sorted(set(sys.modules) - before))
"""


def test_the_first_verb_loads_no_module() -> None:
    """A library that is loaded late is loaded on the loop, which answers no request meanwhile."""
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert ran.stdout.strip() == "[]", ran.stdout + ran.stderr
