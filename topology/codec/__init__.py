"""Conversion between the GPUTopology custom resource, ``gpu-topology.io/v1alpha1``, and our model.

``wire`` defines the fields and the values that are allowed in them. ``decoding`` reads an object,
and ``encoding`` writes one. ``hardware`` caches the specs that were read recently.
"""

from topology.codec.decoding import (
    Record,
    RecordError,
    decode,
    decode_report,
    first_error,
    shortened,
)
from topology.codec.encoding import encode, encode_report, encode_spec
from topology.codec.hardware import KnownHardware
from topology.codec.wire import API_VERSION, KIND

__all__ = [
    "API_VERSION",
    "KIND",
    "KnownHardware",
    "Record",
    "RecordError",
    "decode",
    "decode_report",
    "encode",
    "encode_report",
    "encode_spec",
    "first_error",
    "shortened",
]
