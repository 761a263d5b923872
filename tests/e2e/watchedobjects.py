"""Objects of a real API server, followed while a context is open."""

from collections.abc import Iterable
from typing import Self

import msgspec

from tests.e2e.controlplane import ControlPlane
from tests.waiting import PATIENCE
from topology.kubeapi.apiserver import ApiServer
from topology.kubeapi.reflector import Reflector, Watched


class WatchedObjects:
    """Takes every version of every object at a path (:meth:`apply`) while the context is open."""

    def __init__(self, control_plane: ControlPlane, path: str, name: str) -> None:
        self._api = ApiServer.from_kubeconfig(control_plane.kubeconfig())
        self._reflector = Reflector(self._api, Watched(path, name), self)

    def __enter__(self) -> Self:
        self._reflector.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()
        self._reflector.stop(PATIENCE)

    # The reflector's sink.

    def replace(self, objects: Iterable[msgspec.Raw], resource_version: str) -> None:
        """Take a complete list."""
        for obj in objects:
            self.apply(obj)

    def apply(self, obj: msgspec.Raw) -> None:
        """Take a version of an object."""
        raise NotImplementedError

    def delete(self, obj: msgspec.Raw) -> None:
        """What an object was stays noted."""
