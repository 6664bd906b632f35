"""PageRank by actors on the device: each owns a part of a graph, and ranks flow between them as messages.

A superstep begins when the coordinator tells the parts to go. Every part writes what its nodes give to those of each
other part, and sends where that is; a part that has heard from all of them has its new ranks, and reports how much they
changed. The host sends the first message and receives the last one.

python examples/pagerank_actor.py
python examples/pagerank_actor.py --nodes 100000 --parts 16
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

DAMPING = 0.85


@message
class Step:
    """To a part: begin the superstep (`rows` is 0), or what another part gives: `values[i]` for the node `rows[i]`."""

    rows: gp.uint64
    values: gp.uint64
    count: gp.int64
    dangling: gp.float64


@message
class Report:
    """To the coordinator: how much the ranks of a part changed. The host sends one to begin."""

    change: gp.float64
    is_start: gp.int32
    most_steps: gp.int32
    tolerance: gp.float64


@message
class Result:
    steps: gp.int32
    change: gp.float64


# Addresses of a part's arrays. Its edges are sorted by the node they go to: those from starts[i] on end at rows[i], and
# what goes to part p is in the rows from segments[p] on.
PART_STATE = {
    **dict.fromkeys(("rank", "next", "weight", "starts", "sources", "rows", "values", "segments", "peers"), gp.uint64),
    **dict.fromkeys(("nodes", "all_nodes", "parts", "heard"), gp.int64),
    "dangling": gp.float64,
}


def part() -> None:
    """
    __device__ double total(double mine, Context& ctx) {
        __shared__ double sums[128];
        sums[ctx.lane] = mine;
        ctx.sync();
        for (unsigned half = ctx.width / 2; half > 0; half /= 2) {
            if (ctx.lane < half) sums[ctx.lane] += sums[ctx.lane + half];
            ctx.sync();
        }
        const double sum = sums[0];
        ctx.sync();
        return sum;
    }

    // What the nodes here give: their rank, divided among the edges that leave them.
    __device__ void give(State& state, Context& ctx) {
        __shared__ Step step;
        const double *rank = (const double*)state.rank, *weight = (const double*)state.weight;
        const long long *starts = (const long long*)state.starts, *segments = (const long long*)state.segments;
        const int* sources = (const int*)state.sources;
        const unsigned* peers = (const unsigned*)state.peers;
        int* rows = (int*)state.rows;
        double* values = (double*)state.values;
        double lost = 0.0;
        for (long long i = ctx.lane; i < state.nodes; i += ctx.width) lost += weight[i] == 0.0 ? rank[i] : 0.0;
        lost = total(lost, ctx);
        for (long long row = ctx.lane; row < segments[state.parts]; row += ctx.width) {
            double sum = 0.0;
            for (long long e = starts[row]; e < starts[row + 1]; e++) sum += rank[sources[e]] * weight[sources[e]];
            values[row] = sum;
        }
        ctx.fence();  // the others read the values themselves, not only the message
        for (long long p = 0; p < state.parts; p++) {
            if (ctx.lane == 0) {
                step.rows = (unsigned long long)(rows + segments[p]);
                step.values = (unsigned long long)(values + segments[p]);
                step.count = segments[p + 1] - segments[p];
                step.dangling = lost;
            }
            ctx.send_to(peers[p], step);
        }
    }

    // All have given: these are the new ranks. Returns how much they differ from the old ones.
    __device__ double update(State& state, Context& ctx) {
        double *rank = (double*)state.rank, *next = (double*)state.next;
        double change = 0.0;
        for (long long i = ctx.lane; i < state.nodes; i += ctx.width) {
            const double now = ((1.0 - DAMPING) + DAMPING * state.dangling) / state.all_nodes + DAMPING * next[i];
            change += fabs(now - rank[i]);
            rank[i] = now;
            next[i] = 0.0;
        }
        return total(change, ctx);
    }

    __device__ void handle(const Step& in, ring::Nothing& out, State& state, Context& ctx) {
        __shared__ Report report;
        if (in.rows == 0) return give(state, ctx);
        const int* rows = (const int*)in.rows;
        const double* values = (const double*)in.values;
        double* next = (double*)state.next;
        ctx.fence();  // what was read there in the last step may still be in this SM's cache
        for (long long i = ctx.lane; i < in.count; i += ctx.width) next[rows[i]] += values[i];
        if (ctx.lane == 0) {
            state.dangling += in.dangling;
            state.heard++;
        }
        ctx.sync();
        if (state.heard < state.parts) return;
        const double change = update(state, ctx);
        if (ctx.lane == 0) {
            state.heard = 0;
            state.dangling = 0.0;
            report.change = change;
            report.is_start = 0;
        }
        ctx.fence();
        ctx.send("coordinator", report);
    }
    """


def coordinator() -> None:
    """
    __device__ void handle(const Report& in, Result& out, State& state, Context& ctx) {
        __shared__ Step go;
        if (ctx.lane == 0) {
            if (in.is_start) {
                state.most_steps = in.most_steps;
                state.tolerance = in.tolerance;
            } else {
                state.change += in.change;
                state.reports++;
            }
            go.rows = 0;
        }
        ctx.sync();
        if (!in.is_start && state.reports < state.parts) return;
        const bool is_done = !in.is_start && (state.change < state.tolerance || state.steps + 1 >= state.most_steps);
        ctx.sync();
        if (ctx.lane == 0) {
            state.steps += in.is_start ? 0 : 1;
            out.steps = state.steps;
            out.change = state.change;
            state.reports = 0;
            state.change = 0.0;
        }
        ctx.sync();
        if (is_done) {
            ctx.send(out);
            return;
        }
        // All parts are of one type, so one of them tells how messages to them look.
        const unsigned first = ctx.find("part-0");
        for (int p = 0; p < state.parts; p++) ctx.send_to(p == 0 ? first : ((const unsigned*)state.peers)[p], go);
    }
    """


def define(parts: int) -> list[str]:
    """The actors; returns the ids of the parts."""
    assert part.__doc__ is not None
    part.__doc__ = part.__doc__.replace("DAMPING", str(DAMPING))
    names = [f"part-{number}" for number in range(parts)]
    for name in names:
        ring_kernel(
            kernel_id=name, input_type=Step, device="gpu", state=PART_STATE, block_size=128, queue_size=2 * parts + 2
        )(part)
    ring_kernel(
        kernel_id="coordinator",
        input_type=Report,
        output_type=Result,
        device="gpu",
        block_size=32,
        queue_size=2 * parts + 2,
        state={
            **dict.fromkeys(("parts", "reports", "steps", "most_steps"), gp.int32),
            **dict.fromkeys(("change", "tolerance"), gp.float64),
            "peers": gp.uint64,
        },
    )(coordinator)
    return names


def make_graph(nodes: int, degree: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Edges from and to; few nodes get most of them, and some have none that leaves."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, nodes, nodes * degree)
    target = (nodes * rng.random(nodes * degree) ** 3).astype(np.int64)
    keep = source % 17 != 0
    edges = np.unique(np.stack([source[keep], target[keep]]), axis=1)
    return edges[0], edges[1]


def make_part(
    source: np.ndarray[Any, Any], target: np.ndarray[Any, Any], bounds: np.ndarray[Any, Any], number: int
) -> dict[str, gp.GPUArray]:
    """Arrays of one part on the device, by their names in its state."""
    low, high = int(bounds[number]), int(bounds[number + 1])
    nodes = int(bounds[-1])
    mine = (source >= low) & (source < high)
    order = np.argsort(target[mine], kind="stable")
    sources, targets = source[mine][order] - low, target[mine][order]
    rows, starts = np.unique(targets, return_index=True)
    owner = np.searchsorted(bounds, rows, side="right") - 1
    degree = np.bincount(sources, minlength=high - low)
    host = {
        "rank": np.full(high - low, 1.0 / nodes),
        "next": np.zeros(high - low),
        "weight": np.where(degree > 0, 1.0 / np.maximum(degree, 1), 0.0),
        "starts": np.append(starts, len(targets)).astype(np.int64),
        "sources": np.append(sources, 0).astype(np.int32),
        "rows": np.append(rows - bounds[owner], 0).astype(np.int32),
        "values": np.zeros(len(rows) + 1),
        "segments": np.searchsorted(rows, bounds).astype(np.int64),
    }
    return {name: gp.from_numpy(array) for name, array in host.items()}


def fill(state: dict[str, gp.GPUArray], values: dict[str, Any]) -> None:
    """Give an actor that is not active yet what it begins with."""
    for name, value in values.items():
        state[name][:] = gp.from_numpy(np.array([value], state[name].to_numpy().dtype))


def reference(
    source: np.ndarray[Any, Any], target: np.ndarray[Any, Any], nodes: int
) -> tuple[np.ndarray[Any, Any], str]:
    """The ranks by other means: a linear system where SciPy is installed, else a power iteration."""
    degree = np.bincount(source, minlength=nodes)
    try:
        from scipy.sparse import csc_matrix, identity
        from scipy.sparse.linalg import bicgstab
    except ImportError:
        rank = np.full(nodes, 1.0 / nodes)
        for _ in range(500):
            given = np.bincount(target, rank[source] / degree[source], nodes)
            new = (1 - DAMPING + DAMPING * rank[degree == 0].sum()) / nodes + DAMPING * given
            change, rank = np.abs(new - rank).sum(), new
            if change < 1e-14:
                break
        return rank, "a power iteration in NumPy"
    # What comes from the nodes without edges is the same for all: it only scales the solution.
    moves = csc_matrix((1.0 / degree[source], (target, source)), (nodes, nodes))
    solved, failed = bicgstab(identity(nodes, format="csc") - DAMPING * moves, np.ones(nodes), rtol=1e-13, atol=0.0)
    if failed:
        raise RuntimeError(f"the solver of SciPy did not converge ({failed})")
    return solved / solved.sum(), "a linear system in SciPy"


def run(nodes: int, degree: int, parts: int, steps: int, tolerance: float, seed: int) -> bool:
    """Rank a graph, and compare."""
    source, target = make_graph(nodes, degree, seed)
    bounds = np.linspace(0, nodes, parts + 1).astype(np.int64)
    arrays = [make_part(source, target, bounds, number) for number in range(parts)]
    names = define(parts)
    print(f"{nodes} nodes and {len(source)} edges in {parts} parts, on {gp.current_device().name}")
    with RingKernelRuntime() as runtime:

        async def launch() -> None:
            # Together: the program of all actors is built once.
            await asyncio.gather(*(runtime.launch(name) for name in [*names, "coordinator"]))

        async def activate() -> None:
            await asyncio.gather(*(runtime.activate(name) for name in [*names, "coordinator"]))

        runtime.run(launch())
        peers = gp.from_numpy(np.array([runtime.get_actor_number(name) for name in names], np.uint32))
        for number, name in enumerate(names):
            given = {field: array.ptr for field, array in arrays[number].items()}
            given |= {"peers": peers.ptr, "nodes": int(bounds[number + 1] - bounds[number])}
            fill(runtime.get_state(name), given | {"all_nodes": nodes, "parts": parts})
        fill(runtime.get_state("coordinator"), {"parts": parts, "peers": peers.ptr})
        gp.synchronize()
        runtime.run(activate())
        client = runtime.client("coordinator")
        began = time.perf_counter()
        client.send(Report(change=0.0, is_start=1, most_steps=steps, tolerance=tolerance))
        result = client.receive(timeout=100)
        seconds = time.perf_counter() - began
        ranks = np.concatenate([one["rank"].to_numpy() for one in arrays])
    # Everything has come to rest: these are all messages.
    figures = runtime.get_all_telemetry()
    letters = runtime.dead_letters()
    passed = sum(one.processed for one in figures.values())
    print(f"{result.steps} supersteps in {seconds:.3f} s, {passed} messages; the last changed {result.change:.1e}")
    expected, means = reference(source, target, nodes)
    error = float(np.abs(ranks - expected).max() / expected.max())
    # What is still missing shrinks by the damping in every step.
    bound = max(1e-12, result.change / (1 - DAMPING) / expected.max())
    print(f"highest rank: node {int(ranks.argmax())}; sum of all ranks {ranks.sum():.12f}")
    print(f"compared with {means}: largest error {error:.1e} of the highest rank, at most {bound:.1e} is right")
    for letter in letters[:5]:
        print(f"dead letter for {letter.kernel_id}: {letter.reason}")
    is_right = error <= bound and not letters
    print(f"as expected: {is_right}")
    return is_right


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2000, help="of the graph (2000)")
    parser.add_argument("--degree", type=int, default=8, help="edges that leave a node (8)")
    parser.add_argument("--parts", type=int, default=4, help="actors that share the graph (4)")
    parser.add_argument("--steps", type=int, default=200, help="most supersteps (200)")
    parser.add_argument("--tolerance", type=float, default=1e-10, help="change of all ranks that ends it (1e-10)")
    parser.add_argument("--seed", type=int, default=0, help="of the graph (0)")
    given = parser.parse_args()
    if given.parts < 1 or given.nodes < given.parts or given.degree < 1 or given.steps < 1:
        parser.error("there must be a part, a node in each of them, an edge and a step")
    return 0 if run(given.nodes, given.degree, given.parts, given.steps, given.tolerance, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
