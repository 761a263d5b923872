"""The devices that kube-scheduler allocates to the claims of a pod on one node.

kube-scheduler goes through the requests of all claims in their order. It tries the alternatives of
each request one after the other, and for each device of an alternative the free devices in the
order in which they are published. When it cannot continue, it goes back. It takes the first way
that gives everything. Ways that surely fail are not tried here, which does not change the result.
There is one exception: if a request asks for all devices and these have to have a value in common,
a way that fails may end the search (:class:`_NeverError`), so it is tried.

Sources: k8s.io/dynamic-resource-allocation 0.36 and 0.37 (``structured/internal/incubating``), read
and run (tests/differential/test_claims.py).
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from topology.core.devices import Mask
from topology.core.memo import interruptible, memoized

STEPS = 2_000  # devices that are tried for one pod on one node
LOOKS = 40_000  # requests, values and devices that are examined for one pod on one node
MOST = 32  # devices of one claim; kube-scheduler allocates no more


class NotFollowedError(Exception):
    """The allocation cannot be determined. The message tells the user why."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to meet a request: any ``count`` of ``devices`` or, without a count, all of them.

    Devices are positions in the order in which they are published.
    """

    devices: Mask
    count: int | None

    @property
    def needed(self) -> int:
        """The number of devices that it takes. Without a count it takes at least one, so an
        alternative without devices is never met."""
        return self.count if self.count is not None else max(1, self.devices.bit_count())


@dataclass(frozen=True, eq=False)
class Values:
    """The values of one attribute, by the devices' positions. A device without the attribute has
    None."""

    each: Sequence[Hashable | None]

    @cached_property
    def groups(self) -> Mapping[Hashable, Mask]:
        """The devices of each value."""
        interruptible()
        found = defaultdict[Hashable, Mask](int)
        for device, value in enumerate(self.each):
            if value is not None:
                found[value] |= 1 << device
        return found

    @property
    def shared_bytes(self) -> int:
        """The approximate size in bytes."""
        return 500 + len(self.each) * (200 + len(self.each) // 8)


@dataclass(frozen=True, slots=True)
class Alike:
    """A constraint that devices have one of the ``values`` in common. A device without a value
    never meets it."""

    values: Values
    requests: frozenset[tuple[int, int]]  # what it applies to, by request and alternative


@dataclass(frozen=True, slots=True)
class _Given:
    request: int
    alternative: int
    device: int


def allocated(
    free: Mask, requests: Sequence[Sequence[Alternative]], alike: Sequence[Alike] = ()
) -> tuple[int, ...] | None:
    """Return the allocated devices, request by request; None if no way gives all of them.

    Raises :class:`NotFollowedError` if too many ways have to be tried.

    >>> pair, any_two = Alternative(0b0110, 2), Alternative(0b1111, 2)
    >>> allocated(0b1101, [[pair, any_two]]), allocated(0b1101, [[pair]])
    ((0, 2), None)
    """
    found = _allocated(free, tuple(map(tuple, requests)), tuple(alike))
    if isinstance(found, str):
        raise NotFollowedError(found)
    return found


@memoized
def _allocated(
    free: Mask, requests: tuple[tuple[Alternative, ...], ...], alike: tuple[Alike, ...]
) -> tuple[int, ...] | str | None:
    """Return the same as :func:`allocated`, or the reason why it cannot be determined."""
    try:
        given = _Search(requests, alike).following(0, free, ())
    except _NeverError:
        return None
    except NotFollowedError as error:
        return str(error)
    except RecursionError:
        return "there are too many devices to allocate for the pod's claims"
    return None if given is None else tuple(each.device for each in given)


class _NeverError(Exception):
    """A request asks for all devices, and one of them does not match. That ends the search."""


@dataclass(slots=True)
class _Search:
    requests: Sequence[Sequence[Alternative]]
    alike: Sequence[Alike]
    steps: int = 0
    looks: int = 0
    looks_ahead: bool = field(init=False)

    def __post_init__(self) -> None:
        concerned = frozenset[tuple[int, int]]().union(*(each.requests for each in self.alike))
        self.looks_ahead = not any(
            wanted.count is None and (request, number) in concerned
            for request, each in enumerate(self.requests)
            for number, wanted in enumerate(each)
        )

    def following(
        self, request: int, free: Mask, given: tuple[_Given, ...]
    ) -> tuple[_Given, ...] | None:
        """Return all allocated devices; ``given`` are those of the requests before this one."""
        self._step()
        if request == len(self.requests):
            return given
        if self.looks_ahead and self._is_in_vain(request, free):
            return None
        for number, wanted in enumerate(self.requests[request]):
            at, count = (request, number), wanted.count
            if count is not None:
                devices = wanted.devices & free
                if self.looks_ahead:
                    devices &= self._possible(at, count, devices, free, given)
                found = self._devices(at, count, devices, free, given)
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
        """Return the same, with ``count`` of these devices for request and alternative ``at``."""
        if not count:
            return self.following(at[0] + 1, free, given)
        while devices.bit_count() >= count:
            self._step()
            bit = devices & -devices
            if not bit & free:
                return None  # the request asks for all of them, and this one is not free
            devices ^= bit
            new = _Given(*at, bit.bit_length() - 1)
            self._look(len(self.alike) * (1 + len(given)))
            if all(self._goes_with(each, new, given) for each in self.alike):
                found = self._devices(at, count - 1, devices, free & ~bit, (*given, new))
                if found is not None:
                    return found
            elif self.requests[at[0]][at[1]].count is None:
                raise _NeverError
        return None

    def _is_in_vain(self, request: int, free: Mask) -> bool:
        """Check whether too few devices are left for this request and those that follow."""
        least, some = 0, 0
        self._look(sum(map(len, self.requests[request:])))
        for each in self.requests[request:]:
            left = [a for a in each if (a.devices & free).bit_count() >= a.needed]
            if not left:
                return True
            least += min(a.needed for a in left)
            for wanted in left:
                some |= wanted.devices
        return least > (some & free).bit_count()

    def _possible(
        self, at: tuple[int, int], count: int, devices: Mask, free: Mask, given: tuple[_Given, ...]
    ) -> Mask:
        """Return the devices whose value enough devices have, for all requests concerned."""
        for alike in self.alike:
            if at not in alike.requests:
                continue
            groups = alike.values.groups
            given_to = (o.device for o in given if (o.request, o.alternative) in alike.requests)
            fixed = next((alike.values.each[device] for device in given_to), None)
            self._look(len(given) + (len(groups) if fixed is None else 1))
            self._look(sum(map(len, self.requests[at[0] + 1 :])))
            least = count + sum(
                min(
                    wanted.needed if (request, number) in alike.requests else 0
                    for number, wanted in enumerate(self.requests[request])
                )
                for request in range(at[0] + 1, len(self.requests))
            )
            possible = 0
            for group in groups.values() if fixed is None else [groups[fixed]]:
                enough = (group & devices).bit_count() >= count
                if enough and (group & free).bit_count() >= least:
                    possible |= group
            devices &= possible
        return devices

    def _step(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise NotFollowedError("there are too many ways to allocate the pod's claims")
        self._look(1)

    def _look(self, at: int) -> None:
        """Count the requests, values and devices that are examined."""
        interruptible()
        self.looks += at
        if self.looks > LOOKS:
            raise NotFollowedError("there are too many devices to compare for the pod's claims")

    def _goes_with(self, alike: Alike, new: _Given, given: tuple[_Given, ...]) -> bool:
        if (new.request, new.alternative) not in alike.requests:
            return True
        values = alike.values.each
        value = values[new.device]
        others = (o for o in given if (o.request, o.alternative) in alike.requests)
        return value is not None and all(values[o.device] == value for o in others)
