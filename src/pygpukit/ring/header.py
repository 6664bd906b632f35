"""The header of a message as bytes: one definition for NumPy, for CUDA C++ and for packing."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from pygpukit._pygpukit_rust import MessageBase
from pygpukit.ring.layout import offset_assertions

__all__ = [
    "FLAG_ANSWER",
    "FLAG_CALL",
    "HEADER_BYTES",
    "HEADER_DTYPE",
    "HEADER_SOURCE",
    "NO_DEADLINE",
    "Header",
    "pack_header",
    "unpack_header",
]

HEADER_BYTES = 48

# Name, NumPy's type, CUDA's type. The offsets follow from the sizes: every field is aligned to its own.
_FIELDS = (
    ("type_id", "<u4", "unsigned int"),
    ("flags", "<u2", "unsigned short"),
    ("priority", "u1", "unsigned char"),
    ("reserved", "u1", "unsigned char"),
    ("message_id", "<u8", "unsigned long long"),
    ("correlation_id", "<u8", "unsigned long long"),
    ("deadline_ns", "<u8", "unsigned long long"),
    ("source", "<u4", "unsigned int"),
    ("destination", "<u4", "unsigned int"),
)
_PACKED = struct.Struct("<IHBBQQQII8x")

FLAG_CALL, FLAG_ANSWER = 1, 2
"""Bits of `flags`: the sender waits for an answer; this is the answer to such a message."""

NO_DEADLINE = (1 << 64) - 1
"""`deadline_ns` of a message that has none; else it is in nanoseconds of ``time.monotonic_ns()``."""


def _offsets() -> list[int]:
    offsets = []
    at = 0
    for _, numpy_type, _ in _FIELDS:
        offsets.append(at)
        at += np.dtype(numpy_type).itemsize
    return offsets


HEADER_DTYPE: np.dtype[Any] = np.dtype(
    {
        "names": [name for name, _, _ in _FIELDS],
        "formats": [numpy_type for _, numpy_type, _ in _FIELDS],
        "offsets": _offsets(),
        "itemsize": HEADER_BYTES,
    }
)
"""The header as a NumPy structured dtype."""

HEADER_SOURCE = "\n".join(
    [
        "struct __align__(16) MessageHeader {",
        *(f"    {cuda_type} {name};" for name, _, cuda_type in _FIELDS),
        "};",
        f'static_assert(sizeof(MessageHeader) == {HEADER_BYTES}, "MessageHeader");',
        offset_assertions("MessageHeader", dict(zip((name for name, _, _ in _FIELDS), _offsets(), strict=True))),
    ]
)
"""The header as CUDA C++."""


class Header(NamedTuple):
    """What stands in a header."""

    type_id: int
    flags: int
    priority: int
    reserved: int
    message_id: int
    correlation_id: int
    deadline_ns: int
    source: int
    destination: int


def pack_header(buffer: Any, offset: int, message: MessageBase, source: int = 0, destination: int = 0) -> None:
    """Write a message's header into a buffer.

    Parameters
    ----------
    buffer : writable buffer
        With room for `HEADER_BYTES` from `offset`.
    offset : int
        Where the header begins.
    message : message
        Whose header it is.
    source, destination : int
        Numbers of the sender and the receiver; 0 is the host.
    """
    _PACKED.pack_into(
        buffer,
        offset,
        getattr(message, "type_id", 0),
        message._flags,
        message.priority,
        0,
        message.message_id,
        message.correlation_id,
        message._deadline_ns,
        source,
        destination,
    )


def unpack_header(buffer: Any, offset: int = 0) -> Header:
    """Read a header out of a buffer.

    Parameters
    ----------
    buffer : buffer
        At least `HEADER_BYTES` from `offset`.
    offset : int
        Where the header begins.

    Returns
    -------
    Header
        Its fields.
    """
    return Header._make(_PACKED.unpack_from(buffer, offset))


def apply_header(message: MessageBase, header: Header) -> None:
    """Give a message what its header says."""
    message._flags = header.flags
    message.priority = header.priority
    message.message_id = header.message_id
    message.correlation_id = header.correlation_id
    message._deadline_ns = header.deadline_ns
