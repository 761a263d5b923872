"""Bad input to any command is one line and exit code 2."""

from itertools import pairwise
from pathlib import Path

import pytest

from scheduler_extender.cli import main
from tests.commands import Done, asked, refused

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "examples" / "clusters" / "mixed.yaml"
PAIR = ROOT / "manifests" / "samples" / "pair-nvlink.yaml"


def run(*words: str | Path, given: str = "") -> Done:
    return asked(main, *words, given=given)


POD = "kind: Pod\nmetadata: {{name: x{meta}}}\nspec: {{containers: [{{name: c{spec}}}]}}\n"
BAD_PODS = [
    pytest.param("", "a Pod is needed, but the file is empty", id="empty"),
    pytest.param("[1", "not YAML", id="not YAML"),
    pytest.param("x: 2026-99-99", "not YAML", id="no such date"),
    pytest.param("- 1", "a Pod is needed, not list", id="list"),
    pytest.param(
        "kind: Service", "kind: allowed are Pod and objects with a pod template", id="kind"
    ),
    pytest.param(
        "kind: Pod\nmetadata: foo", "pod: metadata: a mapping is needed, not a text", id="metadata"
    ),
    pytest.param("kind: Job\nspec: {template: {metadata: [1]}}", "no GPU", id="template"),
    pytest.param(POD.format(meta="", spec=""), "requests no GPU", id="no GPU"),
    pytest.param(
        POD.format(
            meta=", annotations: {gpu-topology.io/link: nvlnk}",
            spec=", resources: {limits: {nvidia.com/gpu: 2}}",
        ),
        'annotation gpu-topology.io/link="nvlnk": allowed are nvlink',
        id="annotation",
    ),
    *(
        pytest.param(
            POD.format(
                meta=f", annotations: {{gpu-topology.io/{key}: {value}}}",
                spec=", resources: {limits: {nvidia.com/gpu: 2}}",
            ),
            message,
            id=f"{key} {value}",
        )
        for key, value, message in (
            (
                "same-numa",
                "yes",
                "same-numa: a text is needed, and YAML does not read true as a text",
            ),
            ("same-numa", "true", 'does not read true as a text; quote it: "true"'),
            (
                "min-nvlinks",
                "2",
                "min-nvlinks: a text is needed, and YAML does not read 2 as a text",
            ),
            ("min-bandwidth", "1.5", 'quote it: "1.5"'),
            ("link", "[nvlink]", "gpu-topology.io/link: a text is needed, not ['nvlink']"),
            ("link", "", "gpu-topology.io/link: a text is needed, not None"),
        )
    ),
    pytest.param(
        POD.format(meta="", spec=", resources: {limits: {nvidia.com/gpu: 1.5}}"),
        "is not a whole number",
        id="half a GPU",
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD_PODS)
def test_a_bad_pod_is_one_line_and_exit_code_2(text: str, words: str) -> None:
    refused(run("check", "-", "--cluster", CLUSTER, given=text), words)


ONE_NODE = "{kind: MachineGroup, machine: t4-1, count: 1, namePrefix: a-}"
NODE_OBJECT = "{kind: Node, metadata: {name: a-00}}"
HOLDER = (
    "{kind: Pod, metadata: {name: p}, spec: {nodeName: a-00, containers: "
    "[{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}}"
)
BAD_CLUSTERS = [
    pytest.param("", "the file has no node", id="empty"),
    pytest.param(
        "kind: Node\nmetadata: {name: a-00}",
        "no GPUTopology describes the GPUs of the Node objects; add the output of kubectl get "
        "gputopologies -o yaml",
        id="nodes without records",
    ),
    pytest.param("kind: [", "not YAML", id="not YAML"),
    pytest.param("kind: Deployment", "kind: allowed are Event, GPUTopology", id="kind"),
    pytest.param(
        "{kind: MachineGroup, machine: dgx9, count: 1, namePrefix: a-}", "dgx9", id="machine"
    ),
    pytest.param(
        "{kind: MachineGroup, machine: dgx2, count: 0, namePrefix: a-}",
        "count: input should be greater than or equal to 1, not 0",
        id="count",
    ),
    pytest.param(
        "{kind: MachineGroup, machine: dgx2, count: 1, namePrefix: a-, colour: red}",
        "colour: unknown field",
        id="field",
    ),
    pytest.param(
        "apiVersion: gpu-topology.io/v1alpha1\nkind: GPUTopology\nmetadata: {name: a}\n"
        "spec: {devices: [{index: 0}]}",
        "spec.devices.0.uuid: field required",
        id="record",
    ),
    pytest.param(
        "{kind: MachineGroup, machine: t4-1, count: 2, namePrefix: a-}\n---\n"
        "{kind: MachineGroup, machine: t4-1, count: 1, namePrefix: a-}",
        "node a-00 is defined twice",
        id="twice",
    ),
    pytest.param(
        f"{ONE_NODE}\n---\n{HOLDER}\n---\n{HOLDER}",
        "pod default/p is defined twice",
        id="a pod twice: the second would hide what the first holds",
    ),
    pytest.param(
        f"{ONE_NODE}\n---\n{NODE_OBJECT}\n---\n{NODE_OBJECT}",
        "Node a-00 is defined twice",
        id="a Node twice",
    ),
    pytest.param(
        "{kind: List, items: {kind: Pod}}",
        "items: a list is needed, not {'kind': 'Pod'}",
        id="a List of no list",
    ),
    pytest.param(
        "{kind: MachineGroup, machine: dgx2, count: 1000000000, namePrefix: a-}",
        "count: input should be less than or equal to 100000, not 1000000000",
        id="a thousand million nodes",
    ),
    pytest.param(
        "{kind: MachineGroup, machine: dgx2, count: 100000, namePrefix: a-}",
        "count: 100,000 × 16 GPUs are too many; all MachineGroups together may have at most "
        "200,000 GPUs",
        id="too many GPUs",
    ),
    pytest.param(
        "kind: List\nitems:\n- &g {kind: MachineGroup, machine: t4-1, count: 90000, namePrefix: a-}"
        "\n- {<<: *g, namePrefix: b-}\n- {<<: *g, namePrefix: c-}",
        "document 1: count: 90,000 × 1 GPUs are too many",
        id="too many GPUs in several groups",
    ),
    pytest.param(
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{n}: &{n} [{','.join(['*' + b] * 9)}]\n" for b, n in pairwise("abcdefg"))
        + "kind: *g",
        "its aliases (*name) stand for more than 200,000 values",
        id="alias bomb",
    ),
    pytest.param("kind: " + "[" * 5000, "nest deeper than 64 levels", id="deep"),
    pytest.param("kind: &a [*a]", "*a stands inside itself", id="in itself"),
    pytest.param(
        "{kind: MachineGroup, machine: dgx2, count: 1" + ":1" * 50000 + ", namePrefix: a-}",
        "a number of 100001 characters",
        id="a number without end",
    ),
    pytest.param("kind: [" + "xxxx, " * 9999 + "]", "Budget, not ['xxxx'", id="a long kind"),
    *(
        pytest.param(
            f"{{kind: MachineGroup, machine: dgx-a100, count: 1, namePrefix: n-, {parts}}}",
            message,
            id=parts,
        )
        for parts, message in (
            ("mig: {profiles: [huge]}", "'huge' is no MIG profile"),
            ("mig: {profiles: [4g.20gb, 4g.20gb]}", "8 slices; allowed are 1 to 7"),
            ("mig: {profiles: [1g.5gb], gpus: [9]}", "there is no GPU 9"),
            ("mig: {profiles: [1g.5gb], gpus: [0, 1, 0]}", "mig: gpus: GPU 0 is listed twice"),
            (
                "mig: {profiles: [1g.5gb], gpus: [0], strategy: single}",
                "serves no GPUs unless",
            ),
            ("mig: {profiles: []}", "mig.profiles"),
            ("mig: {profiles: [1g.5gb], slices: 2}", "slices"),
            (
                "allocator: {topologyManagerPolicy: single-numa}",
                "allocator.topologyManagerPolicy: input should be 'none', 'best-effort', "
                "'restricted', 'single-numa-node' or 'unknown', not 'single-numa'",
            ),
            (
                "allocator: {topologyManagerScope: node}",
                "allocator.topologyManagerScope: input should be 'container' or 'pod', not 'node'",
            ),
            ("allocator: {cpuManagerPolicy: Static}", "input should be 'none' or 'static', not"),
            ("allocator: {fullPcpusOnly: often}", "allocator.fullPcpusOnly"),
            ("allocator: {topologyManager: restricted}", "allocator.topologyManager: unknown"),
            ("allocator: {published: [8]}", "allocator.published: GPU 8 is not among the"),
            ("cpu: -1, allocator: {}", "cpu: -1 is not between 0"),
            ("sharing: {replicas: 1}", "sharing.replicas"),
            ("sharing: {}", "sharing.replicas"),
            ("sharing: {replicas: 2, policy: best-effort}", "sharing.policy"),
            (
                "sharing: {replicas: 2}, mig: {profiles: [1g.5gb]}",
                "only one of mig and sharing is allowed",
            ),
        )
    ),
]


@pytest.mark.parametrize(("text", "words"), BAD_CLUSTERS)
def test_a_bad_cluster_file_is_one_line_and_exit_code_2(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    refused(run("check", PAIR, "--cluster", path), words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["chekc"], "No such command 'chekc'", id="command"),
        pytest.param(["check"], "Missing", id="argument"),
        pytest.param(["check", PAIR, "--cluster", "nope.yaml"], "nope.yaml", id="file"),
        pytest.param(["machines", "dgx-9"], "dgx-9", id="machine"),
        pytest.param(["extender", "--cluster", "a", "--kubeconfig", "b"], "exclude", id="both"),
        pytest.param(["extender", "--kubeconfig", "nope"], "nope", id="kubeconfig"),
        pytest.param(["extender", "--cluster", CLUSTER, "--require", "x"], "--require", id="word"),
        pytest.param(["extender", "--cluster", CLUSTER, "--tls-cert", "x"], "together", id="tls"),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--tls-cert", "x", "--tls-key", "y"],
            "TLS files cannot be used: x: No such file",
            id="no TLS file",
        ),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--tls-cert", PAIR, "--tls-key", PAIR],
            "TLS files cannot be used",
            id="not a certificate",
        ),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--client-name", "x"], "together", id="only a name"
        ),
        pytest.param(["extender", "--cluster", CLUSTER, "--port", "70000"], "70000", id="port"),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--port", "9000", "--admin-port", "9000"],
            "--port and --admin-port are both 9000: each needs its own port",
            id="equal ports",
        ),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--port", "9000", "--metrics-port", "9000"],
            "--port and --metrics-port are both 9000: each needs its own port",
            id="the metrics' port",
        ),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--public-host", "*.example"],
            "--public-host: allowed is a DNS name without a port, not '*.example'",
            id="no one host",
        ),
        pytest.param(
            ["extender", "--cluster", CLUSTER, "--public-host", "gpus.example:443"],
            "--public-host: allowed is a DNS name without a port, not 'gpus.example:443'",
            id="a host with a port",
        ),
        *(
            pytest.param(
                ["extender", "--cluster", CLUSTER, "--dashboard", url],
                f"--dashboard: allowed is an http or https URL, not {url!r}",
                id=f"dashboard {url}",
            )
            for url in ("grafana", "javascript:alert(1)", "https://", "https://[a", "http://a/b c")
        ),
        pytest.param(["demo", "--out", PAIR], "a folder is needed", id="--out a file"),
        pytest.param(["demo", "--out", PAIR / "x"], "a folder is needed", id="--out under a file"),
        pytest.param(["check", "/dev/zero", "--cluster", CLUSTER], "larger than", id="no end"),
        pytest.param(["check", PAIR, "--cluster", "/dev/zero"], "larger than", id="no end, either"),
    ],
)
def test_bad_arguments(words: list[str | Path], message: str) -> None:
    refused(run(*words), message)
