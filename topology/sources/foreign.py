"""Whose tool printed a text, where it was not NVIDIA's."""

from __future__ import annotations

import re
from collections.abc import Iterable

from topology.sources.imported import SourceError
from topology.sources.lines import Line

_TOOLS = (
    # Whose tool it is, and what only that tool prints.
    (
        "AMD's rocm-smi",
        r".*?(?:ROCm System Management|(?:Weight|Hops|Link Type) between two GPUs\b)",
    ),
    ("AMD's rocm-smi", r".*?\(Topology\) Numa|GPU[0-9]+\s+(?:(?:0|XGMI|PCIE)\s+)*(?:XGMI|PCIE)\b"),
    ("MetaX's mx-smi", r".*?MetaX System Management"),
    ("MetaX's mx-smi", r"GPU[0-9]+\s+(?:(?:X|SYS|NODE|PHB|PXB|PIX|ETH)\s+)*MX\b"),
    ("Huawei's npu-smi", r"NPU[0-9]+\s+(?:NPU[0-9]|X\b|SYS\b|HCCS\b|PIX\b|PHB\b|PXB\b)"),
)
_COMMANDS = {
    "rocm-smi": "AMD's rocm-smi",
    "amd-smi": "AMD's amd-smi",
    "mx-smi": "MetaX's mx-smi",
    "npu-smi": "Huawei's npu-smi",
    "xpu-smi": "Intel's xpu-smi",
    "mthreads-gmi": "Moore Threads' mthreads-gmi",
}
_SIGNS = tuple((whose, re.compile(sign)) for whose, sign in _TOOLS)
_COMMAND = re.compile(rf"(?:.*?[$#>%])?\s?(?:sudo )?({'|'.join(_COMMANDS)})\b")
_MOST = 200
"""Characters at the beginning of a line in which a sign is looked for."""


def refuse_foreign(lines: Iterable[Line], cause: SourceError | None = None) -> None:
    """:class:`SourceError` where ``lines`` end with the output of another vendor's tool.

    That they show ``nvidia-smi`` after it makes it past. ``cause`` is why they cannot be read.
    """
    shown: tuple[int, str] | None = None
    for number, line, _ in lines:
        text = line.strip()[:_MOST]
        if "nvidia-smi" in text:
            shown = None
        elif command := _COMMAND.match(text):
            shown = shown or (number, _COMMANDS[command[1]])
        elif whose := next((name for name, sign in _SIGNS if sign.match(text)), None):
            shown = shown or (number, whose)
    if shown is not None:
        number, whose = shown
        message = f"this is {whose}: only NVIDIA's GPUs are read, paste `nvidia-smi topo -m`"
        raise SourceError(number, None, message) from cause
