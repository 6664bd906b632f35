"""What travels between a runtime and the worker process of its device actors: frames, messages, and kernels as data."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import RingError
from pygpukit.ring.kernel import RingKernel, find_kernel, find_subscribers, ring_kernel
from pygpukit.ring.layout import Layout
from pygpukit.ring.message import Message, message, require_fixed
from pygpukit.ring.program import Handler

__all__ = [
    "ACCEPT",
    "COUNTS",
    "CREDIT",
    "FAILED",
    "FIGURES",
    "HEAD",
    "MAIL",
    "ORDER",
    "RESULT",
    "ROWS",
    "SEEN",
    "SEEN_WORDS",
    "STUCK",
    "TICKS",
    "TOOK",
    "Frames",
    "Parts",
    "describe",
    "frame",
    "pack_mail",
    "rebuild",
    "unpack_mail",
]

HEAD = struct.Struct("<IB")
"""Bytes that follow, and what they are."""

ORDER, RESULT, MAIL, ROWS, CREDIT, SEEN, FAILED, STUCK, TOOK = range(1, 10)
"""Orders to the worker and what became of them; messages, both ways; rows of an array; how many results were received;
how many messages are done with; why the ring is lost; which actors' handlers do not return; how many replies of
streams were read."""

ACCEPT = struct.Struct("<IQ")
"""Before rows: the actor, and the number of the first message. Of CREDIT and TOOK: the actor, and how many."""

COUNTS = 15
"""What the device counts of an actor, of all that a link shows."""

TICKS = ("ticks", "missed_ticks")
"""What its timer counts."""

FIGURES = COUNTS + len(TICKS)
"""What a worker says of an actor."""

SEEN_WORDS = struct.Struct(f"<I{FIGURES + 1}Q")
"""An actor, how many of its messages are done with, and its figures."""

# As `RingLink` gives it: type, flags, priority, reason, id, correlation, source, destination, deadline; and the length.
_RECORD = struct.Struct("<IHBBQQIIQI")

Parts = tuple[tuple[int, ...], bytes]
"""Header and payload of a message, as `RingLink` gives them."""


def frame(what: int, *parts: bytes) -> bytes:
    """A frame of these bytes."""
    return b"".join((HEAD.pack(sum(map(len, parts)), what), *parts))


class Frames:
    """Cuts what comes from a socket into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are complete with these bytes."""
        self._rest += data
        found = []
        at = 0
        with memoryview(self._rest) as view:
            while len(view) - at >= HEAD.size:
                size, what = HEAD.unpack_from(view, at)
                begin = at + HEAD.size
                if len(view) - begin < size:
                    break
                found.append((what, bytes(view[begin : begin + size])))
                at = begin + size
        del self._rest[:at]
        return found


def pack_mail(messages: Iterable[Parts]) -> bytes:
    """Messages as the body of one frame."""
    return b"".join(part for header, payload in messages for part in (_RECORD.pack(*header, len(payload)), payload))


def unpack_mail(body: bytes) -> list[Parts]:
    """The messages of a frame."""
    found = []
    at = 0
    while at < len(body):
        *header, size = _RECORD.unpack_from(body, at)
        at += _RECORD.size
        found.append((tuple(header), body[at : at + size]))
        at += size
    return found


def describe(kernel: RingKernel, handler: Handler) -> dict[str, Any]:
    """A device actor as plain data: its function stays here."""
    named = [found for found in map(_known, handler.names) if found is not None]
    subscribed = [one for topic in handler.topics for one in find_subscribers(topic) if one.kind == "device"]
    others = {
        one.kernel_id: [_describe_type(one.input_type), one.topics]
        for one in (*named, *subscribed)
        if one.input_type is not None and one.input_type.is_fixed
    }
    return {
        "kernel_id": kernel.kernel_id,
        "source": kernel.function.__doc__,
        "input": _describe_type(handler.input_type),
        "output": None if kernel.output_type is None else _describe_type(kernel.output_type),
        "state": [] if handler.state is None else _describe_fields(handler.state),
        "initial": handler.initial,
        "others": others,
        "options": {
            "input_queue_size": kernel.input_queue_size,
            "output_queue_size": kernel.output_queue_size,
            "grid_size": kernel.grid_size,
            "block_size": kernel.block_size,
            "backpressure": kernel.backpressure.value,
            "dedicated": kernel.dedicated,
            "restart": kernel.restart,
            "max_restarts": kernel.max_restarts,
            "restart_window": kernel.restart_window,
            "topics": kernel.topics,
            "every": kernel.every,
        },
    }


def rebuild(spec: dict[str, Any], types: dict[int, type[Message]]) -> RingKernel:
    """The kernel that was described, known by its id from now on.

    Parameters
    ----------
    spec : dict
        What `describe` gave.
    types : dict
        Classes of messages that were made here, by their numbers; new ones are added.
    """
    for name, (one, topics) in spec["others"].items():
        # A handler that sends or publishes to it needs to know its messages, whether or not it is launched.
        ring_kernel(kernel_id=name, input_type=_rebuild_type(one, types), device="gpu", topics=topics)(_handler(""))
    output = spec["output"]
    return ring_kernel(
        kernel_id=spec["kernel_id"],
        input_type=_rebuild_type(spec["input"], types),
        output_type=None if output is None else _rebuild_type(output, types),
        device="gpu",
        state={name: _value(spec["initial"], kind, shape, at) for name, kind, shape, at in spec["state"]},
        **spec["options"],
    )(_handler(spec["source"]))


def _known(kernel_id: str) -> RingKernel | None:
    try:
        return find_kernel(kernel_id)
    except RingError:
        return None


def _describe_fields(layout: Layout) -> list[Any]:
    return [
        [one.name, one.kind.dtype.name, list(one.kind.shape), one.offset]
        for one in layout.fields
        if one.kind.dtype is not None
    ]


def _describe_type(cls: type[Message]) -> list[Any]:
    return [cls.__name__, cls.type_id, _describe_fields(require_fixed(cls, "a device actor"))]


def _rebuild_type(described: list[Any], types: dict[int, type[Message]]) -> type[Message]:
    name, number, fields = described
    known = types.get(number)
    if known is None:
        annotations = {field: dtype(kind)[tuple(shape)] if shape else dtype(kind) for field, kind, shape, _ in fields}
        made: Any = message(type(name, (), {"__annotations__": annotations}))
        if made.type_id != number:
            raise RingError(f"message {name} is {made.type_id:#x} in the worker, and {number:#x} in the runtime")
        known = types[number] = made
    return known


def _handler(source: str) -> Any:
    def function() -> None: ...

    function.__doc__ = source
    return function


def _value(initial: bytes, kind: str, shape: list[int], at: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(initial, to_numpy_dtype(kind), math.prod(shape), at).reshape(shape)
