"""The GPUTopology custom resource, ``gpu-topology.io/v1alpha1``, to and from our model."""

from topology.codec.decoding import (
    API_VERSION,
    KIND,
    Record,
    RecordError,
    decode,
    decode_report,
    encode,
    encode_report,
    first_error,
    shortened,
)

__all__ = [
    "API_VERSION",
    "KIND",
    "Record",
    "RecordError",
    "decode",
    "decode_report",
    "encode",
    "encode_report",
    "first_error",
    "shortened",
]
