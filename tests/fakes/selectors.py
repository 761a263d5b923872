"""Label selectors as a real API server reads them: the forms that people type."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_FORMS = re.compile(
    rf"\s*(?:(?P<no>!)\s*(?P<absent>{_NAME})|(?P<key>{_NAME})\s*"
    rf"(?:(?P<sign>==|=|!=)\s*(?P<value>[-A-Za-z0-9_.]*)"
    rf"|(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?)\s*"
)


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether a selector selects an object with these labels. Raises :class:`ValueError`."""
    verdict = True
    for part in re.split(r",(?![^()]*\))", selector):
        found = _FORMS.fullmatch(part)
        if found is None:
            raise ValueError(
                f"unable to parse requirement: found {part!r}, expected: an identifier"
            )
        verdict = _meets(found, labels) and verdict
    return verdict


def _meets(found: re.Match[str], labels: Mapping[str, str]) -> bool:
    if found["no"]:
        return found["absent"] not in labels
    has = labels.get(found["key"])
    if found["sign"]:
        return (has == found["value"]) == (found["sign"] != "!=")
    if found["word"]:
        values = {value.strip() for value in found["values"].split(",")}
        return (has in values) == (found["word"] == "in")
    return has is not None
