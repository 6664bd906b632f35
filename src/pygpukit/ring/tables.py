"""The tables a ring kernel works on, as NumPy dtypes: the same bytes as the structs of ``ring.cuh``."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit.ring.layout import offset_assertions

__all__ = [
    "ANSWER",
    "BOX",
    "BUCKETS",
    "BULK",
    "DESK",
    "ENGINE",
    "FULL",
    "GROUP",
    "MODES",
    "MORE",
    "NOBODY",
    "OWNER",
    "PLACE_WORDS",
    "PLAN",
    "PORT",
    "REASONS",
    "TIMER",
    "WORKER_LOST",
    "assertions",
]

_U2, _U4, _U8 = np.uint16, np.uint32, np.uint64

NOBODY = 0xFFFFFFFE
"""Number that no actor has."""

PLACE_WORDS = 32
"""Fewest words of a slot: a warp looks at them at once."""

BUCKETS = 32
"""Powers of two of nanoseconds in which latencies are counted."""

MODES = {"CREATED": 0, "ACTIVE": 1, "PAUSED": 2, "DRAINING": 3, "ENDED": 4, "FAILED": 5}
FULL = {"block": 0, "reject": 1, "drop_oldest": 2, "drop_new": 3}

ANSWER, MORE = 2, 16
"""Flags of an answer, and of one that others to the same message follow: `ring::Flag`."""

WORKER_LOST = 255
"""Reason that the device does not know: its process is gone, and the message with it."""

REASONS = {
    1: "unknown_destination",
    2: "rejected",
    3: "outbox_full",
    4: "expired",
    5: "terminated",
    6: "wrong_type",
    7: "failed",
    8: "dropped_oldest",
    9: "dropped_new",
    WORKER_LOST: "worker_lost",
}
"""Why a message is a dead letter, by `ring::Reason`."""

_SLOTS = np.dtype([("base", _U8), ("mask", _U4), ("words", _U4)])

PORT: np.dtype[Any] = np.dtype([("slots", _SLOTS), ("head", _U8), ("at", _U8), ("seen", _U8)])
BULK: np.dtype[Any] = np.dtype([(name, _U8) for name in ("base", "mask", "stride", "tail", "head", "at", "seen")])
BOX: np.dtype[Any] = np.dtype(
    [
        *((name, _U8) for name in ("word", "head", "control", "drain_at", "trim", "trim_host")),
        ("wanted", _U4),
        ("gone", _U4),
        ("spare1", _U8, 9),
        ("slots", _SLOTS),
        ("accepts", _U4),
        ("full", _U4),
        ("dedicated", _U2),
        ("single", _U2),
        ("width", _U4),
        ("limit", _U4),
        ("blocks", _U4),
        ("first", _U4),
        ("spare2", _U4, 21),
    ]
)
_ROUTE = np.dtype(
    [
        ("slots", _SLOTS),
        ("to", _U4),
        ("type", _U4),
        ("limit", _U4),
        ("full", _U4),
        ("dedicated", _U2),
        ("single", _U2),
        ("spare", _U4),
        ("word", _U8),
        ("seen", _U8),
    ]
)
OWNER: np.dtype[Any] = np.dtype(
    [
        ("head", _U8),
        ("type", _U4),
        ("mode", _U4),
        ("answered", _U8),
        ("in", PORT),
        ("out", PORT),
        ("bulk_in", BULK),
        ("bulk_out", BULK),
        *((name, _U8) for name in ("taken", "window", "out_sent", "out_taken", "seen")),
        *((name, _U8) for name in ("state", "initial", "state_bytes", "outbox")),
        ("waiting", _U4),
        ("outbox_size", _U4),
        *((name, _U8) for name in ("outbox_stride", "next_id")),
        *((name, _U8) for name in ("restarts_left", "max_restarts", "restart_window", "window_began", "shown")),
        ("failing", _U4),
        ("names", _U4),
        ("figures", _U8, 16),
        ("buckets", _U4, BUCKETS),
        ("route", _ROUTE),
        ("group", _U8),
        ("spare", _U8),
    ]
)
GROUP: np.dtype[Any] = np.dtype(
    [
        ("turn", _U8),
        ("spare0", _U8, 15),
        ("arrived", _U8),
        ("spare1", _U8, 15),
        ("next_id", _U8),
        ("told", _U8),
        ("spare2", _U8, 14),
        ("message", _U4, 1088),
        ("out", np.uint8, 4096),
    ]
)
PLAN: np.dtype[Any] = np.dtype(
    [
        *((name, _U4) for name in ("actors", "dedicated", "idle_ns", "idle_common_ns")),
        *((name, _U8) for name in ("places", "names", "queue", "queue_mask", "boxes", "owners")),
        ("common_out", PORT),
        ("port_every", _U4),
        ("stays", _U4),
        ("desks", _U8),
        ("alarms", _U8),
    ]
)
DESK: np.dtype[Any] = np.dtype(
    [
        *((name, _U8) for name in ("at", "turn", "seen_at", "seen_turn")),
        ("looks", _U4),
        ("accused", _U4),
        ("spare", _U8, 3),
    ]
)
ENGINE: np.dtype[Any] = np.dtype(
    [
        ("leaving", _U8),
        ("wanted", _U8),
        ("spare0", _U8, 14),
        ("queue_tail", _U8),
        ("spare1", _U8, 15),
        ("queue_head", _U8),
        ("spare2", _U8, 15),
        ("out_tail", _U8),
        ("out_seen", _U8),
        ("spare3", _U8, 14),
        ("left", _U4),
        ("accused", _U4),
        ("changes", _U4),
        ("spare4", _U4),
        ("common_in", PORT),
        ("spare5", _U8),
        ("plan", PLAN),
        *((name, _U8) for name in ("orders_tail", "host_beat", "orders_head", "beat", "exited", "clock")),
        *((name, _U8) for name in ("orders", "orders_mask", "orders_taken", "lease_ns", "slice_ns", "look_ns")),
        *((name, _U8) for name in ("timers", "timer_count", "silent", "spare6")),
    ]
)
TIMER: np.dtype[Any] = np.dtype(
    [
        *((name, _U8) for name in ("period", "next", "taken", "given", "missed", "seen")),
        ("actor", _U4),
        ("bytes", _U4),
        ("spare", _U8),
    ]
)

_CHECKED = {
    "Box": (BOX, {"trim_host": "trim_host", "wanted": "wanted", "slots": "fixed"}),
    "Owner": (OWNER, {"bulk_out": "bulk_out", "waiting": "waiting", "figures": "figures", "group": "group"}),
    "Group": (GROUP, {"arrived": "arrived", "next_id": "next_id", "message": "message", "out": "out"}),
    "Plan": (PLAN, {"places": "places", "common_out": "common_out", "alarms": "alarms"}),
    "Desk": (DESK, {"turn": "turn", "accused": "accused"}),
    "Engine": (ENGINE, {"common_in": "common_in", "plan": "plan", "clock": "clock", "silent": "silent"}),
    "Timer": (TIMER, {"seen": "seen", "actor": "actor"}),
}


def assertions() -> str:
    """CUDA C++ that does not compile unless the structs are these tables."""
    text = ""
    for struct, (table, fields) in _CHECKED.items():
        assert table.fields is not None
        text += f'static_assert(sizeof(ring::{struct}) == {table.itemsize}, "{struct}");\n'
        text += offset_assertions(f"ring::{struct}", {theirs: table.fields[ours][1] for ours, theirs in fields.items()})
    return text
