"""The process that device actors run in with ``isolation="process"``: a ring, and a socket to the runtime.

``python -m pygpukit.ring.worker FD PARENT`` is started by `WorkerProcess`, and ends when the socket does.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn

import msgpack  # type: ignore[import-untyped]

from pygpukit.core.device import current_device
from pygpukit.ring.device import DeviceRing, Place, RingOptions
from pygpukit.ring.loops import new_loop
from pygpukit.ring.message import Message
from pygpukit.ring.tables import MODES
from pygpukit.ring.worker_wire import (
    ACCEPT,
    COUNTS,
    CREDIT,
    FAILED,
    MAIL,
    ORDER,
    RESULT,
    ROWS,
    SEEN,
    SEEN_WORDS,
    STUCK,
    TICKS,
    TOOK,
    Frames,
    Parts,
    frame,
    pack_mail,
    rebuild,
    unpack_mail,
)
from pygpukit.scheduler.parcel import pack_error

__all__ = ["Worker", "main"]

# How soon, and how seldom at last, the counts of actors with messages are looked at.
_SOON, _SELDOM = 0.5e-3, 20e-3

# Orders that wait for the device at the same time.
_THREADS = 64

# Python threads hand the interpreter over after this time at most: messages must not wait for an order.
_SWITCH_SECONDS = 500e-6

# How often it is looked whether the runtime's process is there.
_PARENT_MILLISECONDS = 500

_UNLIMITED = 1 << 62


class _Peer:
    """An actor, and its messages from the runtime and to it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        # Messages that found no room yet: a header and a payload, or a first number and rows.
        self.backlog: deque[Any] = deque()
        self.accepted = self.told = self.looked = 0
        self.forwarded = 0
        self.credit = place.window
        # A result that the runtime has no room for yet.
        self.held: Parts | None = None


