"""What a kernel did on the CPU device, counted."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Profile", "Traffic"]

_SECTOR = 32


class Traffic(NamedTuple):
    """Global memory accesses of warps in one direction.

    Attributes
    ----------
    accesses : int
        Instructions of warps.
    sectors : int
        32-byte sectors they touched: what the hardware moves.
    bytes : int
        Bytes the threads asked for.
    """

    accesses: int
    sectors: int
    bytes: int

    @property
    def efficiency(self) -> float:
        """Bytes asked for per byte moved; 1.0 when neighbouring threads use neighbouring words."""
        return self.bytes / (self.sectors * _SECTOR) if self.sectors else 1.0


class Profile:
    """Counted facts of one launch, the same in every run; `str` gives a table.

    Attributes
    ----------
    kernel : str
        Its name.
    classes : dict
        Class of instruction to (issued by warps, executed by threads).
    loads, stores : Traffic
        Global memory.
    shared_accesses, shared_passes, shared_conflicts : int
        Shared memory: instructions of warps, passes they took, and passes that bank conflicts added.
    local_accesses, local_bytes : int
        Local memory: instructions of warps, and bytes of threads.
    branches, divergent : int
        Branches of warps, and those at which threads of a warp parted.
    blocks, warps, threads : int
        Size of the launch.
    """

    def __init__(self, kernel: str, counts: dict[str, Any]) -> None:
        self.kernel = kernel
        self.classes: dict[str, tuple[int, int]] = counts["classes"]
        self.loads = Traffic(**counts["loads"])
        self.stores = Traffic(**counts["stores"])
        self.shared_accesses: int = counts["shared_accesses"]
        self.shared_passes: int = counts["shared_passes"]
        self.shared_conflicts: int = counts["shared_conflicts"]
        self.local_accesses: int = counts["local_accesses"]
        self.local_bytes: int = counts["local_bytes"]
        self.branches: int = counts["branches"]
        self.divergent: int = counts["divergent"]
        self.blocks: int = counts["blocks"]
        self.warps: int = counts["warps"]
        self.threads: int = counts["threads"]

    @property
    def instructions(self) -> int:
        """Instructions issued by warps."""
        return sum(issued for issued, _ in self.classes.values())

    @property
    def thread_instructions(self) -> int:
        """Instructions executed by threads."""
        return sum(executed for _, executed in self.classes.values())

    @property
    def lane_efficiency(self) -> float:
        """Threads at work per lane of the instructions issued; below 1.0 where threads part or warps are not full."""
        return self.thread_instructions / (32 * self.instructions) if self.instructions else 1.0

    def __repr__(self) -> str:
        return f"<Profile of {self.kernel}: {self.instructions} instructions, {self.lane_efficiency:.0%} of lanes>"

    def __str__(self) -> str:
        rows = [
            f"{self.kernel}: {self.blocks} blocks, {self.warps} warps, {self.threads} threads",
            f"  {'instructions':<20} {'warps':>14} {'threads':>16} {'lanes':>7}",
        ]
        total = (self.instructions, self.thread_instructions)
        for name, (issued, executed) in [*self.classes.items(), ("total", total)]:
            share = executed / (32 * issued) if issued else 1.0
            rows.append(f"  {name:<20} {issued:>14,} {executed:>16,} {share:>7.0%}")
        for name, traffic in (("global loads", self.loads), ("global stores", self.stores)):
            if traffic.accesses:
                rows.append(
                    f"  {name}: {traffic.accesses:,} accesses, {traffic.sectors:,} sectors of {_SECTOR} bytes, "
                    f"{traffic.efficiency:.0%} of them used"
                )
        if self.shared_accesses:
            rows.append(
                f"  shared memory: {self.shared_accesses:,} accesses in {self.shared_passes:,} passes, "
                f"{self.shared_conflicts:,} of them for bank conflicts"
            )
        if self.local_accesses:
            rows.append(f"  local memory: {self.local_accesses:,} accesses, {self.local_bytes:,} bytes")
        rows.append(f"  branches: {self.branches:,}, {self.divergent:,} of them divergent")
        return "\n".join(rows)
