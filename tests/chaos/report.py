"""A judged history in words."""

from collections import Counter

from tests.chaos.checks import CHECKS, broken_promises, findings, unattributed, writers_of
from tests.chaos.story import Story


def report(story: Story) -> str:
    """What happened, and each finding; the last line says whether all is well."""
    pods = list(story.pods.values())
    admitted = [pod for pod in pods if pod.given is not None]
    verdicts = Counter(pod.verdict for pod in pods if pod.created.linked and pod.bind is not None)
    kept_off = [pod for pod in broken_promises(story) if pod.verdict != "guaranteed"]
    writers = set(writers_of(story).values())
    pending = [pod.created.name for pod in pods if pod.bind is None and not pod.over]
    message = ", ".join(f"{n} {verdict or 'no verdict'}" for verdict, n in sorted(verdicts.items()))
    faults = ", ".join(f"{n} × {what}" for what, n in sorted(_kinds(story).items()))
    lines = [
        f"{len(pods)} pods created, {len(story.binds)} bound by {len(writers)} processes, "
        f"{len(admitted)} admitted, {sum(pod.over for pod in pods)} over",
        f"with required links: {message or 'none'}; expected and not kept: {len(kept_off)}",
        f"pending at the end: {', '.join(pending) or 'none'}",
        f"binds of which nobody can tell who wrote them: {unattributed(story)}",
        f"{len(story.faults)} faults: {faults or 'none'}",
    ]
    found = findings(story)
    lines += [f"FOUND {finding.check}: {finding.words}" for finding in found]
    lines.append(f"{len(found)} findings by {len(CHECKS)} checks")
    return "\n".join(lines)


def _kinds(story: Story) -> Counter[str]:
    return Counter(fault.what.partition(":")[0] for fault in story.faults)
