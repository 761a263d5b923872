"""A validation of annotations says the same with the value (``messageExpression``) as without."""

import pytest
import yaml

from tests.commands import ROOT

POLICIES = ROOT / "manifests" / "base" / "options" / "validation" / "policies.yaml"
VALIDATIONS = [
    pytest.param(validation["message"], validation["messageExpression"], id=validation["message"])
    for policy in yaml.safe_load_all(POLICIES.read_text())
    for validation in policy["spec"].get("validations", ())
    if validation["message"].startswith("gpu-topology.io/")
]


@pytest.mark.parametrize(("message", "expression"), VALIDATIONS)
def test_it_says_what_is_allowed(message: str, expression: str) -> None:
    allowed = message.partition(": ")[2]
    assert f"{allowed}'" in " ".join(expression.replace("\\'", "'").split())
