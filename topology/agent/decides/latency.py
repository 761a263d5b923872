"""How long a bind takes until the record shows it. Times are in seconds of one clock."""

from __future__ import annotations

from collections.abc import Collection

from topology.core.devices import PodUid


class ReportLatency:
    """Notes when each pod was first waited for, until a written record shows it."""

    def __init__(self) -> None:
        self._since: dict[PodUid, float] = {}

    def waiting(self, due: Collection[PodUid], now: float) -> None:
        """News of these pods is due."""
        for uid in due:
            self._since.setdefault(uid, now)

    def written(
        self, due: Collection[PodUid], shown: Collection[PodUid], now: float
    ) -> list[float]:
        """A record was written just now; how long the pods took that are waited for no more.

        Who is not ``shown`` has gone without ever being in a record, and took no time.
        """
        over = [uid for uid in self._since if uid not in due]
        since = {uid: self._since.pop(uid) for uid in over}
        return [now - at for uid, at in since.items() if uid in shown]
