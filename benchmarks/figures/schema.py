"""What figures are made of."""

import os
import platform
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)


def _as_given(value: float, check: ValidatorFunctionWrapHandler) -> float:
    """A whole number stays one: a file that is written again has the same digits."""
    check(value)
    return value


# A finite number.
Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False), WrapValidator(_as_given)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class Interval(NamedTuple):
    """A mean, and half the width of its 95 % interval; 0 for the width of a single value."""

    mean: Number
    half: Number


class Figures(BaseModel):
    """A row or an object of a file of figures: checked wherever it is made, and never changed.

    Fields that are unknown are ignored, so a file of a later version can still be read. A default
    says that a report does without the field.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    # Fields that do not stand in the file where they are None.
    left_out: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_nothing(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        row: dict[str, Any] = write(self)
        for name in self.left_out:
            if row[name] is None:
                del row[name]
        return row

    def as_json(self) -> dict[str, Any]:
        """The object as the file has it."""
        return self.model_dump(by_alias=True)


def preamble(benchmark: str, **parameters: Any) -> dict[str, Any]:
    """What a file of measurements begins with: the command, what it was told, and where it ran."""
    machine = {"cpus": os.cpu_count(), "python": platform.python_version()}
    return {"benchmark": benchmark, "parameters": parameters, "machine": machine}
