"""Policies by name, and policies from a user's own file."""

from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


class UnknownPolicyError(ValueError):
    """There is no such policy; the message says which there are."""


def label(name: str) -> str:
    """What a policy is called in tables: of ``path/to/file.py:NAME`` the last word.

    >>> label("examples/policy.py:Tidy"), label("FGD")
    ('Tidy', 'FGD')
    """
    return name.rpartition(".py:")[2]


def find_policy(name: str, known: Mapping[str, Any]) -> Any:
    """What ``known`` has under a name, or what stands in a file, as ``path/to/file.py:NAME``.

    Raises :class:`UnknownPolicyError`.
    """
    if name in known:
        return known[name]
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py"):
        raise UnknownPolicyError(
            f"{name!r}: allowed are {', '.join(known)} and path/to/file.py:NAME"
        )
    if not Path(path).is_file():
        raise UnknownPolicyError(f"{name!r}: there is no file {path}")
    found = getattr(_module(path), attribute, None)
    if found is None:
        raise UnknownPolicyError(f"{name!r}: {path} has no {attribute}")
    if not callable(found):
        raise UnknownPolicyError(f"{name!r}: a class or a function is needed, not {found!r}")
    return found


@cache
def _module(path: str) -> object:
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018 (it is a .py file)
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UnknownPolicyError(f"{path}: {type(error).__name__}: {error}") from error
    return module
