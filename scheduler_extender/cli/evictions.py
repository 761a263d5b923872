"""Carries a plan of ``gpu-topology unblock`` out, with the rights of whoever calls it: the extender
itself may evict nobody.

First the place is kept, by an annotation on the waiting pod; only when the extender says that
it keeps that place the first pod is evicted. So nobody is evicted for a place that another pod has
taken meanwhile.

Before each further eviction, and before one is tried again, the extender is asked once more: nobody
is evicted for a pod that has found a place meanwhile, nor for a place that is gone.

Where an eviction fails half-way the place stays kept: whoever was evicted is gone, and the next
call goes on with those who are left. Where nobody was evicted the place is given back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import typer

from scheduler_extender.annotations import KEPT_PLACE
from scheduler_extender.cli.adminport import AdminPort
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import tell
from scheduler_extender.cli.interrupts import pause
from scheduler_extender.cli.kubeconfig import Access, api_server
from scheduler_extender.state.pods.keptplace import value_of
from scheduler_extender.told.unblocking import Eviction, EvictionPlan, KeptPlace, Unblocking
from topology.core.devices import NodeName, PodUid
from topology.times import instant

if TYPE_CHECKING:
    from topology.kubeapi.apiserver import ApiFailure, ApiServer

TIMEOUT = 10.0
"""Seconds for one request."""
PATIENCE = 30.0
"""Seconds until the extender has seen that a place is to be kept; and for how long an eviction is
tried again that the API server does not answer."""
AGAIN = 2.0
"""Seconds after which an eviction is tried again, unless the API server asks for more."""
LONGEST_PAUSE = 15.0
"""Seconds that we wait at most because it asks for them (``Retry-After``)."""
TOO_MANY_REQUESTS = 429
GONE = (404, 409)
"""The pod is gone, or another one has its name."""


class NeedlessError(Exception):
    """There is no use in evicting anybody else, or nobody can tell; the message says why.

    ``placed`` says that the pod has a node already, ``passing`` that it may be otherwise in a
    moment, ``begun`` that an eviction may have been made which nobody has answered.
    """

    def __init__(self, why: str, *, placed: bool = False, passing: bool = False) -> None:
        super().__init__(why)
        self.placed = placed
        self.passing = passing
        self.begun = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pod for which others are evicted; ``place`` is its path at the admin port."""

    namespace: str
    name: str
    uid: PodUid
    place: str


def carry_out(
    found: Unblocking,
    waiting: Waiting,
    port: AdminPort,
    keep: int,
    access: Access,
) -> None:
    """Evict whom the admin port's answer ``found`` names: for a place that is kept already those
    who are left, else those of the plan, once a place is kept for ``keep`` seconds.

    Raises :class:`BadInputError` where nobody is evicted, and :class:`typer.Exit` with 1 where not
    all are.
    """
    carrying = _Carrying(port, waiting, _api(access))
    if found.kept_place is not None:
        carrying.go_on(found.kept_place)
    elif found.plan is not None:
        carrying.begin(found.plan, keep)


def _api(access: Access) -> ApiServer:
    try:
        return api_server(access)[0]
    except BadInputError as error:
        raise BadInputError(f"nobody was evicted: {error}") from error


