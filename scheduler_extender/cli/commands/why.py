"""``gpu-topology why``: why a pod waits, what would help, and what a placed pod got."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler_extender.cli.completion import pod_completions
from scheduler_extender.cli.inputs import one_of, weakest
from scheduler_extender.cli.options import PodNamespaceOption, RequireOption, TextOption, Where


def why(
    pod: Annotated[str, typer.Argument(metavar="POD", hidden=True, autocompletion=pod_completions)],
    namespace: PodNamespaceOption = None,
    output: TextOption = "text",
    require: RequireOption = "expected",
    *,
    where: Where,
) -> None:
    """Say why a pod waits and what would help.

    POD is the name of a pod, or KIND/NAME of what makes pods, such as deployment/train, job/train,
    jobset/train or pytorchjob/train. The command needs a kubeconfig and the rights to list nodes,
    pods and gputopologies, and says what it may not see. Exits with 1 if the pod waits and no node
    takes it.
    """
    as_json = one_of("--output", output, {"text": False, "json": True})
    least = weakest(require)
    from scheduler_extender.cli.why import explain

    explain(pod, namespace, least, where, as_json=as_json)
