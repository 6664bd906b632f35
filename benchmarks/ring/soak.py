"""Device actors under load and faults for minutes: in the end every message is in one place.

python benchmarks/ring/soak.py --seconds 180 --seed 1 --json benchmarks/results/h200-ring-soak.json

Threads send into a random graph of actors while the ring parks, actors stand still, end, fail and are launched again,
new types come, other kernels are built and run, calls are interrupted and the process is stopped for longer than its
lease. Every message has a number. It comes out once, or is a dead letter, or was refused to its sender.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.errors import MailboxFullError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernelRuntime, message, ring_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

# Actors that wait for each other in a circle need room for all there is.
ROOM = 2048
MOST_UNDER_WAY = 1500

LEASE = 0.5
STOPPED = 1.3
PATIENCE = 20.0
STANDSTILL = 60.0

# A token goes on while it has hops left, one of two ways; then it is the output of where it is. FAIL is a value.
WANDER = """
__device__ void handle(const Token& in, Token& out, State& state, Context& ctx) {
    if (in.value == FAIL) { ctx.fail(); return; }
    if (ctx.lane == 0) { out = in; out.hops = in.hops - 1; state.count += SALT; }
    if (in.hops <= 0) ctx.send(out);
    else if ((in.id + in.hops) & 1) ctx.send("FIRST", out);
    else ctx.send("SECOND", out);
}
"""
ECHO = """
__device__ void handle(const Token& in, Token& out, State& state, Context& ctx) {
    if (ctx.lane == 0) { out = in; state.count += 1; }
    ctx.send(out);
}
"""
FAIL = 13

FAULTS = ("park", "pause", "relaunch", "add", "operate", "build", "interrupt", "stop", "fail", "expire", "narrow")


@message
class Token:
    """A number, and how far to go."""

    id: gp.int64
    hops: gp.int32
    value: gp.int32


def actor(name: str, source: str, **options: Any) -> None:
    """Define a device actor."""

    def function() -> None: ...

    function.__doc__ = source
    ring_kernel(
        kernel_id=name,
        input_type=Token,
        output_type=Token,
        device="gpu",
        state={"count": gp.int64},
        output_queue_size=4096,
        **options,
    )(function)


class Ledger:
    """Where each message is. Its numbers are given here, one after the other."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.lock = threading.Lock()
        self.given = 0
        self.fates: dict[str, list[int]] = {"came out": [], "answered": [], "refused": []}

    def new(self) -> int:
        """The next number."""
        with self.lock:
            self.given += 1
            return next(self.numbers)

    def note(self, fate: str, *numbers: int) -> None:
        """These messages are there."""
        with self.lock:
            self.fates[fate] += numbers

    @property
    def settled(self) -> int:
        """Messages that are somewhere, without the dead letters."""
        with self.lock:
            return sum(map(len, self.fates.values()))


