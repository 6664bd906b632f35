"""Two tenants that run torch on one GPU: what each of them got of it, against what it was promised.

python examples/scheduler_torch.py
python examples/scheduler_torch.py --seconds 10 --weights 1 4 --size 8192
"""

from __future__ import annotations

import argparse
import importlib
import threading
import time
from typing import Any

from pygpukit.scheduler import Scheduler


def load_torch() -> Any:
    """torch, if it is installed and can use a GPU."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def multiply(torch: Any, size: int, stop: threading.Event) -> int:
    """Multiply matrices until it is told to stop; returns how often."""
    a = torch.randn(size, size, device="cuda", dtype=torch.float16)
    count = 0
    while not stop.is_set():
        a @ a
        count += 1
    torch.cuda.current_stream().synchronize()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--weights", type=int, nargs="+", default=[3, 7])
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the matrices")
    arguments = parser.parse_args()
    torch = load_torch()
    if torch is None:
        print("torch is not installed, or cannot use a GPU: there is nothing to show")
        return
    stop = threading.Event()
    with Scheduler() as scheduler:
        call = (torch, arguments.size, stop)
        tasks = [
            scheduler.submit(multiply, args=call, name=f"weight {weight}", weight=weight, memory_limit="2GiB")
            for weight in arguments.weights
        ]
        time.sleep(arguments.seconds)
        stop.set()
        products = [task.result() for task in tasks]
        used = [task.stats()["gpu_seconds"] for task in tasks]
    for task, weight, seconds, count in zip(tasks, arguments.weights, used, products, strict=True):
        got, promised = seconds / sum(used), weight / sum(arguments.weights)
        print(f"{task.name}: {count} products, {got:.1%} of the GPU's time; {promised:.1%} was promised")


if __name__ == "__main__":
    main()
