"""A pod that is on a node: its promise, its GPUs, and whether they meet the promise."""

from typing import Annotated

import msgspec
from msgspec import Meta

from scheduler_extender.annotations import PLACEMENT
from scheduler_extender.explain import Struct
from scheduler_extender.explain.wording import gpus_text, sets_text
from scheduler_extender.state.node.nodeinfo import NodeInfo
from scheduler_extender.state.pods.record import PodRecord
from scheduler_extender.wire import Pod
from topology.core.devices import GpuUuid
from topology.core.devicesets import gpus
from topology.core.placement import Rejection, satisfies
from topology.core.requests import GpuRequest


class Written(msgspec.Struct, frozen=True):
    """The placement annotation, as bind has written it. ``sets`` are driver indices."""

    verdict: str
    node: str = ""
    uid: str = ""
    sets: list[list[int]] = []
    time: str = ""
    sets_omitted: int = msgspec.field(name="setsOmitted", default=0)


def bound_text(placement: str, request: GpuRequest | None) -> str:
    """Return the text of a placement annotation for an Event: node, promise, possible GPUs.

    >>> from topology.core.requests import gpu_request
    >>> bound_text('{"verdict":"guaranteed","node":"n","sets":[[0,1]]}', gpu_request(2))
    'on n; possible GPUs: 0,1'
    """
    written = _written(placement)
    if written is None:
        return "bound"
    promise = ""
    if request is not None and not request.plain:
        sure = request.required and written.verdict in ("guaranteed", "expected")
        promise = f"; {written.verdict if sure else 'not promised'}: {request.text}"
    sets = f"; possible GPUs: {sets_text(written.sets)}" if written.sets else ""
    more = f" and {written.sets_omitted} more sets" if written.sets_omitted else ""
    return f"on {written.node}{promise}{sets}{more}"


def _written(text: str) -> Written | None:
    try:
        return msgspec.json.decode(text, type=Written)
    except (msgspec.DecodeError, RecursionError):
        return None


def written_on(pod: Pod) -> Written | None:
    """Return the pod's placement annotation; None without one, or if it belongs to another pod."""
    found = _written((pod.metadata.annotations or {}).get(PLACEMENT, ""))
    return found if found is not None and found.uid == pod.metadata.uid else None


NO_CLAIM = (
    "none of the pod's claims has GPUs; if that lasts, kube-scheduler has deleted the claim and "
    "the pod can never start: delete the pod"
)


OUTSIDE = "these are not among the predicted GPUs"


class Placed(Struct, frozen=True):
    """A pod on its node."""

    node: str
    verdict: Annotated[
        str, Meta(description="the verdict with which the pod was bound; empty if unknown")
    ]
    sets: Annotated[
        list[list[int]],
        Meta(description="the sets of GPUs that the pod could get by this verdict, if known"),
    ]
    got: Annotated[
        list[int] | None,
        Meta(description="the GPUs that a report shows for the pod; null if no report does yet"),
    ]
    keeps: Annotated[
        bool | None,
        Meta(description="whether these GPUs meet the pod's constraints; null if unknown"),
    ]
    words: list[str]
    faults: Annotated[
        list[str], Meta(description="those of the words about GPUs that the pod should not have")
    ] = []


def promised(pod: PodRecord) -> str:
    """Return the verdict that is still known of a bound pod; empty if none is."""
    kept = "guaranteed" if pod.survives_endings else "expected"
    return kept if pod.promised.text else ""


def placed_on(info: NodeInfo, pod: PodRecord, written: Written | None) -> Placed:
    """Return what is known of a pod on its node."""
    request = pod.request
    verdict = (written.verdict if written is not None else "") or promised(pod)
    sets = list(written.sets) if written is not None else []
    got, keeps = None, None
    if isinstance(request, GpuRequest) and info.topology is not None:
        got, keeps = _got(info, pod, request)
    words = [f"on {info.name}, {_promise(verdict, request)}"]
    faults: list[str] = []
    if sets:
        more = f" and {written.sets_omitted} more" if written and written.sets_omitted else ""
        words.append(f"possible GPUs when it was bound: {sets_text(sets)}{more}")
    if got is None and not pod.ended:
        words.append(NO_CLAIM if info.serves_claims else "no report shows yet which GPUs it got")
    if got is not None:
        outside = bool(sets) and not (written and written.sets_omitted) and got not in sets
        meet, not_meet = ("meet", "do not meet") if len(got) > 1 else ("meets", "does not meet")
        kept = "" if keeps is None else f", which {meet} its constraints"
        if keeps is False and isinstance(request, GpuRequest):
            kept = f", which {not_meet} {request.constraints.text}"
        words.append(f"it got {gpus_text(got)}{kept}")
        faults = [words[-1]] if keeps is False else []
        if outside:
            words.append(OUTSIDE)
            faults.append(OUTSIDE)
    return Placed(info.name, verdict, sets, got, keeps, words, faults)


def _promise(verdict: str, request: object) -> str:
    required = isinstance(request, GpuRequest) and request.required
    if verdict in ("guaranteed", "expected") and required:
        return f"its constraints were {verdict} when it was bound"
    if not verdict:
        return "bound without the extender: nothing was promised"
    return f"nothing was promised when it was bound (the verdict was {verdict})"


def _got(
    info: NodeInfo, pod: PodRecord, request: GpuRequest
) -> tuple[list[int] | None, bool | None]:
    offer = info.last_offer(request.resource)
    if isinstance(offer, Rejection) or pod.uid in offer.ledger.unacknowledged:
        return None, None  # some of its containers may wait for theirs
    # Under DRA it also has devices of claims that it shares, which a report does not show.
    devices = info.devices_of(pod)
    if not devices and pod.uid not in offer.ledger.shown:
        return None, None
    kubelet, bits = offer.kubelet, offer.topology.bit_of_uuid
    mask = gpus(offer.ledger.shown.get(pod.uid, 0), offer.availability.width)
    mask |= sum(bits.get(GpuUuid(each), 0) for each in {*devices})
    got = list(offer.devices.indices(mask))
    if request.plain or info.lacks(devices):
        return got, None
    kept = satisfies(
        kubelet.shape,
        request.constraints,
        mask,
        count=request.count,
        replicas=kubelet.replicas,
    )
    return got, kept
