"""A pod's constraints as a ResourceClaim, for nodes with Dynamic Resource Allocation (DRA), and the
name under which a ResourceClaimTemplate is made for a pod at its admission.

The policy of ``manifests/base/options/claims`` builds the same name, and gives it to the pod. No
two requests have one name: it has the number of GPUs, and each annotation that matters.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_extender.annotations import KEYS, PREFIX
from topology.core.alternatives import Address

DRIVER = "gpu.nvidia.com"
GPUS = "gpus"  # what a claim, and its one request, are called in a pod
# On a namespace: pods may get claims. On a pod: it wants one.
LABEL, WANTED = PREFIX + "claims", "dra"
MATTER = tuple(key for key in KEYS if key != "policy")  # the annotations that a name has
NAMED = "gpu-topology-"
MOST = 253  # characters of a name
_count = re.compile(rf"{NAMED}([1-9][0-9]?)(\..*)?", re.ASCII).fullmatch
# In names of objects there are small letters and digits, and no more. So any other character is a
# z and its place here, from 10 on; a z, too.
ESCAPED = "zABCDEFGHIJKLMNOPQRSTUVWXYZ -_.,*?()+/"
_ESCAPES = {letter: f"z{place}" for place, letter in enumerate(ESCAPED, 10)}
_value = re.compile(rf"[a-z0-9{re.escape(ESCAPED)}]{{1,200}}", re.ASCII).fullmatch


def template_name(count: int, annotations: Mapping[str, str]) -> str | None:
    """The name of the template for so many GPUs with these annotations; None if there is none.

    >>> template_name(2, {"gpu-topology.io/link": "nvlink", "gpu-topology.io/gpu-model": "A100*"})
    'gpu-topology-2.link.nvlink.gpu-model.z11100z42'
    """
    values = {key: annotations[PREFIX + key] for key in MATTER if PREFIX + key in annotations}
    if not all(map(_value, values.values())):
        return None
    parts = (f".{key}.{_escaped(value)}" for key, value in values.items())
    name = f"{NAMED}{count}{''.join(parts)}"
    return name if len(name) <= MOST else None


def _escaped(value: str) -> str:
    return "".join(_ESCAPES.get(letter, letter) for letter in value)


def count_of(name: str) -> int | None:
    """The number of GPUs in the name of a template; None if it is no such name."""
    found = _count(name)
    return None if found is None else int(found[1])


def claim_spec(
    sets: Sequence[Sequence[Address]], count: int, device_class: str = DRIVER
) -> dict[str, Any]:
    """The spec of a claim for so many GPUs of any one of these sets."""
    alternatives = [
        {
            "name": f"set-{number}",
            "deviceClassName": device_class,
            "selectors": [{"cel": {"expression": selector(addresses)}}],
            "allocationMode": "ExactCount",
            "count": count,
        }
        for number, addresses in enumerate(sets)
    ]
    return {"devices": {"requests": [{"name": GPUS, "firstAvailable": alternatives}]}}


def selector(addresses: Sequence[Address]) -> str:
    """The CEL expression for the GPUs at these addresses.

    >>> selector([("A100", "0000:07:00.0")]).partition(" && ")[0]
    'device.attributes["gpu.nvidia.com"].productName == "A100"'
    """
    by_product = defaultdict[str, list[str]](list)
    for product, address in addresses:
        by_product[product].append(address)
    terms = [
        f'device.attributes["{DRIVER}"].productName == {json.dumps(product)} && '
        f'device.attributes["resource.kubernetes.io"].pciBusID in {json.dumps(each)}'
        for product, each in by_product.items()
    ]
    return terms[0] if len(terms) == 1 else " || ".join(f"({term})" for term in terms)
