"""Pods that have ended, or are gone from the API server, and count on their node all the same.

*leaving*   deleted, and no report has shown yet that the kubelet has let go
*departed*  ended before any report showed it, while other pods were unreported (see ``ledger``)
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_extender.state.pods.record import PodRecord
from topology.core.devices import PodUid
from topology.core.report import Report

UNKNOWN_VERSION = -1
"""In place of a resourceVersion that cannot be compared with others."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A pod that is gone from the API server before its kubelet was seen to let go of it.

    ``version`` is a resourceVersion at which it was gone, ``sequence`` that of the last report
    then.
    """

    pod: PodRecord
    version: int
    sequence: int

    def confirmed_by(self, report: Report) -> bool:
        """Whether the report's agent surely knew of the deletion when it asked the kubelet.

        A pod that had ended is gone as soon as a report shows it no more: its kubelet had it.
        Where it does not say what it knew, or nothing that can be compared, the second later report
        will do: the first may have been on its way already, and an agent looks again only once it
        has written what it saw.
        """
        if self.pod.ended:
            return True
        knew = None if self.version < 0 else report.knew_pods_at(self.version)
        return report.sequence >= self.sequence + 2 if knew is None else knew


@dataclass(frozen=True, slots=True)
class Departed:
    """A pod that ended, or is gone, before any report showed it.

    ``beside`` are the pods that were unreported then: it may have been there when they were
    admitted. With ``many`` it stands for more like it than anybody can follow.
    """

    pod: PodRecord
    beside: frozenset[PodUid]
    many: bool = False
