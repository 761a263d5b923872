"""What an API server answers to a list and a watch, as far as a reflector reads it."""

from __future__ import annotations

import msgspec


class PageMeta(msgspec.Struct, rename="camel"):
    """The list's version, and the token of the next page; empty on the last."""

    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """A page of a list."""

    metadata: PageMeta
    items: list[msgspec.Raw] | None = None  # Go writes an empty list as null


class Event(msgspec.Struct):
    """One line of a watch: its type is ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    type: str
    object: msgspec.Raw


class ObjectMeta(msgspec.Struct, rename="camel"):
    """The version of an object."""

    resource_version: str


class Object(msgspec.Struct):
    """Any object, for its version."""

    metadata: ObjectMeta


class Status(msgspec.Struct):
    """What an ERROR event carries instead of an object."""

    code: int = 500
    reason: str = ""
    message: str = ""


decode_list = msgspec.json.Decoder(Page).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_object = msgspec.json.Decoder(Object).decode
decode_status = msgspec.json.Decoder(Status).decode