class World:
    """One runtime: a random graph of actors, threads that send, one that receives, and what disturbs them."""

    def __init__(
        self, runtime: RingKernelRuntime, seed: int, phase: int, lease: float, faults: tuple[str, ...]
    ) -> None:
        self.runtime, self.lease, self.faults = runtime, lease, faults
        self.rng = random.Random(f"{seed} {phase}")
        self.ledger = Ledger()
        self.events: Counter[str] = Counter()
        self.errors: list[str] = []
        self.is_over = threading.Event()
        self.is_gone = threading.Event()
        self.doing = "the beginning"
        self.prefix = f"soak{phase}-"
        self.names: list[str] = []
        self.clients: dict[str, Any] = {}
        self.old: list[Any] = []
        self.salt = 1
        self.later = [f"{self.prefix}later{i}" for i in range(3)]
        actor(self.prefix + "echo", ECHO, dedicated=True, block_size=32, queue_size=ROOM)
        # Two that only give: the mailbox of one is full soon, and whoever sends to it waits.
        actor(self.prefix + "narrow", ECHO, dedicated=False, block_size=32, input_queue_size=2)
        actor(self.prefix + "wide", ECHO, dedicated=False, block_size=64, input_queue_size=ROOM)
        wanderers = [f"{self.prefix}{i}" for i in range(8)]
        self.targets = [*wanderers, self.prefix + "wide"]
        if "narrow" in faults:
            self.targets.append(self.prefix + "narrow")
        policies = ["block", "block", "reject", "reject", "drop_oldest", "drop_oldest", "drop_new", "drop_new"]
        for name, policy in zip(wanderers, policies, strict=True):
            self._define(name, policy)
        self._start([self.prefix + "echo", *self.targets])
        self.caller = self.clients.pop(self.prefix + "echo")
        self.names = list(self.targets)

    def _define(self, name: str, policy: str) -> None:
        first, second = self.rng.choices(self.targets, k=2)
        source = WANDER.replace("FIRST", first).replace("SECOND", second)
        actor(
            name,
            source.replace("SALT", str(self.salt)).replace("FAIL", str(FAIL)),
            dedicated=self.rng.choice([True, False]),
            block_size=self.rng.choice([1, 32, 64]),
            backpressure=policy,
            input_queue_size=ROOM if policy == "block" else self.rng.choice([2, 8, 64]),
            # Some begin anew after each failure, and some are FAILED then and launched again.
            restart=self.rng.choice(["on_failure", "on_failure", "never"]),
            max_restarts=1 << 30,
        )

    def _start(self, names: list[str]) -> None:
        async def begin() -> None:
            await asyncio.gather(*(self.runtime.launch(name) for name in names))
            await asyncio.gather(*(self.runtime.activate(name) for name in names))

        self.runtime.run(begin())
        for name in names:
            if name in self.clients:
                # What it sent before it ended is still to be received.
                self.old.append(self.clients[name])
            self.clients[name] = self.runtime.client(name)

    def letters(self) -> int:
        """Dead letters so far."""
        return sum(self.runtime.get_summary()["dead_letters"].values())

    def under_way(self) -> int:
        """Messages that are nowhere yet."""
        return self.ledger.given - self.ledger.settled - self.letters()

    def send(self, seed: int) -> None:
        """Send until it is over; now and then more than mailboxes take."""
        rng = random.Random(seed)
        try:
            while not self.is_over.is_set():
                if self.under_way() > MOST_UNDER_WAY:
                    time.sleep(0.002)
                    continue
                for _ in range(rng.choice([1, 16, 64])):
                    self._send_one(rng)
                time.sleep(0.001)
        except BaseException as error:
            self.errors.append(f"a sender: {type(error).__name__}: {error}")

    def _send_one(self, rng: random.Random) -> None:
        client = self.clients[rng.choice(self.names)]
        number = self.ledger.new()
        value = FAIL if "fail" in self.faults and rng.random() < 0.01 else 0
        token = Token(number, rng.randrange(12), value)
        if "expire" in self.faults and rng.random() < 0.05:
            token.deadline = time.monotonic() + rng.choice([-1.0, 0.0005, 60.0])
        try:
            # False is a dead letter.
            client.send(token, timeout=rng.choice([0.0, 0.001, 0.1]))
        except (MailboxFullError, TimeoutError, RingError) as error:
            self.ledger.note("refused", number)
            self.events[f"refused: {type(error).__name__}"] += 1

    def call(self) -> None:
        """Calls, one after the other."""
        try:
            while not self.is_over.is_set():
                number = self.ledger.new()
                try:
                    answer = self.caller.call(Token(number, 0, 0), timeout=PATIENCE)
                except UndeliveredError:
                    continue
                if answer.id != number:
                    self.errors.append(f"the answer to {number} was {answer}")
                self.ledger.note("answered", number)
        except BaseException as error:
            self.errors.append(f"a caller: {type(error).__name__}: {error}")

    def collect(self) -> int:
        """Take what came out."""
        count = 0
        for client in [*list(self.clients.values()), *self.old, self.caller]:
            rows = client.receive_batch(4096, timeout=0)
            self.ledger.note("came out", *rows["id"].tolist())
            count += len(rows)
        return count

    def receive(self) -> None:
        """Take what comes out until it is over."""
        try:
            while not self.is_over.is_set():
                if not self.collect():
                    time.sleep(0.001)
        except BaseException as error:
            self.errors.append(f"the receiver: {type(error).__name__}: {error}")

    def disturb(self) -> None:
        """One thing of many."""
        is_possible = {
            "add": bool(self.later),
            "stop": self.lease == LEASE,
            "fail": False,
            "expire": False,
            "narrow": False,
        }
        kinds = [getattr(self, name) for name in self.faults if is_possible.get(name, True)]
        kind = self.rng.choice(kinds) if kinds else self.rest
        self.doing = kind.__name__
        try:
            kind()
            self.events[kind.__name__] += 1
        except RingError as error:
            # An actor may fail while it is told to stand still.
            if not any(self.state(name) is KernelState.FAILED for name in self.names):
                self.errors.append(f"{kind.__name__}: {type(error).__name__}: {error}")
            self.events["order refused"] += 1
        self.revive()
        time.sleep(self.rng.random() * 0.02)

    def state(self, name: str) -> KernelState:
        """Of an actor."""
        return self.runtime.get_kernel_state(name)

    def revive(self) -> None:
        """Launch those that failed for good again."""
        if failed := [name for name in self.names if self.state(name) is KernelState.FAILED]:
            self._start(failed)
            self.events["failed for good"] += len(failed)

    def rest(self) -> None:
        """Nothing happens for a moment."""
        time.sleep(0.05)

    def park(self) -> None:
        """The ring leaves and comes back."""
        link = self.runtime._tier.ring.link
        link.park()
        time.sleep(self.rng.random() * 0.002)
        link.resume()

    def pause(self) -> None:
        """An actor stands still for a moment; its mailbox fills."""
        name = self.rng.choice(self.names)
        self.runtime.run(self.runtime.deactivate(name, timeout=PATIENCE))
        time.sleep(self.rng.random() * 0.05)
        self.runtime.run(self.runtime.reactivate(name))

    def relaunch(self) -> None:
        """An actor ends, with or without its messages, and begins anew."""
        name = self.rng.choice(self.names)
        self.runtime.run(self.runtime.terminate(name, drain=self.rng.random() < 0.5, timeout=PATIENCE))
        time.sleep(self.rng.random() * 0.01)
        self._start([name])

    def add(self) -> None:
        """A type that the ring does not know yet: it is built anew."""
        name = self.later.pop()
        self.salt += 1
        self._define(name, "block")
        self._start([name])
        self.names.append(name)

    def operate(self) -> None:
        """Operators beside the ring."""
        a = gp.ones((64, 32))
        if gp.sum(a @ gp.ones((32, 16)) + gp.ones((64, 16))).item() != 64 * 16 * 33:
            self.errors.append("an operator gave a wrong result")

    def build(self) -> None:
        """A kernel that was never loaded before."""
        number = self.rng.randrange(1 << 20)
        source = f'extern "C" __global__ void fresh(float* x) {{ x[threadIdx.x] = {number}.0f; }}'
        x = gp.zeros(32)
        gp.jit(source, func="fresh")(x, grid=(1,), block=(32,))
        if not (x.to_numpy() == np.float32(number)).all():
            self.errors.append("a new kernel gave a wrong result")

    def interrupt(self) -> None:
        """Ctrl-C in a call that is not answered: the answer is a dead letter later."""
        echo, number = self.prefix + "echo", self.ledger.new()
        self.runtime.run(self.runtime.deactivate(echo, timeout=PATIENCE))
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            self.caller.call(Token(number, 0, 0), timeout=PATIENCE)
            self.errors.append("a call to an actor that stands still was answered")
        except KeyboardInterrupt:
            timer.join()
        self.runtime.run(self.runtime.reactivate(echo))

    def stop(self) -> None:
        """Another process stops this one for longer than the lease."""
        pid = os.getpid()
        orders = f"kill -STOP {pid}; sleep {STOPPED}; kill -CONT {pid}"
        subprocess.run(["/bin/sh", "-c", orders], check=True)

    def settle(self) -> None:
        """Wait until everything is somewhere."""
        last, until = -1, time.monotonic() + PATIENCE
        while (left := self.under_way()) and time.monotonic() < until:
            self.collect()
            if left != last:
                last, until = left, time.monotonic() + PATIENCE
            time.sleep(0.002)
        self.collect()


