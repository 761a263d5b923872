"""The part of CEL that is followed, value by value. Against the real one: tests/differential."""

from decimal import Decimal

import pytest

from scheduler_extender.kube.cel import CelError, Domains, Known, Version, matches, words_of

A = 'device.attributes["gpu.nvidia.com"]'
GPU = Known(
    "gpu.nvidia.com",
    Domains(
        {
            "gpu.nvidia.com": {
                "productName": "NVIDIA A100",
                "numaNode": 1,
                "healthy": True,
                "listed": None,
                "driverVersion": Version("550.0.1"),
            },
            "resource.kubernetes.io": {"pciBusID": "0000:07:00.0"},
        }
    ),
    Domains({"gpu.nvidia.com": {"memory": Decimal(80 * 2**30)}}),
)

TRUE = (
    'device.driver == "gpu.nvidia.com"',
    "device.driver == 'gpu.nvidia.com' && true",
    f'{A}.productName == "NVIDIA A100"',
    f'{A}["productName"].startsWith("NVIDIA") && {A}.productName.contains("A1")',
    f"{A}.numaNode == 1 && {A}.numaNode >= 1 && !({A}.numaNode < 1) && {A}.numaNode != -1",
    f"{A}.healthy",
    f"{A}.healthy == true && !!{A}.healthy",
    'device.attributes["resource.kubernetes.io"].pciBusID in ["a", "0000:07:00.0"]',
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0',
    'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("79Gi"))',
    'device.capacity["gpu.nvidia.com"].memory == quantity("80Gi")',
    f'"numaNode" in {A} && !("other" in {A})',
    f"has({A}.numaNode) && !has({A}.other) && !has(device.attributes['x'].y)",
    f"{A}.other == 1 || true",
    f"true || {A}.other == 1",
    f'{A}.numaNode != "1" && {A}.healthy != 1 && {A}.driverVersion == {A}.driverVersion',
    f'({A}.numaNode == 0 || {A}.numaNode == 1) && (1 == 1) && "a" < "b"',
    f"{A}.productName.lowerAscii().matches('^.*a100.*$')",
    f'{A}.productName.upperAscii() == "NVIDIA A100" && {A}.productName.size() == 11',
    f'!{A}.productName.matches("^A100") && {A}.productName.matches({A}.productName)',
    f'{A}.driverVersion.isGreaterThan(semver("550.0.1-rc.1")) && isSemver("1.0.0")',
    f'{A}.driverVersion.compareTo(semver("v550.0", true)) == 1 && !isSemver("01.0.0")',
    f'{A}.driverVersion == semver("550.0.1+build") && {A}.driverVersion.patch() == 1',
    'semver("1.0.0-2").isLessThan(semver("1.0.0-10")) && !isSemver("1.0.0-02")',
    'semver("1.0.0-a").isLessThan(semver("1.0.0-a.1")) && semver("1.2.3", false).major() == 1',
    f'isSemver("{2**64 - 1}.0.0-{2**64 - 1}") && !isSemver("0.{2**64}.0")',
    f'!isSemver("1.0.0-{2**64}") && !isSemver("1.0.0-1{"0" * 5000}")',
    f'"NVIDIA " + "A100" == {A}.productName && {A}.numaNode + 2 - 1 == 2 && 3 -2 == 1',
    f"({A}.numaNode == 0 ? {A}.other : {A}.numaNode) == 1 && (true ? true : false ? 1 : 2)",
    f'device.attributes["gpu.nvidia.com"][{A}.healthy ? "numaNode" : "x"] == 1',
    "1 == 1 == true && !device.allowMultipleAllocations && size([1, 2, 3]) == 3",
)
FALSE = (
    "false",
    f"{A}.numaNode == 0",
    f"false && {A}.other == 1",
    f"{A}.other == 1 && false",
    f"{A}.numaNode in []",
    f"{A}.other in []",
    f'!({A}.driverVersion != 1) || {A}.numaNode == quantity("1") || "1" == {A}.driverVersion',
    f'quantity("1") in [{A}.numaNode] || {A}.driverVersion in [semver("1.0.0"), 1]',
    f"{A}.numaNode == true",
)
UNKNOWN = {
    f"{A}.other == 1": "has no other",
    'device.attributes["x"].y == 1': "has no y",
    f"{A}.other == 1 || false": "has no other",
    f'{A}.driverVersion == "550.0.1"': "with its own kind",
    f'quantity("1") == {A}.numaNode': "with its own kind",
    f"{A}.driverVersion in ['a'] || true": "looked up among literals",
    f"{A}.listed == 1": "the type of listed is not supported",
    f"{A}.numaNode": "neither true nor false",
    f"!{A}.numaNode": "neither true nor false",
    f'{A}.numaNode < "2"': "no order",
    f'{A}.productName in "x"': "in needs a list",
    '"gpu.nvidia.com" in device.attributes': "in needs a list",
    f"[1] in {A}": "in needs a list",
    f"{A} == device.attributes['x']": "only single values can be compared",
    f"[{A}.healthy] == [1]": "only single values can be compared",
    f"[1] in [[{A}.healthy]]": "only single values can be compared",
    "device != device": "only single values can be compared",
    f'{A}.driverVersion.isGreaterThan(semver("1.0"))': "1.0 is not a semantic version",
    f'{A}.driverVersion > semver("1.0.0")': "no order",
    f'{A}.productName.matches("(a")': "the regular expression is not supported",
    f'{A}.productName.matches("[é]")': "the regular expression is not supported",
    f'{A}.productName.matches(".{{999}}.{{999}}")': "the regular expression is not supported",
    f'{A}.numaNode.matches("1")': "matches does not accept this value",
    f'("{"a" * 9000}" + {A}.productName).matches("(a+)+$")': "take too many steps",
    f'{A}.productName.lowerAscii("x")': "lowerAscii with 2 arguments is not supported",
    f'{A}.productName.replace("a", "b") == ""': "replace is not supported",
    f"{A}.numaNode + {A}.productName == 1": "cannot be added",
    f"9{'9' * 17} + {A}.numaNode - -99{'9' * 16} > 0 && {A}.x": "has no x",
    f"{A}.numaNode ? true : false": "neither true nor false",
    f"{A}.healthy ? {A}.other == 1 : true": "has no other",
    f"has(device.attributes[{A}.other].x)": "has no other",
    "true ? true": "the expression is incomplete",
    f"{A}.exists(x, x == 1)": "exists is not supported",
    f"{A}.productName.startsWith(1)": "startsWith does not accept this value",
    f'{A}.productName == "a\\"b"': "not supported",
    "1.5 == 1.5": "not supported",
    "": "incomplete",
    "true &&": "incomplete",
    "(true": "incomplete",
    "true)": "not supported from here on: )",
    "[1,": "incomplete",
    'quantity("lots") == quantity("1")': "not a quantity",
    "quantity(1) == 1": "quantity does not accept this value",
    "(" * 51 + "true" + ")" * 51: "nested parentheses",
    "!" * 9000 + "true": "too deeply",
    "device" + ".driver" * 60: "not supported",
    " " * 10240 + "true": "10244 characters",
}