@dataclass(frozen=True, slots=True)
class _Carrying:
    port: AdminPort
    waiting: Waiting
    api: ApiServer

    def begin(self, plan: EvictionPlan, keep: int) -> None:
        """Keep the place, wait until the extender keeps the place, and evict."""
        from topology.kubeapi.apiserver import ApiFailure

        node, until, asked = NodeName(plan.node), time.time() + keep, time.monotonic()
        victims = [PodUid(step.uid) for step in plan.steps]
        place = (self.waiting.uid, node, until, victims)
        try:
            written = self._annotate(value_of(*place))
        except ApiFailure as error:
            raise BadInputError(f"nobody was evicted: the place is not ours: {error}") from error
        try:
            self._annotate(value_of(*place, _version_in(written, asked)))
            self._wait_until_kept(node, sorted(victims))
        except ApiFailure as error:
            self._give_back()
            raise BadInputError(f"nobody was evicted: the place is not ours: {error}") from error
        except (BadInputError, KeyboardInterrupt):
            self._give_back()
            raise
        self._evict(plan.steps, node, until, begun=False)

    def go_on(self, kept: KeptPlace) -> None:
        """Evict those who are left of an earlier call."""
        if kept.lost:
            self._give_back()
            raise BadInputError(
                f"nobody was evicted: the place on {kept.node} is not there any more, and is "
                "kept no more; run the command again for another plan"
            )
        if not kept.holds:
            raise BadInputError(
                f"nobody was evicted: it is uncertain whether the place on {kept.node} is "
                "there; it stays kept: run the command again"
            )
        until = instant(datetime.fromisoformat(kept.until)).timestamp()
        begun = len(kept.left) < len(kept.victims)
        self._evict(kept.left, NodeName(kept.node), until, begun=begun)

    def _evict(
        self, steps: Sequence[Eviction], node: NodeName, until: float, *, begun: bool
    ) -> None:
        """Evict one after the other, and tell what has been done.

        ``begun`` says that others were evicted for the place before: then it stays kept.
        """
        done = 0
        failure: ApiFailure | NeedlessError | None = None
        try:
            for step in steps:
                if done:
                    self._still_needed(node)
                failure = self._evict_one(step, node, until)
                if failure is not None:
                    tell(f"{step.name} was not evicted: {failure}")
                    break
                done += 1
        except KeyboardInterrupt:
            self._tell(done, steps, node, until)
            raise
        except NeedlessError as needless:
            tell(f"nobody else is evicted: {needless}")
            failure, begun = needless, begun or needless.begun
        placed = isinstance(failure, NeedlessError) and failure.placed
        if failure is not None and not (done or begun or placed or may_have_been_made(failure)):
            self._give_back()
            raise BadInputError("nobody was evicted, and the place is kept no more")
        if isinstance(failure, NeedlessError):
            tell(f"{done} of {len(steps)} evicted")
        else:
            self._tell(done, steps, node, until)
        if done < len(steps) and not placed:
            raise typer.Exit(1)

    def _still_needed(self, node: NodeName) -> None:
        """Raises :class:`NeedlessError` where the pod's place is not there any more, or not needed,
        or the extender does not say so for :data:`PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                found = self.port.get(self.waiting.place, Unblocking)
            except BadInputError as error:
                words = f"whether the place is there is not known: {error}"
                needless: NeedlessError | None = NeedlessError(words, passing=True)
            else:
                needless = why_needless(found, self.waiting.uid, node)
            if needless is None:
                return
            if not needless.passing or time.monotonic() + AGAIN >= deadline:
                raise needless
            pause(AGAIN)

    def _tell(self, done: int, steps: Sequence[Eviction], node: NodeName, until: float) -> None:
        who = f"{self.waiting.namespace}/{self.waiting.name}"
        when = time.strftime("%H:%M UTC", time.gmtime(until))
        what = f"{done} of {len(steps)} evicted" if steps else "nobody is left to be evicted"
        tell(f"{what}; {node} keeps the place for {who} until {when}")
        if done < len(steps):
            tell("run the command again to go on with those who are left")

    def _evict_one(self, step: Eviction, node: NodeName, until: float) -> ApiFailure | None:
        """Evict a pod; why that failed for good, None where it is on its way out or gone.

        What a budget forbids is tried again until the place's time is up, and what the API server
        could not answer for :data:`PATIENCE` seconds: evicting a pod twice does no harm. Raises
        :class:`NeedlessError` where that is of no use any more.
        """
        from topology.kubeapi.apiserver import ApiError, ApiFailure

        since, told, begun = time.time(), False, False
        while True:
            try:
                _post_eviction(self.api, step)
            except ApiFailure as error:
                if isinstance(error, ApiError) and error.status in GONE:
                    tell(f"{step.name} is gone already")
                    return None
                seconds = pause_before_another_try(error, time.time(), since, until)
                if seconds is None:
                    return error
                if not told:
                    tell(f"{step.name} is tried again: {error}")
                    told = True
                begun = begun or may_have_been_made(error)
                pause(seconds)
                try:
                    self._still_needed(node)
                except NeedlessError as needless:
                    needless.begun = begun
                    raise
            else:
                tell(f"evicted {step.name}")
                return None

    def _give_back(self) -> None:
        """Keep the place no more; the pod may be gone."""
        from topology.kubeapi.apiserver import ApiFailure

        try:
            self._annotate(None)
        except ApiFailure as error:
            tell(f"the place is kept until its time is up: {error}")

    def _annotate(self, value: str | None) -> bytes:
        """Write the annotation, or take it away; the pod as it is then."""
        from topology.kubeapi.apiserver import path

        pod = self.waiting
        body = {"metadata": {"uid": pod.uid, "annotations": {KEPT_PLACE: value}}}
        where = path("/api/v1/namespaces", pod.namespace, "pods", pod.name)
        return self.api.patch(where, json.dumps(body).encode(), timeout=TIMEOUT)

    def _wait_until_kept(self, node: NodeName, victims: Sequence[PodUid]) -> None:
        """Wait until the extender keeps this very place. Raises :class:`BadInputError`."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = self.port.get(self.waiting.place, Unblocking)
            kept = None if found is None else found.kept_place
            if kept is not None and kept.node == node and kept.victims == victims:
                if kept.lost:
                    raise BadInputError("nobody was evicted: the place was taken meanwhile")
                if kept.holds and kept.settled:
                    return
            if found is not None and found.node:
                raise BadInputError(f"nobody was evicted: the pod is on {found.node} now")
            pause(0.2)
        raise BadInputError("nobody was evicted: the extender does not keep the place")


