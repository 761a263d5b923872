"""Plans which pods to evict so that a waiting pod gets a guaranteed placement.

The command needs no extender: it reads the cluster with the caller's own rights and plans with the
extender's code. ``--evict`` carries the plan out, also with the caller's rights, because the
extender itself may not evict pods.

First a dry run at the API server checks whether the caller may evict the pods. Then a reservation
is written once, as an annotation on the waiting pod that names the victims. Then the victims are
evicted one after the other. The cluster is read before each eviction, so no pod is evicted for a
reservation that has become useless. The progress is stored only in the cluster, so the next call
can continue a call that was interrupted. The reservation ends when its time is up.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

from scheduler_extender.annotations import RESERVED
from scheduler_extender.cli.commandline import BadInputError
from scheduler_extender.cli.inputs import cluster_file, namespace_and_name, no_such_pod, tell
from scheduler_extender.cli.interrupts import pause
from scheduler_extender.cli.kubeconfig import asking
from scheduler_extender.cli.options import Form, Source
from scheduler_extender.cli.queries import Told, described, text_in
from scheduler_extender.explain.evictions import (
    Eviction,
    EvictionAdvice,
    EvictionPlan,
    eviction_advice,
)
from scheduler_extender.state.answers.decision import Settings
from scheduler_extender.state.cluster.cache import Cache
from scheduler_extender.state.pods.reservation import MAX_SECONDS, reservation_of, value_of
from scheduler_extender.wire import pod_decoder
from topology.core.devices import NodeName, PodUid
from topology.core.placement import Verdict
from topology.kubeapi.apiserver import (
    ApiError,
    ApiFailure,
    ApiNotSent,
    ApiServer,
    ApiUnreachable,
    ConflictError,
    Query,
    path,
)


def plan(
    pod: str, namespace: str | None, source: Source, keep: int, form: Form, *, evict: bool
) -> None:
    """Print which pods to evict; with ``evict`` write a reservation, and evict them.

    The reservation lasts ``keep`` seconds. Raises :class:`BadInputError`.
    """
    if not 30 <= keep <= MAX_SECONDS:
        raise BadInputError(f"--keep: allowed are 30 to {MAX_SECONDS:.0f} seconds, not {keep}")
    if source.cluster is not None:
        where, name = namespace_and_name(pod, namespace or "default")
        known = described(cluster_file(source.cluster), Verdict.EXPECTED)
        advice = _answer(known, where, name, f"{source.cluster}: ")
        _show(advice, form)
        return
    with asking(source.access) as (api, usual):
        where, name = namespace_and_name(pod, namespace or usual)
        advice = _answer(_read(api), where, name, "")
        reservation, cheapest = advice.reservation, advice.plan
        if not evict or (reservation is None and (cheapest is None or not cheapest.steps)):
            _show(advice, form)
            return
        _tell(advice, form)
        evicting = Evicting(api, advice, lambda: eviction_advice(_read(api), where, name))
        if reservation is None and cheapest is not None:
            evicting.reserve(cheapest, keep)
        evicting.carry_out()


def _read(api: ApiServer) -> Cache:
    from scheduler_extender.kube.reading import NOT_INSTALLED, one_look  # loads slowly

    seen = one_look(api, None, Settings(Verdict.EXPECTED), time.monotonic)
    if not seen.installed:
        raise BadInputError(NOT_INSTALLED)
    return seen.cluster


def _answer(known: Cache, namespace: str, name: str, source: str) -> EvictionAdvice:
    found = eviction_advice(known, namespace, name)
    if found is None:
        raise no_such_pod(source, namespace, name, known.snapshot())
    return found


def _tell(found: EvictionAdvice, form: Form) -> None:
    def draw(console: Console, _: bool) -> None:
        for line in found.text:
            console.print(Text(line))

    plan, held = found.plan, found.reservation
    evicted = held.to_evict if held is not None else plan.steps if plan is not None else ()
    names = [f"pod/{each.pod}" for each in evicted]
    sys.stdout.write(text_in(Told(lambda: found, names, draw), form))


def _show(advice: EvictionAdvice, form: Form) -> None:
    """Print the answer. Raises :class:`typer.Exit` with 1 if the pod waits and no plan helps it."""
    _tell(advice, form)
    helped = (
        advice.node or advice.takes or advice.reservation is not None or advice.plan is not None
    )
    if not helped:
        raise typer.Exit(1)


TIMEOUT = 10.0  # seconds for one request
PATIENCE = 30.0  # seconds for which an eviction is retried while the API server does not answer
AGAIN = 2.0  # seconds before a retry of an eviction, unless the API server requests a longer pause
# The longest pause before a retry, even if the API server requests more (``Retry-After``).
LONGEST_PAUSE = 15.0
WRITES = 5  # the number of attempts to write the reservation while other clients change the pod
TOO_MANY_REQUESTS = 429
FORBIDDEN = (401, 403)
NO_LONGER_THERE = (404, 409)  # the pod is gone, or another pod has its name


@dataclass(slots=True)
class Evicting:
    """The evictions for one waiting pod. ``look`` reads the cluster again."""

    api: ApiServer
    waiting: EvictionAdvice
    look: Callable[[], EvictionAdvice | None]
    evicted: set[str] = field(default_factory=set)  # UIDs of the pods that this call has evicted
    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = pause

    def reserve(self, plan: EvictionPlan, seconds: int) -> None:
        """Write the plan's reservation, which lasts this many seconds.

        Raises :class:`BadInputError` if the caller may not evict a pod of the plan or change the
        waiting pod, or if the waiting pod no longer needs the reservation.
        """
        for step in plan.steps:
            # Other obstacles, such as a disruption budget, may be gone by the time of the eviction.
            try:
                self._ask_to_evict(step, [("dryRun", "All")])
            except ApiError as error:
                if error.status in FORBIDDEN:
                    needed = f"permission to create pods/eviction in the namespace {step.namespace}"
                    said = f"no pod was evicted: you need {needed}: {error}"
                    raise BadInputError(said) from error
        for _ in range(WRITES):
            try:
                self._reserve(plan, seconds)
            except ConflictError:
                continue  # another field of the pod has changed meanwhile
            except ApiFailure as error:
                raise BadInputError(
                    f"no pod was evicted: no reservation was written: {error}"
                ) from error
            return
        raise BadInputError(
            "no pod was evicted: other clients keep changing the pod; run the command again"
        )

    def _reserve(self, plan: EvictionPlan, seconds: int) -> None:
        pod = pod_decoder.decode(self.api.get(self._path, timeout=TIMEOUT))
        reservation, today = reservation_of(pod), self.api.today()
        if pod.metadata.uid != self.waiting.uid or pod.spec.node_name:
            raise BadInputError("no pod was evicted: the pod is gone, or has a node now")
        if reservation is not None and reservation.lasts(today):
            raise BadInputError("no pod was evicted: another call holds a reservation for the pod")
        victims = [PodUid(step.uid) for step in plan.steps]
        value = value_of(PodUid(self.waiting.uid), NodeName(plan.node), today + seconds, victims)
        metadata = {
            "uid": self.waiting.uid,
            "resourceVersion": pod.metadata.resource_version,
            "annotations": {RESERVED: value},
        }
        body = json.dumps({"metadata": metadata}).encode()
        try:
            self.api.patch(self._path, body, timeout=TIMEOUT)
        except ApiFailure as error:
            if not perhaps_done(error):
                raise
            unknown = "it is unknown whether the reservation was written"
            raise BadInputError(
                f"no pod was evicted, and {unknown}: {error}; run the command again"
            ) from error

    @property
    def _path(self) -> str:
        return path("/api/v1/namespaces", self.waiting.namespace, "pods", self.waiting.name)

    def carry_out(self) -> None:
        """Evict the remaining victims of the reservation.

        Raises :class:`typer.Exit` with 1 if not all of them are evicted.
        """
        refused, refused_since = "", 0.0
        while (step := self._next()) is not None:
            failure = self._evict(step)
            if failure is None:
                continue
            now = self.now()
            first = refused != step.uid
            if first:
                refused, refused_since = step.uid, now
            seconds = pause_before_another_try(failure, now - refused_since)
            if seconds is None:
                said = f"{step.name} was not evicted"
                if perhaps_done(failure):
                    said = f"it is unknown whether {step.name} was evicted"
                self._stop(f"{said}: {failure}")
            if first:
                tell(f"retrying to evict {step.name}: {failure}")
            self.pause(seconds)

    def _next(self) -> Eviction | None:
        """Return the next pod to evict; None if none is left, or the waiting pod has a node."""
        seen = self._seen()
        if seen is None or seen.uid != self.waiting.uid:
            self._stop("the pod is gone")
        if seen.node is not None:
            tell(f"{seen.pod} is on {seen.node} now")
            return None
        reservation = seen.reservation
        if seen.undecided:
            self._stop(seen.undecided)
        if reservation is None:
            self._stop("the reservation has ended")
        if reservation.problem:
            self._stop(reservation.problem)
        left = [step for step in reservation.to_evict if step.uid not in self.evicted]
        if left:
            return left[0]
        until = f"{reservation.node} is reserved for {seen.pod} until {reservation.until}"
        tell(f"all pods of the plan are evicted; {until}")
        return None

    def _seen(self) -> EvictionAdvice | None:
        """Return the current advice. A temporary failure is retried, as for an eviction."""
        began = self.now()
        while True:
            try:
                return self.look()
            except ApiFailure as error:
                seconds = pause_before_another_try(error, self.now() - began)
                if seconds is None:
                    self._stop(f"the cluster cannot be read: {error}")
                self.pause(seconds)

    def _evict(self, step: Eviction) -> ApiFailure | None:
        """Evict a pod if it still has the planned UID.

        Returns the failure; None if the pod is evicted or was already gone.
        """
        try:
            self._ask_to_evict(step)
        except ApiFailure as error:
            if not isinstance(error, ApiError) or error.status not in NO_LONGER_THERE:
                return error
            tell(f"{step.name} was already gone")
        else:
            tell(f"evicted {step.name}")
        self.evicted.add(step.uid)
        return None

    def _ask_to_evict(self, step: Eviction, query: Query = ()) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": step.pod, "namespace": step.namespace},
            "deleteOptions": {"preconditions": {"uid": step.uid}},
        }
        where = path("/api/v1/namespaces", step.namespace, "pods", step.pod, "eviction")
        self.api.create(where, json.dumps(body).encode(), query, timeout=TIMEOUT)

    def _stop(self, why: str) -> NoReturn:
        tell(f"no more pods are evicted: {why}")
        tell("run the command again to go on, or to get a new plan once the reservation has ended")
        raise typer.Exit(1)


def perhaps_done(error: ApiFailure) -> bool:
    """Check whether a write with this failure may have been done all the same."""
    if isinstance(error, ApiError):
        return error.status >= 500
    return isinstance(error, ApiUnreachable) and not isinstance(error, ApiNotSent)


def pause_before_another_try(error: ApiFailure, tried: float) -> float | None:
    """Return the seconds until a failed eviction is retried; None if a retry is useless.

    ``tried`` is the number of seconds since the first failure. An eviction that a disruption budget
    forbids is retried until the reservation ends.
    """
    if isinstance(error, ApiError) and error.status == TOO_MANY_REQUESTS:
        # The whole cluster is read before each retry, so retries get rarer as time passes.
        return min(max(AGAIN, error.retry_after, tried / 2), LONGEST_PAUSE)
    passing = isinstance(error, ApiUnreachable) or (
        isinstance(error, ApiError) and error.status >= 500
    )
    return AGAIN if passing and tried + AGAIN < PATIENCE else None
