"""The runtime's end of a ring in a worker process: what `RingLink` is for a ring in the same process."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from pygpukit.core.waits import wait_in_slices
from pygpukit.errors import ActorFailedError, RingError
from pygpukit.ring.device_mailbox import deadline_of
from pygpukit.ring.limits import end_of, left_of
from pygpukit.ring.post import CALL
from pygpukit.ring.states import Backpressure
from pygpukit.ring.tables import ANSWER, BUCKETS, MORE
from pygpukit.ring.worker_peer import HOST, WorkerPeer
from pygpukit.ring.worker_process import WorkerGoneError, WorkerProcess
from pygpukit.ring.worker_wire import (
    ACCEPT,
    CREDIT,
    MAIL,
    ROWS,
    SEEN,
    SEEN_WORDS,
    STUCK,
    TOOK,
    Parts,
    frame,
    pack_mail,
    unpack_mail,
)

__all__ = ["NO_STATUS", "Loss", "WorkerLink"]

Loss = tuple[int, str, bool, list[int]]
"""An actor whose worker was lost, why, whether it begins anew, and the calls that event loops wait for."""

NO_STATUS = {
    **dict.fromkeys(("launches", "parks", "last_exit", "host_beat", "device_beat_ns"), 0),
    "up": False,
    "stuck": False,
}
"""What `RingLink.status` would say where there is no kernel."""

_DEAD = 4

# What became of a message, as `RingLink` says it.
_ACCEPTED, _REJECTED, _DROPPED, _LATE, _DIED, _UNANSWERED, _CLOSED = range(7)

# Rows of an array travel in frames of at most so many bytes.
_FRAME_BYTES = 1 << 20

# How long figures and the status are waited for; a worker that does not say them in time has shown others before.
_FIGURES_SECONDS = 1.0


class WorkerCaller:
    """Requests to one actor; what `RingCaller` is."""

    def __init__(self, link: WorkerLink, actor: int) -> None:
        self._link = link
        self._actor = actor

    def ask(self, message: Any, timeout: float | None, is_marked: bool = False) -> tuple[int, Parts | None] | None:
        """What became of a message, and the answer or the dead letter; None if it does not fit its layout."""
        try:
            payload = message._packed()
        except Exception:
            return None
        if type(payload) is not bytes or len(payload) != message.dtype.itemsize:
            return None
        number = message.message_id if is_marked or message._call() else message._new_ids(1)
        fate, parts = self._link.ask(self._actor, message, number, payload, timeout)
        if fate == _ACCEPTED and parts is not None:
            message._settle(number)
            header, answer = parts
            parts = ((*header[:5], message.message_id, *header[6:]), answer)
        return fate, parts


class WorkerLink:
    """Messages to actors of a worker process and from them; its methods are those of `RingLink`.

    It outlives the process: while there is none, senders wait or are refused, as their receiver's policy says.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.peers: list[WorkerPeer] = []
        self.process: WorkerProcess | None = None
        """The worker, when it runs and has all actors."""
        self.losses: list[Loss] = []
        self._changed = threading.Condition(self.lock)
        # By number: the actor, and where its answer goes.
        self._calls: dict[int, tuple[int, queue.SimpleQueue[Any]]] = {}
        self._answers: list[Parts] = []
        self._letters: list[Parts] = []
        self._signal = -1
        self._status = dict(NO_STATUS)
        self._stuck: list[int] = []

    def send(
        self,
        actor: int,
        payload: bytes,
        id: int,
        flags: int = 0,
        priority: int = 0,
        correlation: int = 0,
        deadline: int = 0,
        timeout: float | None = None,
    ) -> int:
        """Send one message."""
        peer = self.peers[actor]
        header = (0, flags, priority, 0, id, correlation, HOST, actor, deadline)
        with self.lock:
            room, fate = self._claim(peer, 1, end_of(timeout))
            if room:
                self._write(frame(MAIL, pack_mail([(header, payload)])))
                peer.note_sent((self._kind(peer), *header[1:]), payload, 1)
        return fate

    def send_rows(self, actor: int, rows: Any, first_id: int, timeout: float | None = None) -> tuple[int, int]:
        """Send rows of a buffer, with ids from the first one on: how many were accepted, and the fate of the next."""
        peer = self.peers[actor]
        size = peer.place.handler.input_type.dtype.itemsize  # type: ignore[union-attr]
        data = memoryview(rows).cast("B")
        count, done, fate = len(data) // size, 0, _ACCEPTED
        until = end_of(timeout)
        most = max(1, _FRAME_BYTES // size)
        while done < count and not fate:
            with self.lock:
                room, fate = self._claim(peer, count - done, until)
                room = min(room, most)
                if room:
                    body = bytes(data[done * size : (done + room) * size])
                    self._write(frame(ROWS, ACCEPT.pack(actor, first_id + done), body))
                    header = (self._kind(peer), 0, 0, 0, first_id + done, 0, HOST, actor, 0)
                    peer.note_sent(header, body, room)
                    done += room
        return done, fate

    def caller(self, actor: int, output: Any) -> WorkerCaller:
        """Calls of one actor."""
        return WorkerCaller(self, actor)

    def ask(
        self, actor: int, message: Any, number: int, payload: bytes, timeout: float | None
    ) -> tuple[int, Parts | None]:
        """Send a message under this number and wait: what became of it, and the answer or the dead letter."""
        until = end_of(timeout)
        slot: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self.lock:
            if number in self._calls:
                raise RingError(f"message {number} is on its way already")
            self._calls[number] = actor, slot
        try:
            priority, correlation = message.priority, message.correlation_id
            deadline = deadline_of(message)
            fate = self.send(actor, payload, number, CALL, priority, correlation, deadline, timeout)
            if fate:
                return fate, None
            found = slot.get(timeout=left_of(until))
        except queue.Empty:
            found = self._forget_call(number, slot)
        except BaseException:
            found = self._forget_call(number, slot)
            if isinstance(found, tuple):
                self._put_back(found)
            raise
        finally:
            with self.lock:
                self._calls.pop(number, None)
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, int):
            return found, None
        return _DIED if found[0][1] & _DEAD else _ACCEPTED, found

    def _forget_call(self, number: int, slot: queue.SimpleQueue[Any]) -> Any:
        """Nobody waits for a call any more; what ended it in the moment of giving up, if something did."""
        with self.lock:
            self._calls.pop(number, None)
        try:
            return slot.get_nowait()
        except queue.Empty:
            return _UNANSWERED

    def _put_back(self, parts: Parts) -> None:
        """What ended a call whose caller has gone belongs to nobody."""
        header, payload = parts
        with self.lock:
            if header[1] & _DEAD:
                self._letters.append(parts)
            else:
                # It is counted as read.
                self._answers.append(((header[0], header[1] & ~MORE, *header[2:]), payload))
        self.give_signal()

    def end_calls(self, actor: int) -> None:
        """Whoever waits for an answer of an actor is told that it has ended."""
        with self.lock:
            for number, (whose, slot) in list(self._calls.items()):
                if whose == actor:
                    del self._calls[number]
                    slot.put(_CLOSED)

    def try_receive(self, actor: int) -> Parts | None:
        """The next message of an actor's output, or None."""
        with self.lock:
            found = self._take(self.peers[actor], 1)
        return found[0] if found else None

    def receive(self, actor: int, timeout: float | None = None) -> Parts | None:
        """The same, waiting for it."""
        found = self._receive(actor, 1, timeout)
        return found[0] if found else None

    def receive_into(self, actor: int, rows: Any, row: int, timeout: float | None = None) -> int:
        """Messages of an actor's output into the rows of an array: how many came."""
        found = self._receive(actor, len(rows), timeout)
        if found:
            rows[: len(found)] = np.frombuffer(b"".join(payload for _, payload in found), np.uint8).reshape(-1, row)
        return len(found)

    def give_back(self, actor: int, rows: Any, row: int) -> None:
        """Rows that were taken are the first of an actor's output again. Their headers are not known any more."""
        peer = self.peers[actor]
        with self.lock:
            peer.output.extendleft(((0,) * 9, bytes(one)) for one in rows.reshape(-1, row)[::-1])
            peer.received -= len(rows)
            peer.arrived.notify_all()
            if peer.watched:
                self.give_signal()

    def depth(self, actor: int) -> int:
        """Messages in an actor's output."""
        return len(self.peers[actor].output)

    def set_mode(self, actor: int, mode: int, timeout: float | None = None) -> bool:
        """Tell an actor what to do; true when the device has answered, or the actor is lost."""
        peer = self.peers[actor]
        until = end_of(timeout)
        while True:
            with self.lock:
                peer.mode = mode
                while self.process is None and not peer.is_over:
                    if not wait_in_slices(self._changed.wait, left_of(until)):
                        return False
                process = self.process
                if peer.is_over or process is None:
                    return True
            # A worker that is lost meanwhile carries it out when it is back.
            with suppress(WorkerGoneError):
                return bool(process.order("mode", actor, mode, left_of(until)))
            with self.lock:
                while self.process is process:
                    wait_in_slices(self._changed.wait)

    def close(self, actor: int) -> None:
        """Take no more messages for an actor: it is to end."""
        peer = self.peers[actor]
        with self.lock:
            peer.is_closed = True
            peer.room.notify_all()

    def unbound(self, actor: int) -> None:
        """Let an actor send whether or not anybody receives."""
        self.tell("unbound", actor)

    def figures(self, actor: int) -> dict[str, int]:
        """What the device and the host have counted of an actor."""
        peer = self.peers[actor]
        process = self.process
        if process is not None and not peer.is_over:
            with suppress(WorkerGoneError, TimeoutError):
                words, buckets = process.order("figures", actor, timeout=_FIGURES_SECONDS)
                with self.lock:
                    if self.process is process:
                        peer.show(words, buckets)
        with self.lock:
            return peer.figures()

    def buckets(self, actor: int) -> list[int]:
        """Latencies of an actor's messages; those that came with the figures."""
        return self.peers[actor].buckets or [0] * BUCKETS

    def status(self) -> dict[str, Any]:
        """Where the worker's kernel is and what became of it; what the worker said last when it does not in time."""
        process = self.process
        if process is not None:
            with suppress(WorkerGoneError, TimeoutError):
                status = process.order("status", timeout=_FIGURES_SECONDS)
                with self.lock:
                    if self.process is process:
                        self._status = status
        return self._status

    def stuck_actors(self) -> list[int]:
        """Numbers of the actors whose handlers have worked on one message for too long."""
        return self._stuck

    def trap(self) -> bool:
        """End the worker at once, with all that is on the device."""
        with self.lock:
            # Nothing is accepted for it any more.
            process, self.process = self.process, None
        if process is not None:
            process.kill(f"the worker process {process.pid} was ended by abort()")
        return process is not None

    def signal(self, fd: int) -> None:
        """Write to this descriptor when there is something to look at; -1 for none."""
        with self.lock:
            self._signal = fd

    def signalled(self) -> None:
        """Nothing is kept of signals."""

    def watch(self, actor: int, on: bool) -> None:
        """An event loop waits for an actor's output, or no longer does."""
        with self.lock:
            self.peers[actor].watched += 1 if on else -1

    def expect(self, n: int) -> None:
        """Answers come by themselves."""

    def take_answers(self) -> list[Parts]:
        """Answers that no thread waits for, since the last look."""
        with self.lock:
            found, self._answers = self._answers, []
        return found

    def took(self, actor: int, n: int) -> None:
        """So many replies of an actor were read; those of a worker that is lost do not count any more."""
        peer = self.peers[actor]
        with self.lock:
            n = min(n, peer.unread)
            peer.unread -= n
            if n:
                self._write(frame(TOOK, ACCEPT.pack(actor, n)))

    def take_letters(self) -> list[Parts]:
        """Dead letters that ended no call, since the last look."""
        with self.lock:
            found, self._letters = self._letters, []
        return found

    def take_losses(self) -> list[Loss]:
        """Actors that were lost, since the last look."""
        with self.lock:
            found, self.losses = self.losses, []
        return found

    def heard(self, what: int, body: bytes) -> None:
        """Something came from the worker."""
        if what == MAIL:
            self._deliver(unpack_mail(body))
        elif what == SEEN:
            index, settled, *words = SEEN_WORDS.unpack(body)
            with self.lock:
                self.peers[index].note_seen(settled, words)
        elif what == STUCK:
            with self.lock:
                self._stuck = msgpack.unpackb(body)
                self.give_signal()

    def set_process(self, process: WorkerProcess | None) -> None:
        """The worker runs and has all actors, or it is gone."""
        with self.lock:
            self.process = process
            if process is None:
                self._status, self._stuck = dict(NO_STATUS), []
            self._wake()

    def lose(self, peer: WorkerPeer, text: str, restarts: bool) -> None:
        """An actor's worker is gone; all that was not done with is a dead letter."""
        index = peer.place.index
        peer.loss = text
        peer.is_over = not restarts
        # Calls that wait for room were not accepted: they find it when the worker is back.
        letters, calls = peer.lose()
        self._letters += letters
        others = []
        for number in calls:
            call = self._calls.pop(number, None)
            if call is None:
                others.append(number)
            else:
                call[1].put(ActorFailedError(text))
        self.losses.append((index, text, restarts, others))

    def _kind(self, peer: WorkerPeer) -> int:
        return peer.place.handler.input_type.type_id

    def _claim(self, peer: WorkerPeer, wanted: int, until: float | None) -> tuple[int, int]:
        """How many messages may go, waiting for room where that is the policy; and what becomes of the next."""
        policy = peer.place.kernel.backpressure
        while True:
            if peer.is_over:
                raise ActorFailedError(f"{peer.place.kernel.kernel_id!r} is lost: {peer.loss}")
            if peer.is_closed:
                return 0, _CLOSED
            if self.process is not None and peer.free > 0:
                return min(peer.free, wanted), _ACCEPTED
            if policy is Backpressure.REJECT or policy is Backpressure.DROP_NEW:
                peer.refused += wanted
                return 0, _REJECTED if policy is Backpressure.REJECT else _DROPPED
            left = left_of(until)
            if left == 0.0 or not peer.room.wait(left):
                return 0, _LATE

    def _write(self, data: bytes) -> None:
        if self.process is not None:
            self.process.write(data)

    def tell(self, verb: str, *args: Any) -> None:
        """Give the worker an order whose outcome nobody waits for, if there is one."""
        process = self.process
        if process is not None:
            process.tell(verb, *args)

    def retire(self, actor: int) -> None:
        """An actor has ended."""
        self.peers[actor].has_ended = True
        self.tell("retire", actor)

    def _receive(self, actor: int, n: int, timeout: float | None) -> list[Parts]:
        peer = self.peers[actor]
        until = end_of(timeout)
        with self.lock:
            while not peer.output:
                left = left_of(until)
                if left == 0.0 or not peer.arrived.wait(left):
                    break
            return self._take(peer, n)

    def _take(self, peer: WorkerPeer, n: int) -> list[Parts]:
        found = [peer.output.popleft() for _ in range(min(n, len(peer.output)))]
        peer.received += len(found)
        # The worker needs to know now and then, not for every message.
        due = peer.received - peer.credited
        if due > 0 and (not peer.output or due >= max(1, peer.place.window // 4)):
            peer.credited = peer.received
            self._write(frame(CREDIT, ACCEPT.pack(peer.place.index, peer.received)))
        return found

    def _deliver(self, messages: list[Parts]) -> None:
        with self.lock:
            news = False
            arrived: dict[int, WorkerPeer] = {}
            for parts in messages:
                _, flags, _, _, number, correlation, source, destination, _ = parts[0]
                if flags & _DEAD:
                    if source == HOST and destination < len(self.peers):
                        self.peers[destination].note_done(number)
                    news |= self._settle(number if source == HOST else 0, parts, self._letters)
                    continue
                peer = self.peers[source]
                peer.note_came(parts, bool(flags & ANSWER), bool(flags & MORE))
                if flags & ANSWER:
                    is_taken = not self._settle(correlation, parts, self._answers)
                    news |= not is_taken
                    if is_taken and flags & MORE:
                        # One reply is all that a call waits for.
                        self.took(source, 1)
                    continue
                arrived[source] = peer
                news |= peer.watched > 0
            for peer in arrived.values():
                peer.arrived.notify_all()
            if news:
                self.give_signal()

    def _settle(self, number: int, parts: Parts, others: list[Parts]) -> bool:
        """Give an answer or a letter to the thread that waits for it; whether it is for event loops."""
        call = self._calls.pop(number, None)
        if call is None:
            others.append(parts)
            return True
        call[1].put(parts)
        return False

    def give_signal(self) -> None:
        """Let the event loop look."""
        with self.lock:
            if self._signal >= 0:
                os.eventfd_write(self._signal, 1)

    def _wake(self) -> None:
        self._changed.notify_all()
        for peer in self.peers:
            peer.room.notify_all()
            peer.arrived.notify_all()
        self.give_signal()