def _version_in(pod: bytes, asked: float) -> int:
    """The resourceVersion of a pod that the API server has answered with, ``asked`` at this time of
    the monotonic clock.

    Raises :class:`BadInputError` where it is no number, or is long ago: who tells it too late may
    come before somebody who has begun to evict.
    """
    if time.monotonic() > asked + 2 * TIMEOUT:
        raise BadInputError("nobody was evicted: the API server took too long")
    try:
        return int(json.loads(pod)["metadata"]["resourceVersion"])
    except (ValueError, LookupError, TypeError) as error:
        why = "the API server's resourceVersion is no number"
        raise BadInputError(f"nobody was evicted: {why}") from error


def why_needless(found: Unblocking | None, uid: PodUid, node: NodeName) -> NeedlessError | None:
    """Why nobody else is to be evicted for a pod's place on a node, by the admin port's answer;
    None where the place is kept, and is there once the victims have let go."""
    if found is None or found.uid != uid:
        return NeedlessError("the pod is gone")
    if found.node:
        return NeedlessError(f"the pod is on {found.node} now", placed=True)
    kept = found.kept_place
    if kept is None or kept.node != node:
        return NeedlessError(f"the place on {node} is kept no more, or the extender cannot tell")
    if kept.lost:
        return NeedlessError(f"the place on {node} is not there any more")
    if not kept.holds:
        words = f"it is uncertain whether the place on {node} is there"
        return NeedlessError(words, passing=True)
    return None


def pause_before_another_try(
    error: ApiFailure, now: float, since: float, until: float
) -> float | None:
    """Seconds until an eviction that failed is worth another try; None where it is not.

    ``since`` is when it was tried first and ``until`` when the place's time is up, in seconds since
    1970 as ``now`` is.
    """
    from topology.kubeapi.apiserver import ApiError, ApiUnreachable

    asked = 0.0
    if isinstance(error, ApiError) and error.status == TOO_MANY_REQUESTS:
        asked, end = error.retry_after, until
    elif isinstance(error, ApiUnreachable) or (isinstance(error, ApiError) and error.status >= 500):
        end = min(until, since + PATIENCE)
    else:
        return None
    pause = max(AGAIN, min(asked, LONGEST_PAUSE))
    return pause if now + pause < end else None


def may_have_been_made(failure: ApiFailure | NeedlessError) -> bool:
    """Whether an eviction that failed may have been made all the same: nobody has said no."""
    from topology.kubeapi.apiserver import ApiError, ApiNotSent, ApiUnreachable

    if isinstance(failure, ApiError):
        return failure.status >= 500
    return isinstance(failure, ApiUnreachable) and not isinstance(failure, ApiNotSent)


def _post_eviction(api: ApiServer, step: Eviction) -> None:
    """Evict a pod if it is still the same. Raises ApiFailure."""
    from topology.kubeapi.apiserver import path

    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": step.pod, "namespace": step.namespace},
        "deleteOptions": {"preconditions": {"uid": step.uid}},
    }
    where = path("/api/v1/namespaces", step.namespace, "pods", step.pod, "eviction")
    api.create(where, json.dumps(body).encode(), timeout=TIMEOUT)
