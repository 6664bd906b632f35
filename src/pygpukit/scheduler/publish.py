"""Tells other processes of this one's schedulers and rings: a Unix socket a process, and the reader of all of them."""

from __future__ import annotations

import atexit
import json
import os
import socket
import stat
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygpukit.config import read_settings

if TYPE_CHECKING:
    from pygpukit.ring.runtime import RingKernelRuntime
    from pygpukit.scheduler.scheduler import Scheduler

__all__ = ["ask", "ask_all", "live_schedulers", "publish", "publish_ring", "unpublished_because"]

_REQUEST = b"status\n"

# Somebody who connects and says nothing keeps others waiting so long, and they are more patient than that.
_SILENCE_SECONDS = 0.25
_PATIENCE_SECONDS = 2.0

# An address has room for 104 bytes at least, and the name of the file is part of it.
_LONGEST_FOLDER = 80

# More than any scheduler has to say; a socket that goes on is not one of ours.
_LARGEST_ANSWER = 64 << 20


class _Publisher:
    """Answers on the socket of this process, from one thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
        self._rings: weakref.WeakSet[RingKernelRuntime] = weakref.WeakSet()
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self.reason: str | None = "no scheduler was made yet"

    def add(self, scheduler: Scheduler) -> None:
        with self._lock:
            self._schedulers.add(scheduler)
            self._begin()

    def add_ring(self, runtime: RingKernelRuntime) -> None:
        with self._lock:
            self._rings.add(runtime)
            self._begin()

    def _begin(self) -> None:
        if self._listener is None:
            self.reason = self._listen()

    def live(self) -> list[Scheduler]:
        with self._lock:
            schedulers = list(self._schedulers)
        return [scheduler for scheduler in schedulers if not scheduler._is_over()]

    def _listen(self) -> str | None:
        """Begin to answer; returns why not."""
        if not hasattr(socket, "AF_UNIX"):
            return "this platform has no Unix sockets"
        listener: socket.socket | None = None
        try:
            if not read_settings().status:
                return "PYGPUKIT_STATUS is 0"
            folder = _own_folder()
            _sweep(folder)
            path = folder / f"{os.getpid()}.sock"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # Whoever finds it under its name finds somebody listening.
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            listener.bind(str(fresh))
            listener.listen(16)
            fresh.rename(path)
            thread = threading.Thread(target=self._serve, args=(listener,), name="pygpukit-status", daemon=True)
            thread.start()
        except (OSError, ValueError, RuntimeError) as error:
            if listener is not None:
                listener.close()
            return str(error)
        self._listener, self._path = listener, path
        atexit.register(self._withdraw, os.getpid())
        return None

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with suppress(OSError), connection:
                connection.settimeout(_SILENCE_SECONDS)
                if connection.recv(len(_REQUEST)) == _REQUEST:
                    connection.sendall(json.dumps(self._answer()).encode())

    def _answer(self) -> list[dict[str, Any]]:
        program = Path(sys.argv[0]).name if sys.argv else ""
        rows = []
        for scheduler in self.live():
            # A device that was lost must not end the thread.
            with suppress(Exception):
                rows.append({"pid": os.getpid(), "program": program, **scheduler.status()})
        with self._lock:
            rings = list(self._rings)
        for ring in rings:
            with suppress(Exception):
                if ring._loop is not None:
                    rows.append({"pid": os.getpid(), "program": program, **_ring_status(ring)})
        return rows

    def _withdraw(self, pid: int) -> None:
        if self._path is not None and os.getpid() == pid:
            with suppress(OSError):
                self._path.unlink()

    def close(self) -> None:
        """Stop listening, and leave the file alone: it is somebody else's."""
        if self._listener is not None:
            self._listener.close()


def _ring_status(runtime: RingKernelRuntime) -> dict[str, Any]:
    """What is shown of a runtime's actors."""
    actors = []
    for kernel_id in runtime.kernel_ids:
        telemetry = runtime.get_telemetry(kernel_id).to_dict()
        actors.append({"tier": runtime._actors[kernel_id].kernel.kind, **telemetry})
    return {
        "ring": id(runtime),
        "time": time.monotonic(),
        "actors": actors,
        "dead_letters": runtime.get_summary()["dead_letters"],
    }


_publisher = _Publisher()


def _begin_anew() -> None:
    """In a forked child the socket, the schedulers and perhaps a locked lock are the parent's."""
    global _publisher
    _publisher.close()
    _publisher = _Publisher()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def publish(scheduler: Scheduler) -> None:
    """Let other processes see a scheduler for as long as it lives; if that fails, `unpublished_because` says why."""
    _publisher.add(scheduler)


