"""The ring on the device: one persistent kernel, its tables, and the actors it serves."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import RingLink, current_stream
from pygpukit.core.device import Device, current_device, device, get_device_info
from pygpukit.errors import ActorFailedError, KernelCompileError, RingError
from pygpukit.jit import jit
from pygpukit.ring.kernel import RingKernel
from pygpukit.ring.limits import MOST_SECONDS, is_number
from pygpukit.ring.memory import DeviceMemory, MappedMemory, Piece, power_of_two
from pygpukit.ring.message import require_fixed
from pygpukit.ring.program import HEADER_WORDS, MOST_BYTES, Handler, Program, name_handlers
from pygpukit.ring.tables import BOX, BULK, DESK, ENGINE, FULL, GROUP, MODES, NOBODY, OWNER, PLACE_WORDS, PORT
from pygpukit.ring.timers import Timers

__all__ = ["DeviceRing", "Place", "RingOptions"]

# Messages that a handler may send while their receivers are full, before the next ones go to the dead letters.
_OUTBOX = 64
_ORDERS = 256
_COMMON = 1024
_HEADER_BYTES = 4 * HEADER_WORDS

# How long a block that has nothing to do sleeps between two looks at its mailbox, and the warden between two at the
# host's memory. All blocks together look at that 100,000 times a second at most.
_IDLE_NS, _IDLE_COMMON_NS, _PORT_NS = 4_000, 20_000, 10_000
# Looks at its mailbox for which an actor stays with the block that served it last, so that one that gets messages often
# needs no queue. Less than the 512 after which a block that finds nothing sleeps between looks.
_STAYS = 256

_LEAVE_SECONDS = 10.0

# A state of so many bytes is an array of its own, and freed when nobody has it any more.
_OWN_STATE = 4096

# Looks of the watchdog in the time that a handler has: LOOKS in ring_watchdog.cuh. The host beats more often than that.
_LOOKS = 4
_SHORTEST_WATCHDOG = 0.1

# Words by which the device tells of handlers that do not return, one a block; more than any device has.
_ALARMS = 1 << 14


@dataclass(frozen=True)
class RingOptions:
    """How a runtime's ring uses the device."""

    sms: int | None = None
    """SMs of a lane of its own; None: it runs beside everything else."""
    workers: int | None = None
    """Blocks for actors that share them."""
    lease: float = 10.0
    """Seconds after which the kernel ends by itself when the process does not run any more."""
    time_slice: float | None = 0.5
    """Seconds after which the kernel leaves the device for a moment; None: it stays."""
    watchdog: float | None = 2.0
    """Seconds a handler may work on one message before that is reported; None: nobody looks."""
    task: Any = None
    """A scheduler's task that runs on this device, whose SMs the kernel has."""

    def __post_init__(self) -> None:
        for name, low in (("sms", 1), ("workers", 1)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < low):
                raise RingError(f"{name} must be an int of at least {low}, not {value!r}")
        for name, least in (("lease", 0.0), ("time_slice", 0.0), ("watchdog", _SHORTEST_WATCHDOG)):
            value = getattr(self, name)
            if value is None and name != "lease":
                continue
            if not is_number(value) or not 0 < value < MOST_SECONDS or value < least:
                rule = f"at least {least:g} seconds" if least else "seconds above 0"
                raise RingError(f"{name} must be {rule}, not {value!r}")


@dataclass
class Place:
    """An actor's number, and where its parts are."""

    index: int
    kernel: RingKernel
    handler: Handler
    number: int
    dedicated: bool
    capacity: int
    window: int
    state: Piece | None
    """None of an actor in another process."""
    is_over: bool = False
    pieces: list[Piece] = field(default_factory=list)
    """Memory on the device that only a living actor needs."""
    rings: list[int] = field(default_factory=list)
    """Addresses of rings with the host, of an actor with a block of its own."""


