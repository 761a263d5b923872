"""What filter would say of a node once pods have gone from it, for a member of a group.

A node that would take the pod by itself is not enough: filter sends a gang that has not started to
one domain only, the best of those that have a place for every member. So an eviction in another
domain would help nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from scheduler_extender.limits import VERB_SECONDS
from scheduler_extender.state.cluster import Cluster
from scheduler_extender.state.enquiry import OutOfTimeError, enquire
from scheduler_extender.state.gangdomains import Direction
from scheduler_extender.state.groupenquiry import Gathering, gather
from scheduler_extender.state.members import Member
from scheduler_extender.state.node import NodeFacts
from scheduler_extender.unblocking import Joining
from topology.core.devices import NodeName


class Afterwards:
    """One member of a group, asked about nodes as they would be. Changes nothing: filter may send
    the gang elsewhere afterwards as if nobody had asked."""

    def __init__(
        self,
        cluster: Cluster,
        member: Member | None,
        late: Callable[[], bool],
        is_open: Callable[[NodeFacts], bool] = lambda facts: True,
    ) -> None:
        self._cluster = cluster
        self._member = member
        self._late = late
        self._is_open = is_open
        self._one_of_each: dict[str, str] | None = None
        self._rivals: dict[str | None, list[str]] = {}

    def on(self, facts: NodeFacts) -> Joining:
        """What the group says about a node with these facts.

        Raises :class:`.OutOfTimeError` where that is not worked out in time.
        """
        member = self._member
        if member is None or not member.bound_to_domain:
            return Joining()
        instead = {facts.name: facts}
        here = self._gathered(member, [facts.name], instead)
        rivals = self._rivals_of(member, here.domains[0])
        if rivals and facts.name not in here.rejections:
            here = self._gathered(member, [facts.name, *rivals], instead)
        return Joining(here.domains[0], here.rejections.get(facts.name))

    def _gathered(
        self, member: Member, names: list[str], instead: Mapping[NodeName, NodeFacts] | None = None
    ) -> Gathering:
        found = gather(
            self._cluster,
            member,
            names,
            late=self._late,
            instead=instead,
            direction=self._direction(member),
        )
        if found.late:
            raise OutOfTimeError
        return found

    def _direction(self, member: Member) -> Direction:
        return self._cluster.direction_of(member.membership, member.uid)

    def _rivals_of(self, member: Member, domain: str | None) -> list[str]:
        """A node of the best other domain to which the gang may go as things are."""
        started = self._cluster.standing(member.membership, member.uid).living
        if not member.membership.gang or started:
            return []
        if domain not in self._rivals:
            nodes = self._passing(member)
            others = {d: name for d, name in nodes.items() if d != domain}
            found = self._gathered(member, list(others.values())) if others else None
            best = found.best if found is not None else None
            self._rivals[domain] = [others[best]] if best is not None else []
        return self._rivals[domain]

    def _passing(self, member: Member) -> Mapping[str, str]:
        """A node of each domain that takes the member by itself as it is."""
        if self._one_of_each is None:
            names = [f.name for f in self._cluster.all_facts() if self._is_open(f)]
            answered = enquire(self._cluster, member.request, names, seconds=VERB_SECONDS)
            if answered.late:
                raise OutOfTimeError
            takes = [n for n, found in answered.each() if found and found.rejection is None]
            self._one_of_each = self._by_domain(member, takes)
        return self._one_of_each

    def _by_domain(self, member: Member, names: Iterable[str]) -> dict[str, str]:
        look = self._cluster.look_at_group(member.membership, member.uid)
        found: dict[str, str] = {}
        for name in names:
            domain = look.domain_of(name)
            if domain is not None:
                found.setdefault(domain, name)
        return found
