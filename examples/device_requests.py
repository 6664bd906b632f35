"""Actors on the device that ask each other: a desk asks for a price and a rate, and answers when it has both.

Several clients call the desk at the same time. It never waits: it keeps who asked and what it asked for in its state,
takes the next message, and goes on with the first one when the answers to its own questions come, in whatever order.

python examples/device_requests.py
python examples/device_requests.py --calls 20000 --clients 8
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

ITEMS, CURRENCIES = 64, 8
PLACES = 16
ACTORS = ("desk", "prices", "rates")

rng = np.random.default_rng(0)
PRICES = rng.uniform(1.0, 100.0, ITEMS)
RATES = rng.uniform(0.5, 2.0, CURRENCIES)


@message
class Work:
    """What the desk takes, for an actor takes one type: an order of a client, or an answer to one of its questions."""

    id: gp.int64
    item: gp.int32
    currency: gp.int32
    amount: gp.float64
    value: gp.float64


@message
class Question:
    key: gp.int32


@message
class Quote:
    id: gp.int64
    total: gp.float64


# An order has a place while its answers are awaited: how many they are, the numbers of the questions, and who asked.
DESK_STATE = {
    "open": gp.int32[PLACES],
    "asked": gp.uint64[PLACES, 2],
    "value": gp.float64[PLACES, 2],
    "asker": gp.uint64[PLACES, 2],
    "id": gp.int64[PLACES],
    "amount": gp.float64[PLACES],
}


@ring_kernel(
    kernel_id="desk", input_type=Work, output_type=Quote, device="gpu", block_size=32, state=DESK_STATE, queue_size=64
)
def desk() -> None:
    """
    __device__ void handle(const Work& in, Quote& out, State& state, Context& ctx) {
        const int places = sizeof(state.open) / sizeof(state.open[0]);
        const unsigned long long answered = ctx.correlation();
        int at = 0;
        if (answered == 0) {  // an order: ask for what it needs
            __shared__ Question question;
            while (at < places && state.open[at] != 0) at++;
            if (at == places) return ctx.fail();
            if (ctx.lane == 0) question.key = in.item;
            const unsigned long long price = ctx.send("prices", question);
            if (ctx.lane == 0) question.key = in.currency;
            const unsigned long long rate = ctx.send("rates", question);
            if (ctx.lane == 0) {
                state.open[at] = 2;
                state.asked[at][0] = price;
                state.asked[at][1] = rate;
                state.id[at] = in.id;
                state.amount[at] = in.amount;
                ctx.remember(state.asker[at]);
            }
            return;
        }
        while (at < places && state.asked[at][0] != answered && state.asked[at][1] != answered) at++;
        if (at == places) return ctx.fail();
        const int left = state.open[at] - 1;
        ctx.sync();  // all have read what changes now
        if (ctx.lane == 0) {
            state.open[at] = left;
            state.value[at][state.asked[at][1] == answered] = in.value;
            out.id = state.id[at];
            out.total = state.amount[at] * state.value[at][0] * state.value[at][1];
        }
        if (left == 0) ctx.reply_to(state.asker[at], out);
    }
    """


def look_up() -> None:
    """
    __device__ void handle(const Question& in, Work& out, State& state, Context& ctx) {
        if (ctx.lane == 0) out.value = state.table[in.key];
        ctx.reply(out);
    }
    """


for name, table in (("prices", PRICES), ("rates", RATES)):
    ring_kernel(
        kernel_id=name,
        input_type=Question,
        output_type=Work,
        device="gpu",
        block_size=32,
        state={"table": table},
        queue_size=64,
    )(look_up)


def run(calls: int, clients: int) -> bool:
    """Let the clients call the desk, and compare what they were told."""
    orders = np.zeros(calls, Work.dtype)
    draw = np.random.default_rng(1)
    orders["id"] = np.arange(calls)
    orders["item"] = draw.integers(0, ITEMS, calls)
    orders["currency"] = draw.integers(0, CURRENCIES, calls)
    orders["amount"] = draw.integers(1, 100, calls)
    expected = orders["amount"] * PRICES[orders["item"]] * RATES[orders["currency"]]
    got = np.zeros(calls)
    print(f"{calls} calls by {clients} clients, on {gp.current_device().name}")
    with RingKernelRuntime() as runtime:

        async def launch() -> None:
            # Together: the program of all actors is built once.
            await asyncio.gather(*(runtime.launch(name) for name in ACTORS))
            await asyncio.gather(*(runtime.activate(name) for name in ACTORS))

        runtime.run(launch())
        client: Any = runtime.client("desk")

        def call(first: int) -> None:
            for order in Work.from_array(orders[first::clients]):
                quote = client.call(order, timeout=60)
                got[quote.id] = quote.total

        threads = [threading.Thread(target=call, args=(first,)) for first in range(clients)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    figures = runtime.get_all_telemetry()
    print(
        f"{seconds:.3f} s, {1e6 * seconds / calls:.1f} us a call; for each the actors send four messages to each other"
    )
    for name in ACTORS:
        print(f"{name:<8} received {figures[name].received:>7}   sent {figures[name].sent:>7}")
    is_right = bool(np.array_equal(got, expected)) and not runtime.dead_letters()
    print(f"equal to NumPy: {is_right}")
    return is_right


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500, help="in all (500)")
    parser.add_argument("--clients", type=int, default=4, help=f"at the same time (4), {PLACES} at most")
    given = parser.parse_args()
    if given.calls < 1 or not 1 <= given.clients <= PLACES:
        parser.error(f"there must be a call, and 1 to {PLACES} clients")
    return 0 if run(given.calls, given.clients) else 1


if __name__ == "__main__":
    sys.exit(main())
