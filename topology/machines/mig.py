"""Machines of the catalogue with GPUs cut into MIG instances."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from topology.core.devices import MIB, Bytes, Gpu, GpuResource, MigInstance
from topology.core.graph import NodeTopology, TopologyError
from topology.core.links import Link
from topology.core.mig import MIG

SLICES = 7  # the most compute slices of a GPU; an A30 has four
STRATEGIES = ("single", "mixed")
# Profiles of whole slices, from NVIDIA's MIG user guide: A100 of 40 GB, A30, A100 and H100 of 80
# GB, H100 of 94 GB, H20 and GH200 of 96 GB, H200, GH200 of 144 GB, B200, GB200. A name that several
# cards share is listed once. Newer cards have other profiles.
PROFILES = (
    *("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    *("1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"),
    *("1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    *("1g.12gb", "1g.12gb+me", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"),
    *("3g.48gb", "4g.48gb", "7g.96gb"),
    *("1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    *("1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"),
    *("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
    *("1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"),
)
_PROFILE = re.compile(r"(?:[1-7]c\.)?([1-7])g\.([0-9]{1,3})gb(?:[+-][a-z.]+)*")
# Memory of an instance for each GB in its profile's name, a little less than NVML reports.
_PER_GB = 973 * MIB


def cut(
    topology: NodeTopology,
    profiles: Sequence[str],
    *,
    strategy: str = "mixed",
    gpus: Collection[int] | None = None,
    replicas: int = 1,
) -> NodeTopology:
    """Return the node with its GPUs cut into instances of these profiles.

    ``gpus`` are the driver indices of the GPUs to cut; None means all GPUs. Under the strategy
    ``single`` NVIDIA's plugin serves all instances as ``nvidia.com/gpu``, but only if all GPUs are
    cut into instances of one profile. Under ``mixed`` each profile has a resource of its own. If
    ``replicas`` is above 1, instances are time-sliced. Raises :class:`TopologyError`.

    >>> from topology.machines import machine
    >>> node = cut(machine("dgx-a100").topology("n"), ["3g.20gb", "2g.10gb"], gpus=[0])
    >>> [served.name for served in node.resources]
    ['nvidia.com/gpu', 'nvidia.com/mig-2g.10gb', 'nvidia.com/mig-3g.20gb']
    >>> len(node.gpus[0].mig_instances), node.gpus[1].mig_mode
    (2, 'disabled')
    """
    everything = {gpu.index for gpu in topology.gpus}
    split = everything if gpus is None else set(gpus)
    twice = sorted(gpu for gpu, times in Counter(gpus or ()).items() if times > 1)
    if twice:
        raise TopologyError(f"mig: gpus: GPU {twice[0]} is listed twice")
    if split - everything:
        raise TopologyError(f"mig: gpus: there is no GPU {min(split - everything)}")
    _check(profiles, strategy, whole=bool(everything - split))
    after = tuple(_cut(gpu, profiles) if gpu.index in split else gpu for gpu in topology.gpus)
    links = tuple(
        Link(link.a, link.b, link.pcie) if {link.a, link.b} & split else link
        for link in topology.links
    )
    resource: tuple[GpuResource, ...] = (GpuResource("nvidia.com/gpu", MIG, replicas),)
    if strategy == "mixed":
        resource = mixed_resources(after, replicas)
    return replace(topology, gpus=after, links=links, resources=resource)


def mixed_resources(gpus: Sequence[Gpu], replicas: int = 1) -> tuple[GpuResource, ...]:
    """Return the resources that NVIDIA's plugin serves for these GPUs under strategy ``mixed``."""
    names = sorted({resource_name(p.profile) for gpu in gpus for p in gpu.mig_instances})
    whole = any(gpu.mig_mode == "disabled" for gpu in gpus)
    return (
        *((GpuResource(),) if whole else ()),
        *(GpuResource(name, MIG, replicas) for name in names),
    )


def nominal_memory(profile: str) -> Bytes | None:
    """Return the approximate memory of an instance; None if ``profile`` is not a profile.

    The value is a little less than NVML reports.
    """
    read = _PROFILE.fullmatch(profile)
    return Bytes(int(read[2]) * _PER_GB) if read else None


def resource_name(profile: str) -> str:
    """Return the resource under which NVIDIA's plugin serves a profile with strategy ``mixed``.

    A compute instance has no resource of its own. If the plugin serves it, then as its GPU
    instance.

    >>> resource_name("1g.10gb+me"), resource_name("1c.3g.40gb")
    ('nvidia.com/mig-1g.10gb.me', 'nvidia.com/mig-3g.40gb')
    """
    return f"nvidia.com/mig-{re.sub('^[1-7]c[.]', '', profile).replace('+', '.')}"


def _check(profiles: Sequence[str], strategy: str, *, whole: bool) -> None:
    if strategy not in STRATEGIES:
        raise TopologyError(
            f"mig: strategy: allowed are {', '.join(STRATEGIES)}, not {strategy[:40]!r}"
        )
    slices = 0
    for profile in profiles:
        read = _PROFILE.fullmatch(profile)
        if read is None:
            raise TopologyError(
                f"mig: profiles: {profile[:40]!r} is no MIG profile such as 1g.10gb"
            )
        slices += int(read[1])
    if not 1 <= slices <= SLICES:
        raise TopologyError(f"mig: profiles: {slices} slices; allowed are 1 to {SLICES} in a GPU")
    if strategy == "single" and (whole or len(set(profiles)) > 1):
        raise TopologyError(
            "mig: with strategy single, NVIDIA's plugin serves no GPUs unless all GPUs of the node "
            "are split into instances of one profile"
        )


def _cut(gpu: Gpu, profiles: Sequence[str]) -> Gpu:
    name = gpu.uuid.removeprefix("GPU-")
    parts = tuple(
        MigInstance(f"MIG-{name}-{number}", profile, nominal_memory(profile) or Bytes(0))
        for number, profile in enumerate(profiles)
    )
    return replace(gpu, mig_mode="enabled", mig_instances=parts)
