"""The GPUTopology custom resource, ``gpu-topology.io/v1alpha1``, to and from our model.

``wire`` says which fields there are and what is allowed in them, ``decoding`` reads an object and
``encoding`` writes one. ``hardware`` knows the specs that were read lately.
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
