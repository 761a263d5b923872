"""What is told: values in Python, JSON on the wire, and schemas in ``/openapi.json``."""

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A field without a default is in every answer; one that equals its default is left out."""