def publish_ring(runtime: RingKernelRuntime) -> None:
    """Let other processes see a ring's actors while it runs."""
    _publisher.add_ring(runtime)


def unpublished_because() -> str | None:
    """Why other processes cannot see the schedulers of this one; None when they can."""
    return _publisher.reason


def live_schedulers() -> list[Scheduler]:
    """The schedulers of this process that take tasks or have some."""
    return _publisher.live()


def ask(pid: int | None = None) -> list[dict[str, Any]]:
    """What the schedulers of this user's processes say.

    Parameters
    ----------
    pid : int, optional
        Ask this process only.

    Returns
    -------
    list of dict
        `Scheduler.status` of each, with ``pid`` and ``program``. Processes that do not answer are left out; what the
        dead left behind is removed.
    """
    return ask_all(pid)[0]


def ask_all(pid: int | None = None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the schedulers of this user's processes say, and their rings.

    Parameters
    ----------
    pid : int, optional
        Ask this process only.

    Returns
    -------
    tuple of lists of dict
        As `ask`; and for each `RingKernelRuntime` its ``pid`` and ``program``, ``ring`` (which of the process it is),
        ``time``, ``dead_letters`` by reason, and ``actors``: `KernelTelemetry.to_dict` with ``tier`` of each.
    """
    answers: list[dict[str, Any]] = []
    if hasattr(socket, "AF_UNIX"):
        for folder in _folders():
            for path in _sockets(folder):
                if pid is None or path.stem == str(pid):
                    answers += _ask(path)
    return [row for row in answers if _is_status(row)], [row for row in answers if _is_ring(row)]


def _folders() -> list[Path]:
    """Where sockets may lie, the best place first."""
    folders = [Path(tempfile.gettempdir()) / f"pygpukit-{os.getuid()}"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        folders.insert(0, Path(runtime) / "pygpukit")
    return folders


def _own_folder() -> Path:
    """The first folder that nobody else can write to."""
    problem = ""
    for folder in _folders():
        if len(os.fsencode(folder)) > _LONGEST_FOLDER:
            problem = f"{folder} is too long for the address of a socket"
            continue
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            _check(folder)
            return folder
        except OSError as error:
            problem = str(error)
    raise OSError(f"no folder for the status socket: {problem}")


def _check(folder: Path) -> None:
    """Refuse a folder in which somebody else could have put a socket."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone (owner {found.st_uid}, mode 0700)")


def _sockets(folder: Path) -> list[Path]:
    try:
        _check(folder)
        return sorted(path for path in folder.iterdir() if path.suffix == ".sock" and path.stem.isdecimal())
    except OSError:
        return []


def _sweep(folder: Path) -> None:
    """Remove what dead processes left."""
    for path in _sockets(folder):
        # Who is stopped, and has no room for one more caller, is not waited for.
        with suppress(OSError), _connected(path, 0.0):
            pass


def _connected(path: Path, patience: float) -> socket.socket:
    """A connection; the file of a process that has ended is removed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(patience)
    try:
        connection.connect(str(path))
    except ConnectionRefusedError:
        connection.close()
        path.unlink(missing_ok=True)
        raise
    except OSError:
        connection.close()
        raise
    return connection


def _ask(path: Path) -> list[dict[str, Any]]:
    parts, size = [], 0
    try:
        with _connected(path, _PATIENCE_SECONDS) as connection:
            connection.sendall(_REQUEST)
            while part := connection.recv(1 << 16):
                parts.append(part)
                size += len(part)
                if size > _LARGEST_ANSWER:
                    return []
        answer = json.loads(b"".join(parts))
    except (OSError, ValueError, RecursionError):
        return []
    return [row for row in answer if isinstance(row, dict)] if isinstance(answer, list) else []


def _is_status(row: dict[str, Any]) -> bool:
    """Has it the shape of a status? Another version of the package may have answered."""
    return (
        isinstance(row.get("device"), str)
        and isinstance(row.get("capacity"), dict)
        and all(_has_rows(row, name) for name in ("partitions", "tasks"))
    )


def _is_ring(row: dict[str, Any]) -> bool:
    return isinstance(row.get("ring"), int) and isinstance(row.get("dead_letters"), dict) and _has_rows(row, "actors")


def _has_rows(row: dict[str, Any], name: str) -> bool:
    return isinstance(row.get(name), list) and all(isinstance(item, dict) for item in row[name])
