"""The thread of an engine: it takes requests, runs steps, and passes on what they give."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from pygpukit._pygpukit_rust import Device, MemoryPool, Stream
from pygpukit.core.determinism import deterministic
from pygpukit.core.device import device
from pygpukit.errors import TaskCancelledError
from pygpukit.llm import callbacks
from pygpukit.llm.drafters import accepted
from pygpukit.llm.outputs import FinishReason
from pygpukit.llm.request import Request
from pygpukit.llm.runner import Drawn, Runner
from pygpukit.llm.sampling import no_token
from pygpukit.llm.saved_cache import Prefixes
from pygpukit.llm.scheduler import Branch, Row, Scheduler
from pygpukit.llm.speculation import Speculation
from pygpukit.llm.telemetry import Telemetry

if TYPE_CHECKING:
    from pygpukit.llm.engine_task import EngineTask

__all__ = ["EngineLoop"]

_Result = TypeVar("_Result")


class EngineLoop:
    """What runs in the engine's thread, which starts with the first request.

    Parameters
    ----------
    runner : Runner
    scheduler : Scheduler
    on : Device
    pool : MemoryPool, optional
        Where the memory of steps comes from.
    level : str
        What operators must promise about bits.
    ahead : bool
        Queue a step before the tokens of the one before are known to the host.
    task : EngineTask, optional
        Whose thread it is, with the task's lane and memory.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        on: Device,
        pool: MemoryPool | None,
        level: str,
        ahead: bool,
        task: EngineTask | None = None,
    ) -> None:
        self.runner, self.scheduler, self.ahead = runner, scheduler, ahead
        self.speculation: Speculation | None = None
        self.counts = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0, "steps": 0}
        self.telemetry = Telemetry(scheduler)
        self._device, self._pool, self._level = on, pool, level
        self._changed = threading.Condition()
        self._new: deque[Branch] = deque()
        self._touched: deque[Request] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.prefixes: Prefixes | None = None
        self._branches: dict[Request, list[Branch]] = {}
        self._drawn: Drawn | None = None
        self._thread: Any = None
        self._task, self._cancelled = task, False
        self._owner = os.getpid()
        self._closing = False
        if task is not None:
            task.task.on_cancel(self._cancel_all)

    def speculate(self, speculation: Speculation) -> None:
        """Guess next tokens from now on."""
        self.speculation = self.scheduler.drafter = speculation

    def submit(self, branch: Branch) -> None:
        """Hand a reply over to the thread."""
        if os.getpid() != self._owner:
            raise RuntimeError("the engine's thread is in the process that made it: make an engine in this one")
        with self._changed:
            if self._cancelled:
                raise self._end_of_task()
            if self._closing:
                raise ValueError("the model is closed")
            self._new.append(branch)
            self._start()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function in the thread, between two steps, and return its result."""
        done: Future[_Result] = Future()
        with self._changed:
            if self._cancelled:
                raise self._end_of_task()
            if self._closing:
                raise ValueError("the model is closed")
            self._calls.append((function, done))
            self._start()
        return done.result()

    def _start(self) -> None:
        if self._thread is None and self._task is not None:
            self._thread = self._task.start(self._run)
        elif self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pygpukit-llm", daemon=True)
            self._thread.start()
        self._changed.notify()

    def touch(self, request: Request) -> None:
        """Let the thread see that a request was cancelled."""
        with self._changed:
            self._touched.append(request)
            self._changed.notify()

    def close(self, timeout: float | None = None) -> None:
        """End the requests in flight and the thread.

        Raises
        ------
        TimeoutError
            If the thread does not end, as `callbacks.join` says; what waits for it has ended with that error.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is None or self._thread is threading.current_thread() or os.getpid() != self._owner:
            return
        try:
            callbacks.join(self._thread, timeout)
        except TimeoutError as error:
            self._abandon(error)
            raise

    def give_memory_up(self) -> None:
        """Give up weights, pages and the pool when the thread has ended: requests keep this object."""
        if self.speculation is not None:
            self.speculation.close()
        self.runner.close()
        self.scheduler.__dict__.pop("memory", None)
        self._pool = None

    def _abandon(self, error: TimeoutError) -> None:
        """Let nothing wait for a thread that does not come back."""
        with self._changed:
            calls, self._calls = list(self._calls), deque()
            waiting = {branch.request: [branch] for branch in self._new}
        for _, done in calls:
            done.set_exception(error)
        for request, branches in (dict(self._branches) | waiting).items():
            outputs = {}
            for sequence in (each for branch in branches for each in (branch.sequence, *branch.forks)):
                sequence.finish_reason, sequence.stop_reason = "error", f"{type(error).__name__}: {error}"
                outputs[sequence.index] = sequence.output()
            request.abandon(error, outputs)

    def _cancel_all(self) -> None:
        with self._changed:
            self._cancelled = self._closing = True
            self._changed.notify()

    def _end_of_task(self) -> TaskCancelledError:
        assert self._task is not None
        return TaskCancelledError(f"task '{self._task.task.name}' was cancelled, and the engine has ended with it")

    @property
    def sizes(self) -> dict[str, int]:
        """How many replies run and wait."""
        waiting = list(self.scheduler.waiting)
        return {
            "running": len(self.scheduler.running),
            "waiting": len(waiting) + len(self._new),
            "on_host": sum(branch.on_host for branch in waiting),
        }

    def _run(self) -> None:
        with ExitStack() as context:
            if self._task is None:
                context.enter_context(device(self._device))
                if self._pool is not None:
                    context.enter_context(self._pool)
                context.enter_context(Stream())
            context.enter_context(deterministic(self._level))
            while self._wait():
                try:
                    if self._task is None:
                        self._step()
                    else:
                        self._step_of(self._task)
                except BaseException as error:
                    self._fail_all(error)
            self._end_all()

    def _wait(self) -> bool:
        """Wait for something to do, and take what has come; False when the engine is closed."""
        with self._changed:
            while not (self._closing or self._new or self._touched or self._calls or self._branches):
                self._changed.wait()
            if self._closing:
                return False
            new, self._new = list(self._new), deque()
            touched, self._touched = list(self._touched), deque()
            calls, self._calls = list(self._calls), deque()
        for branch in new:
            self._branches[branch.request] = [branch]
            try:
                self.runner.expect(len(branch.sequence.prompt) + branch.sequence.limit)
            except Exception as error:
                self._fail(branch, error)
            else:
                self.scheduler.add(branch)
        for request in touched:
            self._cancel(request)
        for function, done in calls:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)
        return True

    def _step_of(self, task: EngineTask) -> None:
        """A step, and a span in the trace of the task's scheduler."""
        task.give_way()
        steps, tokens, begun = self.counts["steps"], self.counts["completion_tokens"], time.perf_counter()
        self._step()
        if self.counts["steps"] > steps:
            task.task.span(
                "step", begun, time.perf_counter(), running=len(self.scheduler.running),
                waiting=len(self.scheduler.waiting), tokens=self.counts["completion_tokens"] - tokens,
            )  # fmt: skip

    def _step(self) -> None:
        if self._drawn is not None and not self._may_go_ahead():
            self._finish()
        if self.speculation is not None:
            self.speculation.prepare(self.scheduler.running)
        rows = self.scheduler.plan(self._drawn is not None)
        if rows is None:
            self._finish()
            rows = self.scheduler.plan(False)
        for branch in self.scheduler.waiting:
            branch.request.waits(branch.reason)
        if not rows:
            if self._drawn is not None:
                self._finish()
            elif self.scheduler.waiting and not self.scheduler.running:
                # Nothing runs, so nothing will be freed.
                branch = self.scheduler.waiting[0]
                self._fail(branch, RuntimeError(f"the reply cannot go on: {branch.reason}"))
            return
        before = self._drawn
        try:
            drawn = self.runner.run(rows, before)
        except MemoryError as error:
            self._free_memory(rows, error)
            return
        except BaseException as error:
            for row in rows:
                self._fail(row.branch, error)
            return
        self._note(rows, drawn)
        if self.ahead:
            drawn.start_copy()
        if before is not None:
            self._finish()
        self._drawn = drawn
        if not self.ahead or drawn.tokens is None:
            self._finish()

    def _free_memory(self, rows: list[Row], error: MemoryError) -> None:
        """Make room for the next try of a step, or fail the reply that has none alone."""
        if self._drawn is not None:
            # The arrays of the step before are free then.
            self._finish()
        elif not self.scheduler.shrink(rows):
            graphs = self.runner.graphs
            if graphs is not None and len(graphs) > 0:
                graphs.clear()
            else:
                self._fail(rows[0].branch, error)

    def _may_go_ahead(self) -> bool:
        assert self._drawn is not None
        if any(row.drafts for row in self._drawn.rows):
            # How many of its tokens are right is not known.
            return False
        wants = self.speculation.wants if self.speculation is not None else lambda branch: False
        return all(b.sequence.is_simple and not b.forks and not wants(b) for b in self.scheduler.running)

    def _note(self, rows: list[Row], drawn: Drawn) -> None:
        """Note what a step computes, as soon as it is queued."""
        cache = self.scheduler.cache
        self.scheduler.account(rows)
        self.counts["steps"] += 1
        now = time.perf_counter()
        for branch, count, _ in rows:
            assert branch.pages is not None
            if not branch.begun:
                self.telemetry.begins(branch, now)
            cache.advance(branch.pages, count)
            branch.computed += count
            branch.request.runs()
        if not self.ahead:
            return
        guessed = {row.branch for row in rows if row.drafts}
        for line, (branch, index, _) in enumerate(drawn.lines):
            if index == 0 and not branch.forks and branch.pages is not None and branch not in guessed:
                cache.push_pending(branch.pages, line)
                branch.pending += 1

    def _finish(self) -> None:
        """Read the tokens of the last step, and pass them on."""
        drawn, self._drawn = self._drawn, None
        assert drawn is not None
        tokens, reports = drawn.read(), drawn.logprobs()
        now = time.perf_counter()
        # Replies that were made for one prompt get their pages before any of them goes on.
        targets = [self._target(branch, index) for branch, index, _ in drawn.lines]
        for branch in {branch for branch, index, _ in drawn.lines if index}:
            branch.forks.clear()
        right = self._right(drawn, tokens)
        # Lines of one reply in the order of their tokens.
        for line in sorted(range(len(targets)), key=lambda line: drawn.lines[line][2]):
            branch, token, guessed = targets[line], tokens[line], drawn.lines[line][2]
            if branch.request not in self._branches or branch not in self._branches[branch.request]:
                # It has ended since: the token is one too many.
                continue
            if guessed > right.get(branch, 0):
                # It was drawn behind a guess that was wrong.
                continue
            if guessed:
                # The guess's keys and values are in the pages already.
                assert branch.pages is not None
                self.scheduler.cache.advance(branch.pages, 1)
                branch.computed += 1
                branch.sequence.accepted += 1
            if line in drawn.failed:
                self._fail(branch, drawn.failed[line])
            elif token < 0:
                sequence = branch.sequence
                self._fail(branch, sequence.problem or no_token(sequence.params, not sequence.is_simple))
            else:
                self.telemetry.token(branch, now)
                self._pass_on(branch, token, reports.get(line))
        for branch in list(self.scheduler.running):
            if branch.sequence.limit == 0 and branch.computed == branch.length:
                self._end(branch, "length")

    def _right(self, drawn: Drawn, tokens: list[int]) -> dict[Branch, int]:
        """How many guesses about a reply are right."""
        guesses = {row.branch: row.drafts for row in drawn.rows if row.drafts}
        said = {branch: [0] * (len(drafts) + 1) for branch, drafts in guesses.items()}
        for (branch, _, place), token in zip(drawn.lines, tokens, strict=True):
            if branch in said:
                said[branch][place] = token
        right = {branch: accepted(drafts, said[branch]) for branch, drafts in guesses.items()}
        for branch, drafts in guesses.items():
            branch.sequence.drafted += len(drafts)
            self.telemetry.drafts(branch, len(drafts), right[branch])
            if self.speculation is not None:
                self.speculation.learn(branch, drafts, said[branch])
        return right

    def _target(self, branch: Branch, index: int) -> Branch:
        """The reply a line is of: forks become replies of their own, with the pages of the first."""
        if index == 0:
            return branch
        made = Branch(branch.request, branch.forks[index - 1], branch.order, branch.salt)
        made.arrived, made.begun = branch.arrived, branch.begun
        known = self._branches.get(branch.request)
        if known is None or branch.pages is None:
            return made
        known.append(made)
        forked = None
        if len(self.scheduler.running) < self.scheduler.max_num_seqs:
            forked = self.scheduler.cache.fork(branch.pages)
        if forked is None:
            # Without room it waits, and finds most of the prompt in the cache later.
            self.scheduler.add(made)
        else:
            made.pages, pair = forked
            made.computed = branch.computed
            if pair is not None:
                self.scheduler.memory.copy(pair)
            self.scheduler.run(made)
        return made

    def _pass_on(self, branch: Branch, token: int, report: dict[int, float] | None) -> None:
        sequence, request = branch.sequence, branch.request
        if branch.pending:
            branch.pending -= 1
            if branch.pages is not None:
                self.scheduler.cache.resolve(branch.pages, token)
        elif branch.pages is not None:
            self.scheduler.cache.push(branch.pages, token)
        self.counts["completion_tokens"] += 1
        try:
            if sequence.logprobs is not None and report is not None:
                sequence.logprobs.append(report)
            piece = sequence.add(token)
        except BaseException as error:
            # Panics of Rust are no Exception.
            self._fail(branch, error if isinstance(error, Exception) else RuntimeError(f"the reply broke: {error!r}"))
            return
        if sequence.finish_reason is not None:
            self._forget(branch, sequence.finish_reason)
        request.put(sequence.index, piece)

    def _end(self, branch: Branch, reason: FinishReason) -> None:
        """End a reply before its time."""
        self._forget(branch, reason)
        branch.request.put(branch.sequence.index, branch.sequence.end(reason))

    def _fail(self, branch: Branch, error: BaseException) -> None:
        """End all replies of a request; the others go on."""
        callbacks.detach(error)
        request, outputs = branch.request, {}
        for other in self._branches.pop(request, ()):
            self.scheduler.remove(other)
            self._note_end(other, "error")
            for sequence in (other.sequence, *other.forks):
                sequence.stop_reason = f"{type(error).__name__}: {error}"
                outputs[sequence.index] = sequence.end("error").output
        request.fail(error, outputs)

    def _forget(self, branch: Branch, reason: FinishReason) -> None:
        self._note_end(branch, reason)
        if self.prefixes is not None and branch.sequence.params.prompt_logprobs is None:
            known = [*branch.sequence.prompt, *branch.sequence.reply]
            self.prefixes.add(branch.salt, known[: branch.computed])
        self.scheduler.remove(branch)
        mine = self._branches.get(branch.request)
        if mine is not None and branch in mine:
            mine.remove(branch)
            if branch.sequence.index == 0:
                self.counts["cached_tokens"] += branch.sequence.cached
            if not mine:
                del self._branches[branch.request]

    def _note_end(self, branch: Branch, reason: FinishReason) -> None:
        now = time.perf_counter()
        self.telemetry.ends(branch, reason, now)
        if self._task is not None and self._task.task.is_traced:
            known = {"tenant": branch.tenant.name, "tokens": len(branch.sequence.reply), "reason": reason}
            for name, begun, ended in self.telemetry.spans(branch, now):
                self._task.task.span(name, begun, ended, key=f"{branch.order}.{branch.sequence.index}", **known)

    def _fail_all(self, error: BaseException) -> None:
        """A fault of the engine itself: nothing that runs can be trusted."""
        self._drawn = None
        for branches in list(self._branches.values()):
            self._fail(branches[0], error)

    def _end_all(self) -> None:
        self._drawn = None
        for branch in self._new:
            self._branches[branch.request] = [branch]
        self._new.clear()
        if self._cancelled:
            self._fail_all(self._end_of_task())
        for request in list(self._branches):
            self._cancel(request)
        for _, done in self._calls:
            done.set_exception(ValueError("the model is closed"))
        self._calls.clear()

    def _cancel(self, request: Request) -> None:
        for branch in self._branches.pop(request, ()):
            self.scheduler.remove(branch)
            self._note_end(branch, "cancelled")
            for sequence in (branch.sequence, *branch.forks):
                request.put(sequence.index, sequence.end("cancelled"))
