"""What NVIDIA's driver shows below ``/proc/driver``: the capabilities of MIG instances."""

from collections.abc import Iterable
from pathlib import Path

MOST_GPU_INSTANCES = 15  # of one GPU, as the driver lists their capabilities


def write_capabilities(folder: Path, gpus: Iterable[int]) -> None:
    """``mig-minors``: a device node's number for every instance that the GPUs of these minor
    numbers could have. ``folder`` stands for ``/proc/driver``."""
    names = ["config", "monitor"]
    for gpu in gpus:
        for number in range(MOST_GPU_INSTANCES):
            whole = f"gpu{gpu}/gi{number}"
            names += [f"{whole}/access", f"{whole}/ci0/access"]
    capabilities = folder / "nvidia-caps"
    capabilities.mkdir(parents=True)
    lines = [f"{name} {number}\n" for number, name in enumerate(names, start=1)]
    (capabilities / "mig-minors").write_text("".join(lines))
