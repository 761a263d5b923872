"""What k3s starts its scheduler with, from several files."""

import pytest

from scheduler_extender.installing import k3s
from scheduler_extender.installing.k3s import CONFIG, FILE, FILES, OURS, TEXT
from scheduler_extender.installing.yamledit import EditError


@pytest.mark.parametrize(
    ("texts", "config"),
    [
        pytest.param({}, None, id="no files"),
        pytest.param({FILE: "# nothing yet\n"}, None, id="an empty one"),
        pytest.param({FILE: "kube-scheduler-arg: v=2\n"}, None, id="another flag"),
        pytest.param({FILE: "kube-scheduler-arg: [v=2]\n", OURS: TEXT}, CONFIG, id="ours is added"),
        pytest.param({FILE: "kube-scheduler-arg: config=/x\n"}, "/x", id="theirs"),
        pytest.param({FILE: "kube-scheduler-arg: [--config=/x, v=2]\n"}, "/x", id="with dashes"),
        pytest.param(
            {OURS: TEXT, f"{FILES}/z.yaml": "kube-scheduler-arg: [v=2]\n"}, None, id="a later file"
        ),
        pytest.param(
            {OURS: TEXT, f"{FILES}/z.yaml": "kube-scheduler-arg+: [v=2]\n"}, CONFIG, id="later, +"
        ),
        pytest.param(
            {
                f"{FILES}/a.yaml": "kube-scheduler-arg: [config=/a]\n",
                FILE: "kube-scheduler-arg: v=1",
            },
            "/a",
            id="config.yaml is first",
        ),
    ],
)
def test_the_last_value_holds(texts: dict[str, str], config: str | None) -> None:
    assert k3s.started_with(texts).get("config") == config


@pytest.mark.parametrize("text", ["- 1\n", "a: 1\n---\nb: 2\n", "a: [\n"])
def test_a_file_that_k3s_could_not_read_is_named(text: str) -> None:
    with pytest.raises(EditError, match=f"^{FILE}: "):
        k3s.started_with({FILE: text})
