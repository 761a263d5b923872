"""The flags of kube-scheduler that a configuration takes the place of."""

from typing import Any

import pytest

from scheduler_extender.installing import flags
from scheduler_extender.installing.yamledit import EditError

PROFILING, CONTENTION = ["enableProfiling"], ["enableContentionProfiling"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--v=2", "--leader-elect=false"], []),
        (["--profiling=false"], [(PROFILING, False)]),
        (["--profiling=F"], [(PROFILING, False)]),
        (["--profiling=false", "--profiling"], [(PROFILING, True)]),
        (["--profiling", "--config=/x"], [(PROFILING, True)]),
        (["--contention_profiling=0"], [(CONTENTION, False)]),
        (["--kube-api-qps", "70.5"], [(["clientConnection", "qps"], 70.5)]),
        (["--kube-api-burst=90"], [(["clientConnection", "burst"], 90)]),
        (
            ["--kube-api-content-type=application/json", "--kubeconfig=/k"],
            [
                (["clientConnection", "kubeconfig"], "/k"),
                (["clientConnection", "contentType"], "application/json"),
            ],
        ),
    ],
)
def test_a_flag_that_is_passed_over_is_reported(words: list[str], expected: Any) -> None:
    assert flags.settings(flags.read(words)) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--profiling=no", "--profiling: true or false is needed, not 'no'"),
        ("--kube-api-qps=many", "--kube-api-qps: a number is needed, not 'many'"),
        ("--kube-api-burst=1.5", "--kube-api-burst: a whole number is needed, not '1.5'"),
    ],
)
def test_a_value_with_which_kube_scheduler_does_not_start_is_named(
    word: str, expected: str
) -> None:
    with pytest.raises(EditError, match=expected):
        flags.settings(flags.read([word]))
