"""The worker process of a runtime: started, spoken to, and noticed when it is gone."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]

from pygpukit.errors import RingError
from pygpukit.ring.worker_wire import FAILED, ORDER, RESULT, Frames, frame

__all__ = ["WorkerGoneError", "WorkerProcess"]

# How long a process whose socket is closed may take to be gone, before it is killed.
_EXIT_SECONDS = 2.0

_BUFFER = 1 << 20


class WorkerGoneError(RingError):
    """The worker process ended before it answered; whoever gave the order decides what that means."""


class WorkerProcess:
    """One worker process.

    Parameters
    ----------
    heard : callable
        Given what comes, but for the results of orders: what it is, and the bytes. In a thread of this object.
    ended : callable
        Called at last, in that thread, when the process is gone.
    device : str, optional
        Name of the device it works on; by default as for every process.
    """

    def __init__(
        self,
        heard: Callable[[int, bytes], None],
        ended: Callable[[WorkerProcess], None],
        device: str | None = None,
    ) -> None:
        self._heard = heard
        self._ended = ended
        self._frames = Frames()
        self._lock = threading.Lock()
        self._out = bytearray()
        self._orders: dict[int, queue.SimpleQueue[Any]] = {}
        self._number = 0
        self._is_over = False
        self._said: str | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._socket, far = socket.socketpair()
        for end in (self._socket, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if device is not None:
            environment["PYGPUKIT_DEVICE"] = device
        with far:
            # A group of its own, so that a terminal's Ctrl-C does not reach it before it can ignore it.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pygpukit.ring.worker", str(far.fileno()), str(os.getpid())],
                pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
                process_group=0,
            )
        self._socket.setblocking(False)
        self._thread = threading.Thread(target=self._listen, name="pygpukit-worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def order(self, verb: str, *args: Any, timeout: float | None = None) -> Any:
        """Give an order and wait for what becomes of it.

        Raises
        ------
        WorkerGoneError
            If the process ended before.
        TimeoutError
            If it took too long.
        """
        slot: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if self._is_over:
                raise WorkerGoneError(f"there is no worker to {verb}")
            self._number += 1
            number = self._number
            self._orders[number] = slot
        try:
            self.write(frame(ORDER, msgpack.packb([number, verb, args])))
            found = slot.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"the worker did not {verb} within {timeout} s") from None
        finally:
            self._orders.pop(number, None)
        if isinstance(found, BaseException):
            raise found
        return found

    def tell(self, verb: str, *args: Any) -> None:
        """Give an order whose outcome nobody waits for."""
        self.write(frame(ORDER, msgpack.packb([0, verb, args])))

    def write(self, data: bytes) -> None:
        """Send bytes, without waiting: what the socket has no room for is sent later."""
        with self._lock:
            if self._is_over:
                return
            if not self._out:
                try:
                    data = data[self._socket.send(data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    # Its end is noticed where it is read.
                    return
            if data:
                self._out += data
                os.eventfd_write(self._wake, 1)

    def kill(self, why: str | None = None) -> None:
        """End it at once; `why` is told as the reason."""
        if why is not None:
            self._said = self._said or why
        with suppress(OSError):
            self._process.kill()

    def join(self, seconds: float) -> None:
        """Wait until it has ended and that was told."""
        self._thread.join(seconds)

    def epitaph(self) -> str:
        """Why it ended."""
        code = self._process.returncode
        if self._said is not None:
            return self._said
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"the worker process {self.pid} was ended by {signal.Signals(-code).name}"
        return f"the worker process {self.pid} exited with code {code}"

    def _listen(self) -> None:
        try:
            self._read()
        finally:
            with self._lock:
                self._is_over = True
                self._socket.close()
                os.close(self._wake)
            self._reap()
            for slot in list(self._orders.values()):
                slot.put(WorkerGoneError(self.epitaph()))
            self._ended(self)

    def _reap(self) -> None:
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        wanted = 0
        while True:
            now = select.POLLIN | (select.POLLOUT if self._out else 0)
            if now != wanted:
                poll.register(self._socket, now)
                wanted = now
            for fd, events in poll.poll():
                if fd == self._wake:
                    with suppress(BlockingIOError):
                        os.eventfd_read(fd)
                    continue
                if events & select.POLLOUT:
                    self._flush()
                if events & ~select.POLLOUT and not self._receive():
                    return

    def _flush(self) -> None:
        with self._lock, suppress(OSError):
            del self._out[: self._socket.send(self._out)]

    def _receive(self) -> bool:
        """Read what is there; False at the end."""
        try:
            data = self._socket.recv(_BUFFER)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for what, body in self._frames.feed(data):
            if what == RESULT:
                self._finish(*msgpack.unpackb(body))
            elif what == FAILED:
                self._said = self._said or body.decode()
            else:
                self._heard(what, body)
        return bool(data)

    def _finish(self, number: int, is_done: bool, value: Any) -> None:
        slot = self._orders.get(number)
        if slot is None:
            return
        if not is_done:
            from pygpukit.scheduler.parcel import unpack_error

            value = unpack_error(value)
        slot.put(value)