class Soak:
    """Phases with a runtime each, and what they came to."""

    def __init__(self, seed: int, faults: tuple[str, ...]) -> None:
        self.seed, self.faults = seed, faults
        self.fates: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.errors: list[str] = []
        self.given = self.lost = self.doubled = 0
        self.began = time.monotonic()

    def phase(self, number: int, seconds: float) -> None:
        """A runtime from beginning to end."""
        lease = LEASE if number % 2 else 10.0
        with RingKernelRuntime(dead_letters=10_000_000, lease=lease) as runtime:
            world = World(runtime, self.seed, number, lease, self.faults)
            watch = threading.Thread(target=self._watch, args=(world,))
            watch.start()
            jobs: list[tuple[Any, tuple[Any, ...]]] = [
                (world.send, (self.seed + 100 * number + at,)) for at in range(3)
            ]
            jobs += [(world.call, ()), (world.receive, ())]
            threads = [threading.Thread(target=job, args=given) for job, given in jobs]
            for thread in threads:
                thread.start()
            end = time.monotonic() + seconds
            try:
                while time.monotonic() < end and not world.errors:
                    world.disturb()
            finally:
                world.is_over.set()
                for thread in threads:
                    thread.join()
            world.doing = "the end"
            world.settle()
            letters = [(one.message.id, one.reason) for one in runtime.dead_letters()]
            launches = runtime._tier.ring.link.status()["launches"]
            world.is_gone.set()
            watch.join()
        self._count(world, letters)
        self.events["launches of the kernel"] += launches

    def _watch(self, world: World) -> None:
        """Say every 10 seconds how it goes; end the process when nothing goes any more, which nothing else may."""
        before, same = -1, 0
        while not world.is_gone.wait(10):
            settled = world.ledger.settled + world.letters()
            before, same = settled, same + 1 if settled == before else 0
            status = world.runtime._tier.ring.link.status()
            print(
                f"  -- {time.monotonic() - self.began:.0f} s: {self.given + world.ledger.given} messages, "
                f"{world.under_way()} under way, {world.letters()} dead letters, in {world.doing}; "
                f"{status['launches']} launches, up {status['up']}, stuck {status['stuck']}, "
                f"{status['orders_pending']} orders; {dict(world.events)}",
                flush=True,
            )
            if same * 10 >= STANDSTILL:
                print(f"nothing has moved for {STANDSTILL:g} s; actors that have messages:", flush=True)
                for name, one in world.runtime.get_all_telemetry().items():
                    if one.input_depth or one.output_depth:
                        print(f"  {name}: {one.state.name}, in {one.input_depth}, out {one.output_depth}", flush=True)
                faulthandler.dump_traceback()
                os._exit(1)

    def _count(self, world: World, letters: list[tuple[int, str]]) -> None:
        every = Counter(number for numbers in world.ledger.fates.values() for number in numbers)
        every.update(number for number, _ in letters)
        self.given += world.ledger.given
        lost = [number for number in range(world.ledger.given) if not every[number]]
        doubled = [number for number, times in every.items() if times > 1]
        self.lost += len(lost)
        self.doubled += len(doubled) + sum(number >= world.ledger.given for number in every)
        if lost or doubled:
            places = {fate: set(numbers) for fate, numbers in world.ledger.fates.items()}
            for number in doubled[:5]:
                here = [fate for fate, numbers in places.items() if number in numbers]
                print(f"  -- {number} twice: {here}, {[why for one, why in letters if one == number]}", flush=True)
            print(f"  -- lost: {lost[:20]}", flush=True)
        for fate, numbers in world.ledger.fates.items():
            self.fates[fate] += len(numbers)
        self.fates.update(f"dead letter, {why}" for _, why in letters)
        self.events += world.events
        self.errors += world.errors


