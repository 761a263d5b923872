"""The port for kube-scheduler, with thin routes around the verbs.

Each verb is one ASGI endpoint (:mod:`.endpoint`) that reads a bounded body, decodes it, calls a
plain function and encodes the answer. FastAPI's validation does not run on that path, because
kube-scheduler waits for the answer. A body that cannot be read gets a 400 or 413 with one line,
never a 500.
"""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import structlog

from scheduler_extender import verbs, wire
from scheduler_extender.clientlimits import (
    BIND_STARTS_WITHIN,
    BIND_THREADS,
    EVALUATING_THREADS,
    MAX_BIND_BODY,
    VERB_SECONDS,
)
from scheduler_extender.deadline import Deadline, within
from scheduler_extender.http.bothports import Service, add_errors, add_health
from scheduler_extender.http.endpoint import Answer, NotReadyError, VerbApp
from scheduler_extender.http.workers import Workers

log = structlog.get_logger(__name__)

Args = TypeVar("Args")  # the decoded request of a verb


def create_app(service: Service) -> VerbApp:
    """Return the app for kube-scheduler, with the four verbs under /scheduler, and health."""
    app, answers = VerbApp(service.metrics, service.bodies), _Answers(service)
    evaluating = Workers(EVALUATING_THREADS)

    def leading(
        decode: Callable[[wire.Body], Args], answer: Callable[[Args, float], bytes]
    ) -> Answer:
        def answered(body: wire.Body, arrived: float) -> bytes:
            answers.need_lead()  # before decoding, so that an unreadable body gets this answer, too
            return answer(decode(body), arrived)

        return answered

    app.add_verb("filter", leading(wire.scheduling, answers.filter), evaluating)
    app.add_verb("prioritize", leading(wire.scheduling, answers.prioritize), evaluating)
    app.add_verb("preempt", leading(wire.preempting, answers.preempt), evaluating)
    bind = leading(wire.binding_decoder.decode, answers.bind)
    app.add_verb("bind", bind, Workers(BIND_THREADS), MAX_BIND_BODY)
    add_health(app, service)
    add_errors(app)
    return app


class _Answers:
    """The answer to each verb, from the decoded request to the encoded result.

    ``arrived`` is the time of arrival by :func:`time.monotonic`.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._cluster = service.cluster

    def filter(self, args: wire.ExtenderArgs, arrived: float) -> bytes:
        """Return the nodes that may take the pod."""
        shadow = self._service.shadow
        unready = self._service.unready() is not None
        if unready and shadow is None:
            return wire.encode(wire.FilterResult(error=verbs.NOT_SYNCED))
        self._service.saw(args.pod)
        full, names = _nodes_of(args)
        if unready:
            result = wire.FilterResult(node_names=list(names))
        else:
            result = self._filtered(args.pod, names)
        if full is None:
            return wire.encode(result)
        passed = set(result.node_names or ())
        kept = {"metadata": {}, "items": [raw for name, raw in full if name in passed]}
        return wire.encode(msgspec.structs.replace(result, nodes=kept, node_names=None))

    def _filtered(self, pod: wire.Pod, names: Sequence[str]) -> wire.FilterResult:
        """Return the answer to filter.

        In shadow mode no node is refused, and ``Service.shadow`` gets the would-be refusals.
        """
        deadline = within(self._cluster.clock, VERB_SECONDS)
        if self._service.shadow is None:
            return verbs.filter_nodes(self._cluster, pod, names, deadline)
        result, would = verbs.filter_in_shadow(self._cluster, pod, names, deadline)
        if would is not None:
            self._service.shadow(would)
        return result

    def prioritize(self, args: wire.ExtenderArgs, arrived: float) -> bytes:
        """Return the scores of the nodes."""
        self._need_sync()
        _, names = _nodes_of(args)
        deadline = within(self._cluster.clock, VERB_SECONDS)
        return wire.encode(verbs.prioritize(self._cluster, args.pod, names, deadline))

    def bind(self, args: wire.BindingArgs, arrived: float) -> bytes:
        """Bind the pod, and return the result.

        A refusal is an error inside the answer, as kube-scheduler expects it.
        """
        term = self._service.term()  # read before the decision, so that a later term fails the bind
        self.need_lead()
        if self._service.unready() is not None:
            return wire.encode(wire.BindingResult(verbs.NOT_SYNCED))
        try:
            self._bind(args, Deadline(time.monotonic, arrived + BIND_STARTS_WITHIN), term)
        except verbs.BindError as error:
            self._service.metrics.bind_errors.inc()
            names = {"pod": args.pod_name[:253], "node": args.node[:253]}
            log.info("bind rejected", **names, reason=str(error))
            return wire.encode(wire.BindingResult(str(error)))
        return wire.encode(wire.BindingResult())

    def _bind(self, args: wire.BindingArgs, deadline: Deadline, term: int) -> None:
        service = self._service
        if (problem := args.problem()) is not None:
            raise verbs.BindError(problem)
        if service.shadow is not None:
            verbs.bind_in_shadow(self._cluster, service.binder, args, deadline, term)
            return
        verbs.bind(self._cluster, service.binder, args, _now, deadline, service.limiter, term)

    def preempt(self, args: wire.PreemptionArgs, arrived: float) -> bytes:
        """Return the nodes on which the offered evictions would help."""
        if self._service.shadow is not None:
            return wire.encode(verbs.preempt_in_shadow(args))
        self._need_sync()
        return wire.encode(verbs.preempt(self._cluster, args, within(time.monotonic, VERB_SECONDS)))

    def need_lead(self) -> None:
        """Raise :class:`NotReadyError` unless this replica leads."""
        if (reason := self._service.standby()) is not None:
            raise NotReadyError(reason)

    def _need_sync(self) -> None:
        if self._service.unready() is not None:
            raise NotReadyError(verbs.NOT_SYNCED)


def _nodes_of(
    args: wire.ExtenderArgs,
) -> tuple[list[tuple[str, msgspec.Raw]] | None, Sequence[str]]:
    """Return the request's nodes as whole objects (None if it has only names), and their names."""
    full = args.full_nodes()
    return full, (args.node_names or []) if full is None else [name for name, _ in full]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
