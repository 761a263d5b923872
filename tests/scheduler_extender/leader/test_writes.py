"""What a leader that resigns may say of its binds."""

import pytest

from scheduler_extender.leader.leader import _Writes
from scheduler_extender.verbs import BindUnknownError, NotWrittenError


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        pytest.param(NotWrittenError("refused"), True, id="refused"),
        pytest.param(BindUnknownError("no answer"), False, id="no answer"),
        pytest.param(KeyError("a fault"), False, id="a fault of ours while the answer is read"),
    ],
)
def test_a_write_is_answered_only_where_its_end_is_known(error: Exception, answered: bool) -> None:
    writes = _Writes()
    with pytest.raises(type(error)), writes:
        raise error
    assert writes.all_answered is answered