def main() -> int:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", type=int, default=6, help="runtimes, one after the other; every second is stopped")
    parser.add_argument("--faults", default=",".join(FAULTS), help="which, with commas")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    # A shell's background job ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faults = tuple(filter(None, options.faults.split(",")))
    if unknown := [name for name in faults if name not in FAULTS]:
        parser.error(f"there is no fault {unknown}; there is {', '.join(FAULTS)}")
    soak = Soak(options.seed, faults)
    for number in range(options.phases):
        soak.phase(number, options.seconds / options.phases)
    report = Report()
    report.add("soak: messages", soak.given, 1.0, "", 1, at_least=True, seconds=time.monotonic() - soak.began)
    report.add("soak: messages lost", soak.lost, 1.0, "", 0)
    report.add("soak: messages doubled", soak.doubled, 1.0, "", 0)
    report.add("soak: errors", len(soak.errors), 1.0, "", 0, errors=soak.errors[:20])
    for name, count in sorted((soak.fates + soak.events).items()):
        report.add(f"soak: {name}", count, 1.0, "", 0, at_least=True)
    for error in soak.errors[:20]:
        print(error)
    given = f"--seconds {options.seconds:g} --seed {options.seed} --phases {options.phases} --faults {options.faults}"
    return report.finish(options.json, f"python benchmarks/ring/soak.py {given}")


if __name__ == "__main__":
    sys.exit(main())
