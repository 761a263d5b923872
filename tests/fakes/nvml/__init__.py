"""A fake NVML: a real shared library that the real ``pynvml`` loads, and a machine behind it.

:class:`FakeNvml` plays a ``NodeTopology`` and breaks it at will. It writes a plain text description
(``description.c`` says how it reads) that the library, ``nvml.c`` and its neighbours, reads again
whenever it has changed.
"""

from tests.fakes.nvml.building import CompilerMissing, library
from tests.fakes.nvml.machine import FakeNvml, MigInstance, address
from tests.fakes.nvml.testing import fake_nvml

__all__ = [
    "CompilerMissing",
    "FakeNvml",
    "MigInstance",
    "address",
    "fake_nvml",
    "library",
]
