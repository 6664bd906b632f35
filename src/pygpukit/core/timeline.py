"""What the picture of a recording shows, whoever draws it: pools over time, what is on the host, what moved when."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from pygpukit.config import format_size

if TYPE_CHECKING:
    from pygpukit.core.recording import Event, Recording

__all__ = [
    "COLORS",
    "EVICTED",
    "ON_HOST",
    "REFUSED",
    "RESTORED",
    "Balance",
    "Band",
    "QuotaLine",
    "Row",
    "Timeline",
    "byte_axis",
    "time_axis",
]

# Told apart by most eyes, also next to each other; the last is for the pools that have none of their own.
COLORS = ("#4477aa", "#ee8866", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#997700", "#44bb99", "#bbbbbb")

ON_HOST, EVICTED, RESTORED, REFUSED = "#c9ced6", "#bb2222", "#112277", "#dd0000"

_POINTS = 1000
_ROWS = 60
_MOVES_IN_ROWS = 3000
_RATES = 120
_QUOTAS = 6
_SMALL = 1 << 20


class Balance:
    """Bytes of each pool on the device and on the host, its own only, as events change them."""

    def __init__(self) -> None:
        self.device: defaultdict[int, int] = defaultdict(int)
        self.host: defaultdict[int, int] = defaultdict(int)

    def apply(self, event: Event) -> tuple[int, int]:
        """By how much an event changes the bytes on the device and on the host."""
        size, pool = event.bytes, event.pool
        place, change = (self.host if event.on_host else self.device), 0
        match event.kind:
            case "held":
                change = size - place[pool]
            case "allocate":
                change = size
            case "free":
                change = -size
            case "evict" | "restore":
                moved = size if event.kind == "evict" else -size
                self.device[pool] -= moved
                self.host[pool] += moved
                return -moved, moved
        place[pool] += change
        return (0, change) if event.on_host else (change, 0)


class Band(NamedTuple):
    """One layer of the picture: a pool, or several small ones together."""

    name: str
    color: str
    pools: frozenset[int]
    peak: int
    values: list[int]


class QuotaLine(NamedTuple):
    """Where the layers of a pool and those inside it end at the latest; None where there is no quota."""

    label: str
    color: str
    values: list[int | None]


class Row(NamedTuple):
    """One segment that moved: from when to when it was where, in seconds."""

    address: int
    pool: str
    color: str
    bars: list[tuple[float, float, bool]]
    evictions: list[float]
    restores: list[float]


class Timeline:
    """What the picture of a recording shows.

    Attributes
    ----------
    times : list of float
        Seconds at which the values of bands, host and quotas begin to hold; the last is the end.
    bands : list of Band
        From the bottom up.
    host : list of int
        Bytes on the host.
    quotas : list of QuotaLine
    top : int
        The highest value the picture shows.
    rows : list of Row
        Segments by address, where there are not too many.
    rates : list of (seconds, seconds, evicted, restored)
        Otherwise the bytes that moved in each span of time.
    refused : list of float
        When there was no memory for a request.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.seconds = recording.seconds
        self._children: defaultdict[int | None, list[int]] = defaultdict(list)
        for pool in sorted(recording.pools):
            parent = recording.parents[pool]
            self._children[parent if parent in recording.pools else None].append(pool)
        self.bands = self._make_bands()
        self.times: list[float] = []
        self.host: list[int] = []
        self._sample()
        totals = [sum(column) for column in zip(*(band.values for band in self.bands), strict=True)]
        highest = max(totals, default=0)
        lines = self._quota_lines(highest)
        self.quotas = lines
        shown = [value for line in lines for value in line.values if value is not None]
        self.top = max(highest, *shown, 1) if shown else max(highest, 1)
        self.refused = [event.time / 1e9 for event in recording.events if event.kind == "refuse"]
        moves = [event for event in recording.events if event.kind in ("evict", "restore")]
        self.moves = Counter(event.kind for event in moves)
        few = len(moves) <= _MOVES_IN_ROWS and len({event.address for event in moves}) <= _ROWS
        self.rows = self._rows({event.address for event in moves}) if few else []
        self.rates = [] if few else self._rates(moves)

    @property
    def title(self) -> str:
        """What the picture is of."""
        return f"Memory of {self.recording.device}"

    @property
    def subtitle(self) -> str:
        """How long it was, and how much of it is missing."""
        value, unit = _time_unit(self.seconds)
        text = f"{len(self.recording.events):,} events in {self.seconds * value:.4g} {unit}"
        if self.moves:
            text += f", {self.moves['evict']:,} evictions, {self.moves['restore']:,} restores"
        if self.refused:
            text += f", {len(self.refused):,} refused"
        if self.recording.dropped:
            text += f"; {self.recording.dropped:,} later events are missing"
        return text

    def _ordered(self) -> Iterator[int]:
        # Pools inside one follow it, so that what its quota counts lies together.
        waiting = self._children[None][::-1]
        while waiting:
            pool = waiting.pop()
            yield pool
            waiting += self._children[pool][::-1]

    def _within(self, pool: int) -> set[int]:
        found, waiting = {pool}, [pool]
        while waiting:
            inside = self._children[waiting.pop()]
            found.update(inside)
            waiting += inside
        return found

    def _make_bands(self) -> list[Band]:
        balance = Balance()
        peak: Counter[int] = Counter()
        for event in self.recording.events:
            balance.apply(event)
            peak[event.pool] = max(peak[event.pool], balance.device[event.pool])
        used = [pool for pool in self._ordered() if peak[pool] > 0]
        most = len(COLORS) - 1
        kept = set(sorted(used, key=lambda pool: -peak[pool])[:most])
        colors = iter(COLORS)
        bands = [
            Band(self.recording.pools[pool], next(colors), frozenset({pool}), peak[pool], [])
            for pool in used
            if pool in kept
        ]
        if others := frozenset(used) - kept:
            name = f"{len(others)} other pools"
            bands.append(Band(name, COLORS[-1], others, sum(peak[pool] for pool in others), []))
        return bands

    def _sample(self) -> None:
        """The values over time; of many events, the fullest moment and the last of each span."""
        events = self.recording.events
        width = self.seconds / _POINTS if len(events) > _POINTS else 0.0
        band_of = {pool: number for number, band in enumerate(self.bands) for pool in band.pools}
        balance = Balance()
        state, host = [0] * len(self.bands), 0
        last = (0.0, list(state), host)
        fullest: tuple[int, float, list[int], int] | None = None
        span, started = -1, False
        for number, event in enumerate(events):
            # What was there at the start was there at time 0.
            started = started or event.kind not in ("held", "quota", "unlimit")
            time = event.time / 1e9 if started else 0.0
            now = (int(time / width) if width else number) if started else -1
            if now != span:
                self._keep(fullest, last)
                fullest = None
            span = now
            change, moved = balance.apply(event)
            if event.pool in band_of:
                state[band_of[event.pool]] += change
            host += moved
            last = (time, list(state), host)
            total = sum(state)
            if fullest is None or total > fullest[0]:
                fullest = (total, *last)
        self._keep(fullest, last)
        self._keep(None, (self.seconds, state, host))

    def _keep(self, fullest: tuple[int, float, list[int], int] | None, last: tuple[float, list[int], int]) -> None:
        for time, state, host in ([] if fullest is None or fullest[1:] == last else [fullest[1:]]) + [last]:
            self.times.append(time)
            self.host.append(max(host, 0))
            for band, value in zip(self.bands, state, strict=True):
                band.values.append(max(value, 0))

    def _quota_lines(self, highest: int) -> list[QuotaLine]:
        changes: dict[int, list[tuple[float, int | None]]] = {}
        for event in self.recording.events:
            if event.kind in ("quota", "unlimit"):
                quota = event.bytes if event.kind == "quota" else None
                changes.setdefault(event.pool, []).append((event.time / 1e9, quota))
        lines = []
        single = {next(iter(band.pools)): number for number, band in enumerate(self.bands) if len(band.pools) == 1}
        merged = frozenset().union(*(band.pools for band in self.bands if len(band.pools) > 1))
        neutral = "#333333"
        for pool in (pool for pool in self._ordered() if pool in changes):
            inside = self._within(pool)
            numbers = sorted(single[one] for one in inside if one in single)
            quotas = [quota for _, quota in changes[pool] if quota is not None]
            # The pools drawn together lie on top: what a quota counts must be all of them and all that lies between.
            apart = numbers and inside & merged and not all(band.pools <= inside for band in self.bands[numbers[0] :])
            # A quota far above all use would press the rest of the picture flat.
            if not numbers or apart or min(quotas, default=0) > 2 * highest:
                continue
            below = self.bands[: numbers[0]]
            values = [
                None if quota is None else quota + sum(band.values[i] for band in below)
                for i, quota in enumerate(self._over_time(changes[pool]))
            ]
            values = [None if value is not None and value > 2 * highest else value for value in values]
            sizes = format_size(quotas[0]) if len(set(quotas)) == 1 else "changing"
            color = self.bands[single[pool]].color if pool in single else neutral
            lines.append(QuotaLine(f"quota of {self.recording.pools[pool]} ({sizes})", color, values))
        return lines[:_QUOTAS]

    def _over_time(self, changes: list[tuple[float, int | None]]) -> Iterator[int | None]:
        """The quota in force from each of the times on."""
        position, quota = 0, None
        for number, time in enumerate(self.times):
            # The first time stands for the start, whose events come a moment later.
            until = self.times[1] if number == 0 and len(self.times) > 1 else time
            while position < len(changes) and changes[position][0] <= until:
                quota = changes[position][1]
                position += 1
            yield quota

    def _rows(self, addresses: set[int]) -> list[Row]:
        colors = {pool: band.color for band in self.bands for pool in band.pools}
        rows: dict[int, Row] = {}
        since: dict[int, tuple[float, bool]] = {}
        born: dict[int, float] = {}
        for event in self.recording.events:
            address, time = event.address, event.time / 1e9
            if address not in addresses:
                continue
            # Small arrays come and go in a slab, which stays. Its first block has its address.
            large = event.bytes > _SMALL
            if event.kind == "allocate" and (large or address not in born):
                born[address] = time
                if large or address not in rows:
                    since[address] = (time, event.on_host)
            elif event.kind in ("evict", "restore"):
                name = self.recording.pools.get(event.pool, "?")
                row = rows.setdefault(address, Row(address, name, colors.get(event.pool, COLORS[-1]), [], [], []))
                leaves = event.kind == "evict"
                start, on_host = since.get(address, (0.0, not leaves))
                row.bars.append((start, time, on_host))
                since[address] = (time, leaves)
                (row.evictions if leaves else row.restores).append(time)
            elif event.kind == "free" and large and address in since:
                start, on_host = since.pop(address)
                if address in rows:
                    rows[address].bars.append((start, time, on_host))
        for address, (start, on_host) in since.items():
            if address in rows:
                rows[address].bars.append((start, self.seconds, on_host))
        return [rows[address] for address in sorted(rows)]

    def _rates(self, moves: list[Event]) -> list[tuple[float, float, int, int]]:
        width = max(self.seconds, 1e-9) / _RATES
        moved: Counter[tuple[int, str]] = Counter()
        for event in moves:
            moved[min(int(event.time / 1e9 / width), _RATES - 1), event.kind] += event.bytes
        return [(i * width, (i + 1) * width, moved[i, "evict"], moved[i, "restore"]) for i in range(_RATES)]


def byte_axis(top: int, ticks: int = 5) -> tuple[int, str, list[int]]:
    """Bytes of the unit an axis up to `top` bytes is in, its name, and where its ticks are, in bytes."""
    unit, name = next(
        ((1 << bits, name) for bits, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")) if top >= 2 << bits),
        (1, "bytes"),
    )
    # Powers of two, because memory is.
    step = 1 << max(0, math.ceil(math.log2(max(top / ticks, 1))))
    return unit, name, list(range(0, top + 1, step))


def time_axis(seconds: float, ticks: int = 8) -> tuple[float, str, list[float]]:
    """What seconds are multiplied with on an axis up to `seconds`, the unit's name, and the ticks in that unit."""
    factor, name = _time_unit(seconds)
    top = seconds * factor
    if top <= 0:
        return factor, name, [0.0]
    rough = top / ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= rough * 0.999)
    return factor, name, [i * step for i in range(int(top / step * 1.0001) + 1)]


def _time_unit(seconds: float) -> tuple[float, str]:
    return next(((f, name) for f, name, most in ((1e6, "us", 2e-3), (1e3, "ms", 2.0)) if seconds < most), (1.0, "s"))
