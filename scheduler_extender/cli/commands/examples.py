"""Two examples of each command, for the end of its help text."""

EXAMPLES = {
    "extender": (
        "extender --cluster examples/clusters/mixed.yaml",
        "extender --kubeconfig ~/.kube/config --require guaranteed",
    ),
    "agent": ("agent --once --print", "agent --kubeconfig ~/.kube/config --node-name train-01"),
    "certificates": (
        "certificates --output certs --name gpus.example.com",
        "certificates --output certs --ca certs",
    ),
    "install": (
        "install kubeadm --tls certs --address 10.0.0.10 --dry-run",
        "install k3s --remove",
    ),
    "import": (
        "import node.txt --node train-01",
        "import nccl.xml --node train-01 --memory 40960Mi",
    ),
    "check": ("check pod.yaml", "check pod.yaml -o wide --sort-by score"),
    "claim": ("claim pod.yaml", "claim pod.yaml --cluster now.yaml"),
    "machines": ("machines", "machines dgx-a100"),
    "nodes": ("nodes --sort-by free", "nodes train-00 train-01 -o wide"),
    "node": ("node train-01", "node train-01 -o graphml"),
    "map": ("map --open", "map -o wide --watch"),
    "waiting": ("waiting -A --sort-by waits", "waiting -n team-a -l app=train"),
    "pods": ("pods -A --mismatched", "pods -n team-a --node train-01"),
    "idle": ("idle -A --longer-than 2h", "idle -n team-a -o json"),
    "unblock": ("unblock train", "unblock team-a/train --evict --keep 900"),
    "why": ("why train -n team-a", "why deployment/train"),
    "audit": ("audit --since 7d", "audit --html audit.html"),
    "doctor": ("doctor --forward", "doctor --scheduler-config kube-scheduler-config.yaml"),
    "demo": ("demo", "demo --pods 500 --seed 2"),
    "simulate": (
        "simulate --cluster examples/simulation/cluster.yaml --count 500",
        "simulate --cluster dgx1-v100=8,l40s-8=4 --html report.html",
    ),
    "report": ("report figures.json", "report figures.json --out refused.svg"),
    "play": ("play --cluster examples/clusters/mixed.yaml", "play --remove"),
    "completion": ("completion", "completion --help"),
}


def ends_of_help(program: str) -> dict[str, str]:
    """Return each command's examples as the last paragraph of its help text."""
    start = f"\n  {program} "
    # click keeps the lines of a paragraph that begins with a backspace.
    return {name: "\b\nExamples:" + start + start.join(two) for name, two in EXAMPLES.items()}