class Worker:
    """Serves one runtime until its socket is closed."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = new_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, "pygpukit-order"))
        self._frames = Frames()
        self._out = bytearray()
        self._types: dict[int, type[Message]] = {}
        self._peers: list[_Peer] = []
        self._waiting: set[int] = set()
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        self._pause = _SOON
        self._tasks: set[asyncio.Task[None]] = set()
        self._stuck: list[int] = []
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ring: DeviceRing
        self._link: Any = None

    def run(self) -> None:
        """Serve."""
        self._loop.add_reader(self._socket, self._read)
        self._loop.add_reader(self._fd, self._signalled)
        self._loop.run_forever()

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        for what, body in self._frames.feed(data):
            if what == MAIL:
                for header, payload in unpack_mail(body):
                    self._accept(header[7], 1, (header, payload))
            elif what == ROWS:
                index, first = ACCEPT.unpack_from(body)
                rows = memoryview(body)[ACCEPT.size :]
                self._accept(index, len(rows) // self._row(index), (first, rows))
            elif what == CREDIT:
                index, taken = ACCEPT.unpack(body)
                peer = self._peers[index]
                peer.credit = max(peer.credit, taken + peer.place.window)
                self._forward()
            elif what == TOOK:
                self._link.took(*ACCEPT.unpack(body))
            elif what == ORDER:
                self._ordered(*msgpack.unpackb(body))

    def _row(self, index: int) -> int:
        dtype = self._peers[index].place.handler.input_type.dtype
        assert dtype is not None
        return dtype.itemsize

    def _accept(self, index: int, count: int, item: Any) -> None:
        peer = self._peers[index]
        peer.accepted += count
        peer.backlog.append(item)
        self._feed(peer)
        self._waiting.add(index)
        self._look_soon()

    def _feed(self, peer: _Peer) -> None:
        """Give an actor what it has room for. The runtime has made sure that this is all of it, nearly always."""
        index, link = peer.place.index, self._link
        while peer.backlog:
            given, data = peer.backlog[0]
            try:
                if isinstance(given, tuple):
                    _, flags, priority, _, number, correlation, _, _, deadline = given
                    if link.send(index, data, number, flags, priority, correlation, deadline, 0.0):
                        return
                else:
                    done, fate = link.send_rows(index, data, given, 0.0)
                    if fate:
                        peer.backlog[0] = (given + done, data[done * self._row(index) :])
                        return
            except Exception:
                # The ring is lost, which is seen soon, or the device's clock is not known yet.
                return
            peer.backlog.popleft()

    def _look_soon(self) -> None:
        self._pause = _SOON
        if self._waiting and (self._timer is None or self._due - self._loop.time() > _SOON):
            self._look_in(_SOON)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Other loops' handles do not tell when.
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Tell the runtime what is done with, and look again while there is more."""
        self._timer = None
        news = False
        for index in list(self._waiting):
            news |= self._tell(self._peers[index])
        self._check()
        self._pause = _SOON if news else min(2 * self._pause, _SELDOM)
        if self._waiting:
            self._look_in(self._pause)

    def _tell(self, peer: _Peer) -> bool:
        index = peer.place.index
        self._feed(peer)
        words = self._words(index)
        figures = dict(zip(self._names, words, strict=True))
        # Results of the last message may wait in the actor for room; what it sent before the last look is here. What is
        # not on its way to the runtime is not done with.
        ready, peer.looked = peer.looked, figures["from_host"] - (figures["waiting"] != 0)
        self._forward(peer)
        changed = ready > peer.told and peer.held is None
        if changed:
            peer.told = ready
            self._say(SEEN, SEEN_WORDS.pack(index, ready, *words))
        if peer.told == peer.accepted:
            self._waiting.discard(index)
        return bool(changed or peer.looked > ready)

    def _words(self, index: int) -> list[int]:
        return [*(number for _, number in self._link.figures(index)[:COUNTS]), *self._ring.ticks_of(index)]

    def _signalled(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        if self._link is not None:
            self._link.signalled()
            self._forward()
            self._check()
            stuck = self._link.stuck_actors()
            if stuck != self._stuck:
                self._stuck = stuck
                self._say(STUCK, msgpack.packb(stuck))
            # Where something came, counts change soon.
            self._look_soon()

    def _forward(self, *known: _Peer) -> None:
        """Send what the device has sent, as far as the runtime has room for it; of `known` actors all there is."""
        link = self._link
        found: list[Parts] = []
        for index, peer in enumerate(self._peers):
            if peer.held is None and peer not in known and not link.depth(index):
                continue
            while (parts := peer.held or link.try_receive(index)) is not None:
                peer.held = parts
                if peer.forwarded >= peer.credit:
                    break
                found.append(parts)
                peer.forwarded += 1
                peer.held = None
        found += link.take_answers() + link.take_letters()
        if found:
            self._say(MAIL, pack_mail(found))

    def _check(self) -> None:
        """A ring that is lost cannot be used again, and on a GPU neither can the process."""
        failure = self._link.failure()
        if failure is None:
            return
        self._forward()
        for peer in self._peers:
            self._say(SEEN, SEEN_WORDS.pack(peer.place.index, peer.told, *self._words(peer.place.index)))
        self._leave(1, frame(FAILED, failure.encode()))

    def _leave(self, code: int, last: bytes) -> NoReturn:
        # Without a word to the driver, which may wait for a kernel that never ends.
        with suppress(OSError):
            self._socket.settimeout(5.0)
            self._socket.sendall(bytes(self._out) + last)
        os._exit(code)

    def _say(self, what: int, *parts: bytes) -> None:
        data = frame(what, *parts)
        if not self._out:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                os._exit(0)
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._socket, self._flush)
        self._out += data

    def _flush(self) -> None:
        try:
            del self._out[: self._socket.send(self._out)]
        except BlockingIOError:
            return
        except OSError:
            os._exit(0)
        if not self._out:
            self._loop.remove_writer(self._socket)

    def _ordered(self, number: int, verb: str, args: list[Any]) -> None:
        if verb in ("figures", "retire", "silence", "status", "unbound"):
            self._result(number, True, getattr(self, f"_{verb}")(*args))
            return
        task = self._loop.create_task(self._obey(number, verb, args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, number: int, verb: str, args: list[Any]) -> None:
        try:
            value = await getattr(self, f"_{verb}")(*args)
        except BaseException as error:
            if self._link is not None:
                self._check()
            self._result(number, False, pack_error(error))
        else:
            self._result(number, True, value)

    def _result(self, number: int, is_done: bool, value: Any) -> None:
        self._say(RESULT, msgpack.packb([number, is_done, value]))

    async def _open(self, options: dict[str, Any]) -> dict[str, Any]:
        def make() -> list[str]:
            # Said by the runtime's process, and once.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                current_device()
            self._ring = DeviceRing(RingOptions(**options))
            return [str(one.message) for one in caught]

        said = await self._loop.run_in_executor(None, make)
        self._link = self._ring.link
        self._link.signal(self._fd)
        # Whoever waits for answers and results is elsewhere.
        self._link.expect(1)
        return {"warnings": said, "cycle_seconds": self._ring.cycle_seconds}

    async def _add(self, specs: list[dict[str, Any]]) -> dict[str, Any]:
        kernels = [rebuild(spec, self._types) for spec in specs]
        places = await self._loop.run_in_executor(None, self._ring.add, kernels)
        for place in places:
            self._peers.append(_Peer(place))
            self._link.watch(place.index, True)
        self._names = [*(name for name, _ in self._link.figures(0)[:COUNTS]), *TICKS]
        return {
            "names": self._names,
            "places": [[one.index, one.number, one.dedicated, one.capacity, one.window] for one in places],
        }

    async def _mode(self, index: int, mode: int, timeout: float | None) -> bool:
        if mode >= MODES["DRAINING"]:
            # What the runtime has accepted, of which it may have to be given some yet.
            self._link.close(index, self._peers[index].accepted)
        done: bool = await self._loop.run_in_executor(None, self._link.set_mode, index, mode, timeout)
        self._forward()
        return done

    async def _rest(self, timeout: float | None) -> bool:
        if any(peer.backlog for peer in self._peers):
            return False
        return await self._loop.run_in_executor(None, self._ring.is_at_rest, timeout)

    async def _state(self, index: int) -> bytes:
        piece = self._peers[index].place.state
        assert piece is not None
        return await self._loop.run_in_executor(None, lambda: piece.read().tobytes())

    async def _close(self) -> None:
        await self._loop.run_in_executor(None, self._ring.close)
        for peer in self._peers:
            peer.credit = _UNLIMITED
        self._forward(*self._peers)
        for index in range(len(self._peers)):
            words = self._words(index)
            figures = dict(zip(self._names, words, strict=True))
            self._say(SEEN, SEEN_WORDS.pack(index, figures["from_host"], *words))

    def _figures(self, index: int) -> list[Any]:
        self._forward()
        return [self._words(index), list(self._link.buckets(index))]

    def _retire(self, index: int) -> None:
        self._ring.retire(self._peers[index].place)

    def _silence(self) -> None:
        self._ring.stop_timers()

    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._link.status()
        return status

    def _unbound(self, index: int) -> None:
        self._peers[index].credit = _UNLIMITED
        self._link.unbound(index)
        self._forward()


def _end_with(connection: socket.socket, parent: int) -> None:
    """End the process when the runtime's is gone, whatever the other threads do."""
    poll = select.poll()
    poll.register(connection, select.POLLHUP)
    # A process forked from the runtime's keeps the socket open.
    while not poll.poll(_PARENT_MILLISECONDS) and os.getppid() == parent:
        continue
    os._exit(0)


def main() -> None:
    """Serve the runtime of a process, the second argument, at the other end of a socket, the first."""
    # Ctrl-C reaches every process of a terminal; the runtime's decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The runtime's process tells of its actors already.
    os.environ["PYGPUKIT_STATUS"] = "0"
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
    connection, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(connection, parent), name="pygpukit-end", daemon=True).start()
    Worker(connection).run()


if __name__ == "__main__":
    main()