@pytest.mark.parametrize("text", TRUE)
def test_true(text: str) -> None:
    assert matches(text, GPU) is True


@pytest.mark.parametrize("text", FALSE)
def test_false(text: str) -> None:
    assert matches(text, GPU) is False


@pytest.mark.parametrize("text", UNKNOWN)
def test_no_answer_without_a_reason(text: str) -> None:
    with pytest.raises(CelError) as error:
        matches(text, GPU)
    assert UNKNOWN[text] in str(error.value)
    assert len(str(error.value)) < 200


def test_versions_that_are_spelled_otherwise_are_alike_to_selectors_alone() -> None:
    assert Version("1.0.0") != Version("1.0.0+a"), "matchAttribute compares the texts"
    assert matches(f'{A}.driverVersion == semver("550.0.1+a")', GPU)


def test_a_name_that_is_put_together_concerns_every_attribute() -> None:
    for text in (f'{A}["a" + "b"] == 1', f"{A}.numaNode in {A}", f"{A}[{A}.productName]"):
        assert words_of([text]) is None
    for text in (f'{A}["a"] == 1', f'"a" in {A}', f'{A}.a in ["b", "c"]', 'device.driver == "a"'):
        words = words_of([text])
        assert words is not None
        assert "a" in words
        assert "anything" not in words


def test_long_chains_are_followed() -> None:
    assert matches(" && ".join([f"{A}.numaNode == 1"] * 150), GPU)
    assert not matches("||".join(["1 == 2"] * 1000), GPU)