class DeviceRing:
    """A persistent kernel and the actors it serves; made when the first one is launched.

    Adding actors, `close` and everything else that moves the kernel is done by one thread at a time; none of it is to
    be called in an event loop.

    Parameters
    ----------
    options : RingOptions
        How it uses the device.
    where : Device, optional
        Which device; by default the one that is current in this thread.
    """

    after_abort = "after which a process with a GPU has to be started again"
    """What `runtime.abort()` costs."""

    def __init__(self, options: RingOptions, where: Device | None = None) -> None:
        self.device = current_device() if where is None else where
        self.options = options
        with device(self.device):
            self._lay_out()

    def _lay_out(self) -> None:
        options = self.options
        self.places: list[Place] = []
        self.program = Program()
        self._numbers: dict[str, int] = {}
        self._device = DeviceMemory()
        self._mapped = MappedMemory()
        self.timers = Timers(self._device, self._mapped)
        self._lock = threading.Lock()
        self._is_up = False
        self.is_closed = False
        self._kernel: Any = None
        self._compiled = (0, 0, False)
        self._named = 0
        info = get_device_info()
        self._is_emulated = current_device().kind != "cuda"
        self._sms = int(info["sm_count"])
        self._clock_khz = int(info["clock_khz"])
        if options.task is not None:
            self._sms = int(options.task.stats()["sm_count"])
        elif options.sms is not None:
            if options.sms > self._sms:
                raise RingError(f"sms={options.sms} is more than the device has ({self._sms})")
            self._sms = options.sms
        words = self._mapped.take(6 * 256)
        self._words = {
            name: words + 256 * i
            for i, name in enumerate(("orders_tail", "host_beat", "orders_head", "beat", "exited", "clock"))
        }
        self._orders = self._mapped.take(64 * _ORDERS)
        self._alarms = self._mapped.take(8 * _ALARMS)
        self._desks: Piece | None = None
        widest = HEADER_WORDS + MOST_BYTES // 4
        self._common_in = self._ring(_COMMON, widest)
        self._common_out = self._ring(_COMMON, widest)
        self._engine = self._device.take(ENGINE.itemsize)
        self._boxes = self._device.take(64 * BOX.itemsize)
        self._owners = self._device.take(64 * OWNER.itemsize)
        self._queue: Piece | None = None
        self._lists: list[Piece] = []
        # What stands where an actor that has ended has no memory any more.
        self._nothing = self._device.take(16)
        self._fixed = np.zeros(64, BOX)
        self.link = self._connect()

    def _ring(self, count: int, words: int) -> tuple[int, int, int, int]:
        """A ring with the host: the reader's count, the slots, how many, and words of each."""
        return self._mapped.take(8), self._mapped.take(8 * count * words), count, words

    def _plain(self, count: int, stride: int) -> tuple[int, int, int, int, int]:
        """A ring of plain messages: the writer's count, the reader's, the rows, how many, and bytes of each."""
        return self._mapped.take(8), self._mapped.take(8), self._mapped.take(count * stride), count, stride

    def _connect(self) -> RingLink:
        words = self._words
        orders = (words["orders_tail"], words["orders_head"], self._orders, _ORDERS)
        beats = (words["host_beat"], words["beat"])
        return RingLink(
            (self._common_in, self._common_out),
            orders,
            beats,
            words["exited"],
            words["clock"],
            (self._alarms, _ALARMS),
            (self._mapped, self._device),
            self._groups(),
            None if self.options.task is None else self.options.task._lease,
        )

    def _groups(self) -> list[int] | None:
        """The lane: groups of SMs, the last ones first, as many as were asked for."""
        if self.options.sms is None:
            return None
        chosen: list[int] = []
        total = 0
        sizes = RingLink.lane_groups()
        for group in reversed(range(len(sizes))):
            if total >= self.options.sms:
                break
            chosen.append(group)
            total += sizes[group]
        self._sms = total
        return sorted(chosen)

    @property
    def cycle_seconds(self) -> float:
        """Length of a cycle of the device's clock; of a nanosecond where there is none."""
        return 1e-3 / self._clock_khz if self._clock_khz else 1e-9

    def index_of(self, kernel_id: str) -> int:
        """Number of the actor that has this id now, or had it last; `NOBODY` if none did."""
        return self._numbers.get(kernel_id, NOBODY)

    def add(self, kernels: Sequence[RingKernel]) -> list[Place]:
        """Give actors their places: the kernel leaves the device, is built anew if need be, and comes back.

        Raises
        ------
        RingError
            If more blocks are asked for than fit.
        KernelCompileError
            If a handler does not compile.
        """
        with self._lock, device(self.device):
            handlers = [Handler.of(kernel) for kernel in kernels]
            known = len(self.program.handlers)
            try:
                numbers = [self.program.add(handler) for handler in handlers]
                needs = (len(self.program.handlers), self._bound(kernels), self._has_groups(kernels))
                users = {number: kernel.kernel_id for number, kernel in zip(numbers, kernels, strict=True)}
                compiled = self._compile(needs, users)
            except BaseException:
                del self.program.handlers[known:]
                raise
            try:
                self._leave()
            except RingError:
                del self.program.handlers[known:]
                # It comes back when it has left after all.
                self.link.up()
                raise
            placed = len(self.places)
            try:
                self._release()
                try:
                    blocks = self._blocks(compiled, kernels, handlers)
                    for kernel, handler, number, own in zip(kernels, handlers, numbers, blocks, strict=True):
                        self._place(kernel, handler, number, own)
                except BaseException:
                    if len(self.places) == placed:
                        del self.program.handlers[known:]
                    else:
                        self._kernel, self._compiled = compiled, needs
                    self._undo(self.places[placed:])
                    raise
                self._kernel, self._compiled = compiled, needs
                added = self.places[placed:]
                self._write(added)
                # Not before: what was given is taken again first.
                self._device.trim()
                self._mapped.trim()
            finally:
                self._come_back()
            return added

    def _undo(self, placed: list[Place]) -> None:
        """Some actors could not be given their places: those that were have ended, and all others go on."""
        for place in placed:
            place.is_over, place.dedicated = True, False
            self._fixed[place.index]["word"] = 1
            row = self._owners.read(place.index * OWNER.itemsize, OWNER.itemsize).view(OWNER)
            row["mode"] = MODES["ENDED"]
            self._owners.write(row, place.index * OWNER.itemsize)
        if self._kernel is not None:
            self._write(placed)

    def is_at_rest(self, timeout: float | None) -> bool:
        """Has no actor anything left to do? The kernel leaves the device for a moment, so that nothing moves."""
        with self._lock, device(self.device):
            if not self._is_up or self.link.failure() is not None:
                return True
            has_left = self.link.down(_LEAVE_SECONDS if timeout is None else min(timeout, _LEAVE_SECONDS))
            try:
                return has_left and self._is_empty()
            finally:
                if self.link.failure() is None:
                    self.link.up()

    def _is_empty(self) -> bool:
        """Is nothing in a mailbox, nor waits for room in one? The kernel is not on the device."""
        count = len(self.places)
        boxes = self._boxes.read(0, count * BOX.itemsize).view(BOX)
        owners = self._owners.read(0, count * OWNER.itemsize).view(OWNER)
        has_mail = boxes["word"] >> np.uint64(1) != boxes["head"]
        is_busy = (owners["mode"] < MODES["ENDED"]) & (has_mail | (owners["waiting"] != 0))
        for place in self.places:
            figures = dict(self.link.figures(place.index))
            is_busy[place.index] |= not place.is_over and figures["host_sent"] != figures["from_host"]
        return not is_busy.any()

    def retire(self, place: Place) -> None:
        """An actor has ended: its block is another's when the kernel is built the next time."""
        place.is_over = True

    def close(self) -> None:
        """End the kernel."""
        with self._lock, device(self.device):
            self.is_closed = True
            if self._is_up:
                self._leave()
            self.link.stop()

    def state(self, place: Place) -> dict[str, Any]:
        """An actor's state as arrays: views of its memory."""
        layout, piece = place.handler.state, place.state
        if layout is None or piece is None:
            return {}
        return {one.name: piece.view(one.offset, one.numpy_type, one.kind.shape or (1,)) for one in layout.fields}

    def ticks_of(self, index: int) -> tuple[int, int]:
        """Ticks that an actor was given, and those that it missed."""
        return self.timers.counts(index)

    def stop_timers(self) -> None:
        """Give no more ticks."""
        self.timers.stop()

    def name_of(self, index: int) -> str:
        """Id of the actor of this number."""
        return self.places[index].kernel.kernel_id if index < len(self.places) else f"actor {index}"

    def take_losses(self) -> list[tuple[int, ActorFailedError, bool, list[int]]]:
        """As `WorkerRing.take_losses`: when the kernel is lost all actors are, for good."""
        failure = self.link.failure()
        if failure is None:
            return []
        error = ActorFailedError(f"the ring is lost: {failure}")
        return [(place.index, error, False, []) for place in self.places]

    def loss_of(self, index: int) -> str:
        """Nothing is lost here but with the whole ring."""
        return ""

    def _compile(self, needs: tuple[int, int, bool], users: Mapping[int, str]) -> Any:
        """The kernel with so many handlers, for so many threads and for actors with several blocks or not.

        `users` are the ids of those whose handlers are new, by number.
        """
        if self._kernel is not None and self._compiled == needs:
            return self._kernel
        try:
            return jit(self.program.source(*needs[1:]), func="ring_kernel")
        except KernelCompileError as error:
            text = name_handlers(str(error), users)
            parts = {name: getattr(error, name) for name in ("log", "options", "source", "line")}
            raise KernelCompileError(text, **parts) from None

    def _has_groups(self, kernels: Sequence[RingKernel]) -> bool:
        return any(kernel.grid_size > 1 for kernel in (*self._served(), *kernels))

    def _served(self) -> list[RingKernel]:
        """Kernels whose handlers may run, or whose blocks are still theirs."""
        return [place.kernel for place in self.places if place.dedicated or not place.is_over]

    def _count_workers(self, more: bool = False) -> int:
        """Blocks that actors share; one where all have ended that do, for what is still sent to them."""
        shared = [place for place in self.places if not place.dedicated]
        return self._workers if more or any(not place.is_over for place in shared) else min(1, len(shared))

    @property
    def _workers(self) -> int:
        if self.options.workers is not None:
            return self.options.workers
        return 2 if self._is_emulated else 16

    def _threads(self, kernels: Sequence[RingKernel]) -> int:
        sizes = [kernel.block_size for kernel in (*self._served(), *kernels)]
        widest = max(32, *(-(-size // 32) * 32 for size in sizes))
        # One more warp fetches what the host sends.
        return widest + 32

    def _bound(self, kernels: Sequence[RingKernel]) -> int:
        """Threads that the kernel is compiled for: more than there are, so that most actors need no other one."""
        threads = self._threads(kernels)
        return threads if threads == 64 else min(1024, 32 + power_of_two(max(128, threads - 32)))

    def _blocks(self, kernel: Any, kernels: Sequence[RingKernel], handlers: Sequence[Handler]) -> list[bool]:
        """Which of the new actors get a block of their own."""
        threads = self._threads(kernels)
        per_sm = 1 if self._is_emulated else max(1, round(kernel.occupancy(threads) * 2048 / threads))
        most = 64 if self._is_emulated else min(per_sm * self._sms, _ALARMS - 1)
        used = 1 + len(self._blocks_of_their_own())
        owns = [
            kernel.dedicated is True or handler.takes_batches or kernel.grid_size > 1
            for kernel, handler in zip(kernels, handlers, strict=True)
        ]
        must = sum(kernel.grid_size for kernel, own in zip(kernels, owns, strict=True) if own)
        free = most - used - self._count_workers(not all(owns))
        if must > free:
            raise RingError(
                f"further device actors need {must} blocks of their own, and {max(0, free)} of {most} blocks of "
                f"{threads} threads are free on {self._sms} SMs; let actors share blocks (dedicated=False), use "
                "smaller blocks (block_size) or give the ring more SMs (sms)"
            )
        chosen = []
        # Blocks that spin take turns with others on their SM: by default one in four SMs has one.
        left = min(free - must, max(4, self._sms // 4) - used - must)
        for kernel_, own in zip(kernels, owns, strict=True):
            if kernel_.dedicated is None and not own and left > 0:
                own, left = True, left - 1
            chosen.append(own)
        return chosen

    def _place(self, kernel: RingKernel, handler: Handler, number: int, dedicated: bool) -> Place:
        index = len(self.places)
        asked = power_of_two(max(2, kernel.input_queue_size))
        window = kernel.output_queue_size
        words = max(PLACE_WORDS, -(-handler.words // 4) * 4)
        # Actors that share blocks have what the host sends in the same mailbox.
        slots = asked if dedicated else 2 * asked
        mail = self._device.take(8 * slots * words)
        size = 0 if handler.state is None else handler.state.itemsize
        state = self._device.take(max(16, size), _OWN_STATE)
        initial = self._device.take(max(16, size))
        if handler.initial:
            state.write(handler.initial)
            initial.write(handler.initial)
        row = _HEADER_BYTES + 4 * (self.program.stride - HEADER_WORDS)
        stride = -(-row // 16) * 16
        outbox = self._device.take(_OUTBOX * stride)
        group = [self._device.take(GROUP.itemsize)] if kernel.grid_size > 1 else []
        seen, taken = self._mapped.take(256), self._mapped.take(8)
        place = Place(index, kernel, handler, number, dedicated, asked, window, state)
        into = require_fixed(kernel.input_type, "a device actor").itemsize
        own = bulk = None
        if handler.takes_batches:
            out = require_fixed(kernel.output_type, "a device actor").itemsize
            bulk = (self._plain(asked, _HEADER_BYTES + into), self._plain(power_of_two(window), _HEADER_BYTES + out))
        elif dedicated:
            own = (self._ring(asked, words), self._ring(power_of_two(window), words))
        policy = FULL[kernel.backpressure.value]
        place.pieces = [mail, initial, outbox, *group]
        place.rings = [at for ring in own or () for at in ring[:2]] + [at for ring in bulk or () for at in ring[:3]]
        added = self.link.add(seen, taken, own, bulk, asked, policy, into, kernel.input_type.type_id)  # type: ignore[union-attr]
        assert added == index
        if index == len(self._fixed):
            self._grow()
        self._fixed[index] = self._box(place, mail, slots, words, policy)
        owner = np.zeros(1, OWNER)
        one = owner[0]
        one["type"] = number
        for name, ring in (("in", own and own[0]), ("out", own and own[1])):
            if ring:
                one[name] = _port(ring)
        for name, plain in (("bulk_in", bulk and bulk[0]), ("bulk_out", bulk and bulk[1])):
            if plain:
                one[name] = _bulk(plain)
        one["taken"], one["window"], one["seen"] = taken, window, seen
        one["state"], one["initial"], one["state_bytes"] = state.address, initial.address, max(16, size)
        one["outbox"], one["outbox_size"], one["outbox_stride"] = outbox.address, _OUTBOX, stride
        restarts = kernel.max_restarts if kernel.restart == "on_failure" else 0
        one["restarts_left"] = one["max_restarts"] = restarts
        one["restart_window"] = int(kernel.restart_window * 1e9)
        one["route"]["to"] = NOBODY
        one["group"] = group[0].address if group else 0
        one["names"] = self._named
        self._named += len(handler.names) + len(handler.topics)
        if kernel.every is not None:
            self.timers.add(index, kernel.every, into)
        self._owners.write(owner, index * OWNER.itemsize)
        self.places.append(place)
        self._numbers[kernel.kernel_id] = index
        return place

    def _box(self, place: Place, mail: Piece, slots: int, words: int, policy: int) -> Any:
        box = np.zeros(1, BOX)[0]
        box["slots"] = (mail.address, slots - 1, words)
        box["accepts"] = place.handler.input_type.type_id
        box["full"] = policy
        box["dedicated"] = place.dedicated
        box["width"] = -(-place.kernel.block_size // 32) * 32
        # Of its slots some are kept for what the host sends.
        box["limit"] = slots if place.dedicated else slots - place.capacity
        if not place.dedicated:
            box["word"] = 1
        return box

    def _grow(self) -> None:
        boxes, owners = self._boxes, self._owners
        self._boxes = self._device.take(2 * boxes.nbytes)
        self._owners = self._device.take(2 * owners.nbytes)
        self._boxes.write(boxes.read())
        self._owners.write(owners.read())
        self._device.give(boxes, owners)
        self._fixed = np.concatenate([self._fixed, np.zeros(len(self._fixed), BOX)])

    def _release(self) -> None:
        """Take the memory of actors that have ended; the kernel is not on the device.

        Their numbers, figures and tables stay. Whoever still sends to them is told by the blocks that all share.
        """
        for place in [place for place in self.places if place.is_over and place.pieces]:
            box = self._boxes.read(place.index * BOX.itemsize, BOX.itemsize).view(BOX)
            owner = self._owners.read(place.index * OWNER.itemsize, OWNER.itemsize).view(OWNER)
            if place.dedicated and self.link.retire(place.index):
                place.dedicated = False
                # It is in the queue, as all are that share.
                box["word"] |= np.uint64(1)
                for name in ("in", "out", "bulk_in", "bulk_out"):
                    owner[name] = np.zeros(1, OWNER[name])
                self._mapped.give(*place.rings)
            is_empty = box["word"][0] >> np.uint64(1) == box["head"][0] and owner["waiting"][0] == 0
            if not place.dedicated and is_empty and owner["mode"][0] >= MODES["ENDED"]:
                box["slots"]["base"], box["slots"]["mask"], box["limit"] = self._remnant(box), 1, 2
                owner["state"] = owner["initial"] = owner["outbox"] = self._nothing.address
                owner["state_bytes"], owner["outbox_size"], owner["group"] = 16, 0, 0
                self._device.give(*place.pieces)
                if place.state is not None:
                    self._device.let_go(place.state)
                place.pieces, place.rings = [], []
                # The actor has its own, with the state.
                self.places[place.index] = replace(place, state=None)
            self._boxes.write(box, place.index * BOX.itemsize)
            self._owners.write(owner, place.index * OWNER.itemsize)
            self._fixed[place.index] = box[0]

    def _remnant(self, box: np.ndarray[Any, Any]) -> int:
        """Address of the smallest mailbox, for what is still sent to an actor that has ended."""
        return self._device.take(8 * 2 * int(box["slots"]["words"][0])).address

    def _write(self, added: list[Place]) -> None:
        """Tell the device of the actors there are."""
        self._mark_single_senders()
        self._number_blocks()
        first = added[0].index if added else len(self.places)
        rows = self._fixed[first : len(self.places)]
        self._boxes.write(np.ascontiguousarray(rows), first * BOX.itemsize)
        for place in self.places[:first]:
            # The other half is the device's.
            fixed = self._fixed[place.index : place.index + 1].view(np.uint8)[128:]
            if place.index in self._changed:
                self._boxes.write(np.ascontiguousarray(fixed), place.index * BOX.itemsize + 128)
        count = len(self.places)
        dedicated = np.array(self._blocks_of_their_own(), np.uint32)
        shared = np.array([place.index for place in self.places if not place.dedicated], np.uint64)
        size = power_of_two(2 * (count + self._workers + 1))
        cells = np.zeros((size, 2), np.uint64)
        cells[:, 0] = (np.arange(size, dtype=np.uint64) << np.uint64(32)) | np.uint64(NOBODY)
        cells[: len(shared), 0] = (np.arange(1, len(shared) + 1, dtype=np.uint64) << np.uint64(32)) | shared
        if self._queue is None or self._queue.nbytes < cells.nbytes:
            self._device.give(self._queue)
            self._queue = self._device.take(cells.nbytes)
        self._queue.write(cells)
        self._device.give(*self._lists)
        places = self._device.take(4 * max(1, len(dedicated)))
        if len(dedicated):
            places.write(dedicated)
        named = self._names()
        names = self._device.take(max(4, named.nbytes))
        if len(named):
            names.write(named)
        self._lists = [places, names]
        engine = self._engine.read()[: ENGINE.itemsize].view(ENGINE)
        one = engine[0]
        one["queue_tail"], one["queue_head"], one["wanted"] = len(shared), 0, len(shared)
        if one["orders"] == 0:
            for name, address in self._words.items():
                one[name] = address
            one["orders"], one["orders_mask"] = self._orders, _ORDERS - 1
            one["common_in"] = _port(self._common_in)
            one["plan"]["common_out"] = _port(self._common_out)
            one["lease_ns"] = int(self.options.lease * 1e9)
            one["slice_ns"] = int((self.options.time_slice or 0) * 1e9)
            one["look_ns"] = int((self.options.watchdog or 0) * 1e9 / _LOOKS)
        plan = one["plan"]
        plan["actors"], plan["dedicated"] = count, len(dedicated)
        plan["idle_ns"], plan["idle_common_ns"] = _IDLE_NS, _IDLE_COMMON_NS
        plan["port_every"] = max(2, sum(place.dedicated for place in self.places)) * _PORT_NS // _IDLE_NS
        plan["stays"] = _STAYS
        plan["places"], plan["names"] = places.address, names.address
        plan["queue"], plan["queue_mask"] = self._queue.address, size - 1
        plan["boxes"], plan["owners"] = self._boxes.address, self._owners.address
        one["timers"], one["timer_count"] = self.timers.write({place.index for place in self.places if place.is_over})
        one["silent"] = self.timers.silent
        blocks = 1 + len(dedicated) + self._count_workers()
        if self._desks is None or self._desks.nbytes < blocks * DESK.itemsize:
            self._device.give(self._desks)
            self._desks = self._device.take(blocks * DESK.itemsize)
        plan["desks"], plan["alarms"] = self._desks.address, self._alarms
        self._engine.write(engine)
        threads = self._threads(())
        current_stream().synchronize()
        self.link.name_handlers([(place.number, place.kernel.kernel_id) for place in self.places])
        self.link.program(self._kernel, self._engine.address, blocks, threads, 0)

    def _names(self) -> np.ndarray[Any, Any]:
        """Numbers of the actors that each one names, and where the lists of its topics begin; then these lists."""
        numbers: list[int] = []
        lists: list[int] = []
        begins: dict[str, int] = {}
        for place in self.places:
            numbers += [self.index_of(name) for name in place.handler.names]
            for topic in place.handler.topics:
                if topic not in begins:
                    begins[topic] = self._named + len(lists)
                    found = self._subscribers(topic)
                    lists += [len(found), *found]
                numbers.append(begins[topic])
        return np.array(numbers + lists, np.uint32)

    def _subscribers(self, topic: str) -> list[int]:
        return [place.index for place in self.places if topic in place.kernel.topics and not place.is_over]

    def _blocks_of_their_own(self) -> list[int]:
        """The actors of the blocks from number 1 on."""
        return [place.index for place in self.places if place.dedicated for _ in range(place.kernel.grid_size)]

    def _number_blocks(self) -> None:
        """Tell actors with blocks of their own which they are."""
        blocks = self._blocks_of_their_own()
        for place in self.places:
            box = self._fixed[place.index]
            now = (place.kernel.grid_size, blocks.index(place.index) + 1) if place.dedicated else (1, 0)
            if (int(box["blocks"]), int(box["first"])) != now:
                box["blocks"], box["first"] = now
                self._changed.add(place.index)

    def _mark_single_senders(self) -> None:
        """Whoever has a block and is sent to by one actor only needs no claims."""
        senders = np.zeros(len(self.places), np.int64)
        for place in self.places:
            targets = [index for name in place.handler.names if (index := self.index_of(name)) != NOBODY]
            for topic in place.handler.topics:
                targets += self._subscribers(topic)
            if place.kernel.every is not None:
                # The warden, which sends its ticks.
                targets.append(place.index)
            for target in targets:
                senders[target] += 1
        is_known = not any(place.handler.answers for place in self.places)
        self._changed: set[int] = set()
        for place in self.places:
            box = self._fixed[place.index]
            now = (place.dedicated, bool(is_known and place.dedicated and senders[place.index] == 1))
            if (bool(box["dedicated"]), bool(box["single"])) != now:
                box["dedicated"], box["single"] = now
                self._changed.add(place.index)

    def _leave(self) -> None:
        if self._is_up and not self.link.down(_LEAVE_SECONDS):
            raise RingError(
                f"the ring did not leave the device within {_LEAVE_SECONDS:g} s: a handler does not return. It can be "
                "ended by runtime.abort(), which costs the ring's process its device"
            )
        self._is_up = False

    def _come_back(self) -> None:
        if self._kernel is not None and self.places:
            self.link.up()
            self._is_up = True


def _port(ring: tuple[int, int, int, int]) -> Any:
    head, base, count, words = ring
    port = np.zeros(1, PORT)[0]
    port["slots"] = (base, count - 1, words)
    port["head"] = head
    return port


def _bulk(plain: tuple[int, int, int, int, int]) -> Any:
    tail, head, base, count, stride = plain
    bulk = np.zeros(1, BULK)[0]
    bulk["base"], bulk["mask"], bulk["stride"] = base, count - 1, stride
    bulk["tail"], bulk["head"] = tail, head
    return bulk
