"""Runs the Jobs of Helm's hooks as processes: no kubelet of these clusters runs them."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from tests.e2e.controlplane import PERIOD, ControlPlane
from tests.waiting import FOREVER


@contextmanager
def jobs_run(plane: ControlPlane, namespace: str) -> Iterator[list[str]]:
    """Run each Job of a namespace inside the block, and yield what they print.

    The process has the token of the Job's account, and the Job's status says how it ended.
    """
    printed: list[str] = []
    stopping = threading.Event()
    what = (plane, namespace, printed, stopping)
    thread = threading.Thread(target=_run_all, args=what, daemon=True)
    thread.start()
    try:
        yield printed
    finally:
        stopping.set()
        thread.join(FOREVER)


def _run_all(
    plane: ControlPlane, namespace: str, printed: list[str], stopping: threading.Event
) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    with plane.client() as api:
        while not stopping.wait(PERIOD):
            for job in api.get(jobs).json().get("items", ()):
                if job["status"].get("conditions"):
                    continue
                done = _run(plane, namespace, job)
                printed.append(done.stdout + done.stderr)
                path = f"{jobs}/{job['metadata']['name']}/status"
                ended = {**job, "status": _status(done.returncode)}
                api.put(path, json=ended).raise_for_status()


def _run(
    plane: ControlPlane, namespace: str, job: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    spec = job["spec"]["template"]["spec"]
    account, (container,) = spec["serviceAccountName"], spec["containers"]
    token = plane.kubectl("-n", namespace, "create", "token", account).strip()
    plane.add_issued(account, token)
    return subprocess.run(
        [sys.executable, "-m", "scheduler_extender", *container["args"]],
        capture_output=True,
        text=True,
        check=False,
        timeout=FOREVER,
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig(account))},
    )


def _status(code: int) -> dict[str, Any]:
    """The status that the controller of Jobs writes."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = ("FailureTarget", "Failed") if code else ("SuccessCriteriaMet", "Complete")
    common = {"status": "True", "lastProbeTime": now, "lastTransitionTime": now}
    return {
        "startTime": now,
        "failed" if code else "succeeded": 1,
        "conditions": [{"type": kind, **common} for kind in kinds],
        **({} if code else {"completionTime": now}),
    }
