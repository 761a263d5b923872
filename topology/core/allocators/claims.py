"""Which devices kube-scheduler allocates to the claims of a pod on one node.

It goes through the requests of all claims in their order, tries the alternatives of each one after
the other, and for each device the free ones in the order in which they are published; where it
comes to no end it goes back. The first way to give everything is taken.

Sources: k8s.io/dynamic-resource-allocation 0.36 and 0.37 (``structured/internal/incubating``), read
and run (tests/differential/test_claims.py).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from topology.core.devices import Mask
from topology.core.remembering import interruptible

STEPS = 2_000  # devices that are tried for one pod on one node
MOST = 32  # devices of one claim; kube-scheduler gives no more


class NotFollowedError(Exception):
    """What is allocated cannot be said; the message says why, to people."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What will do for a request: any ``count`` of ``devices``, or, without a count, all of them
    together. Devices are positions in the order in which they are published."""

    devices: Mask
    count: int | None


@dataclass(frozen=True, slots=True)
class Alike:
    """Devices that have to have one ``value`` in common; a device without one never does."""

    values: Sequence[Hashable | None]  # of the devices by position
    requests: frozenset[tuple[int, int]]  # those concerned, by request and alternative


@dataclass(frozen=True, slots=True)
class _Given:
    request: int
    alternative: int
    device: int


def allocated(
    free: Mask, requests: Sequence[Sequence[Alternative]], alike: Sequence[Alike] = ()
) -> tuple[int, ...] | None:
    """The devices that are given, request by request; None where there is no way to give all.

    Raises :class:`NotFollowedError` where too much has to be tried.

    >>> pair, any_two = Alternative(0b0110, 2), Alternative(0b1111, 2)
    >>> allocated(0b1101, [[pair, any_two]]), allocated(0b1101, [[pair]])
    ((0, 2), None)
    """
    try:
        given = _Search(requests, alike).following(0, free, ())
    except _NeverError:
        return None
    except RecursionError as error:
        raise NotFollowedError("too many devices to allocate") from error
    return None if given is None else tuple(each.device for each in given)


class _NeverError(Exception):
    """All devices are asked for, and one does not go with the others: that ends the search."""


@dataclass(slots=True)
class _Search:
    requests: Sequence[Sequence[Alternative]]
    alike: Sequence[Alike]
    steps: int = 0

    def following(
        self, request: int, free: Mask, given: tuple[_Given, ...]
    ) -> tuple[_Given, ...] | None:
        """All that is given, where so much is given before this request."""
        self._step()
        if request == len(self.requests):
            return given
        for number, wanted in enumerate(self.requests[request]):
            at, count = (request, number), wanted.count
            if count is not None:
                found = self._devices(at, count, wanted.devices & free, free, given)
            elif wanted.devices:
                found = self._devices(at, wanted.devices.bit_count(), wanted.devices, free, given)
            else:
                continue
            if found is not None:
                return found
        return None

    def _devices(
        self,
        at: tuple[int, int],
        count: int,
        devices: Mask,
        free: Mask,
        given: tuple[_Given, ...],
    ) -> tuple[_Given, ...] | None:
        """The same with ``count`` of these devices for the request and alternative ``at``."""
        if not count:
            return self.following(at[0] + 1, free, given)
        while devices.bit_count() >= count:
            self._step()
            bit = devices & -devices
            if not bit & free:
                return None  # all of them are asked for
            devices ^= bit
            new = _Given(*at, bit.bit_length() - 1)
            if all(self._goes_with(each, new, given) for each in self.alike):
                found = self._devices(at, count - 1, devices, free & ~bit, (*given, new))
                if found is not None:
                    return found
            elif self.requests[at[0]][at[1]].count is None:
                raise _NeverError
        return None

    def _step(self) -> None:
        interruptible()
        self.steps += 1
        if self.steps > STEPS:
            raise NotFollowedError("too many ways to allocate its claims")

    def _goes_with(self, alike: Alike, new: _Given, given: tuple[_Given, ...]) -> bool:
        if (new.request, new.alternative) not in alike.requests:
            return True
        value = alike.values[new.device]
        others = (o for o in given if (o.request, o.alternative) in alike.requests)
        return value is not None and all(alike.values[o.device] == value for o in others)
