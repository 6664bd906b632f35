"""What a step computes: which replies go on, which are admitted, which give up their pages.

There are no phases. Every reply has tokens that are known and tokens that are computed; a step lets the second number
catch up with the first, for replies that need one token first, then for prompts, within the step's budget.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pygpukit._pygpukit_rust import PageCache
from pygpukit.llm.pages import PAGE_TOKENS, PageMemory
from pygpukit.llm.sequence import Sequence as Reply
from pygpukit.llm.tenants import Tenant

if TYPE_CHECKING:
    from pygpukit.llm.request import Request

__all__ = ["Branch", "Guess", "Row", "Scheduler"]

# Steps that go well before one of twice as many tokens is tried again, after one that had no memory.
_PATIENCE = 32


@dataclasses.dataclass(slots=True, eq=False)
class Branch:
    """One reply of a request, as the scheduler sees it.

    Attributes
    ----------
    request
    sequence
        Its tokens and its text.
    order
        Place among all that have come.
    salt
        Of its pages.
    pages
        Its number in the page cache; None while it has no pages.
    computed
        Tokens whose keys and values are in its pages.
    pending
        Tokens that are drawn and not known to the host yet.
    on_host
        Its pages are on the host.
    is_running
        It is computed, rather than waiting.
    reason
        Why it waits.
    forks
        Other replies to the same prompt, which begin when that is computed.
    arrived, begun, first, last
        When it came, had its first step, its first token and its last one; 0 for what has not been yet.
    """

    request: Request
    sequence: Reply
    order: int
    salt: str = ""
    pages: int | None = None
    computed: int = 0
    pending: int = 0
    on_host: bool = False
    is_running: bool = False
    reason: str = ""
    forks: list[Reply] = dataclasses.field(default_factory=list)
    arrived: float = dataclasses.field(default_factory=time.perf_counter)
    begun: float = 0.0
    first: float = 0.0
    last: float = 0.0

    @property
    def tenant(self) -> Tenant:
        """Whose it is."""
        return self.request.tenant

    @property
    def length(self) -> int:
        """Tokens of prompt and reply, pending ones included."""
        return len(self.sequence.prompt) + len(self.sequence.reply) + self.pending

    @property
    def longest(self) -> int:
        """Tokens that will be computed at most: the last one of a reply is not."""
        return len(self.sequence.prompt) + max(self.sequence.limit - 1, 0)

    @property
    def is_full(self) -> bool:
        """Whether all tokens it may have are drawn."""
        return len(self.sequence.reply) + self.pending >= max(self.sequence.limit, 1)


class Row(NamedTuple):
    """What a step computes of a reply: so many of its known tokens, and guesses about those behind all of these."""

    branch: Branch
    tokens: int
    drafts: Sequence[int] = ()


# Guesses about the next tokens of a reply: the reply, and how many at most.
Guess = Callable[[Branch, int], Sequence[int]]


def pages_for(tokens: int) -> int:
    """Return the pages that so many tokens take."""
    return -(-tokens // PAGE_TOKENS)


class Scheduler:
    """Replies that wait and replies that run.

    Parameters
    ----------
    cache : PageCache
    memory : PageMemory
    max_num_seqs : int
        Replies in one step.
    max_batched_tokens : int
        Tokens in one step.
    offload : bool
        Preempted replies move their pages to the host as long as it has room; else they are computed again.

    Attributes
    ----------
    drafter : Guess, optional
        Guesses tokens of replies that need one: the step computes the guesses too, and those that are drawn are kept.
    """

    drafter: Guess | None = None

    def __init__(
        self, cache: PageCache, memory: PageMemory, max_num_seqs: int, max_batched_tokens: int, offload: bool
    ) -> None:
        self.cache, self.memory = cache, memory
        self.max_num_seqs, self.max_batched_tokens, self.offload = max_num_seqs, max_batched_tokens, offload
        self.waiting: list[Branch] = []
        self.running: list[Branch] = []
        self._preempted: set[Branch] = set()
        self._guaranteed: set[Branch] = set()
        self.counts = {"preemptions": 0, "swapped_out": 0, "swapped_in": 0, "recomputed": 0, "out_of_memory": 0}
        # Tokens of a step while memory is short, and how many steps went well since.
        self._room, self._calm = max_batched_tokens, 0

    def add(self, branch: Branch) -> None:
        """Let a reply wait for its place."""
        tenant = branch.tenant
        if not any(other.tenant is tenant for other in self._all()):
            # Who was away has no claim to what it did not use.
            others = [other.tenant.served for other in self._all() if other.tenant.rank == tenant.rank]
            tenant.served = max(tenant.served, min(others, default=tenant.served))
        self.waiting.append(branch)

    def run(self, branch: Branch) -> None:
        """Let a reply run that has its pages already."""
        self.running.append(branch)
        branch.is_running = True
        branch.tenant.running += 1
        if branch.tenant.rank == 0:
            self._guaranteed.add(branch)

    def remove(self, branch: Branch) -> None:
        """Forget a reply and free its pages."""
        if branch.is_running:
            self._stop(branch)
        elif branch in self.waiting:
            self.waiting.remove(branch)
        if branch.pages is not None:
            self.cache.release(branch.pages)
            branch.pages = None

    def plan(self, draining: bool) -> list[Row] | None:
        """Return the rows of a step; None if tokens that are pending must be known first.

        Parameters
        ----------
        draining : bool
            Whether there are tokens that are pending, so that no reply can be preempted now.
        """
        rows: dict[Branch, Row] = {}
        budget = self._room
        self._preempted.clear()
        todo = [b for b in sorted(self.running, key=self._key) if b.length > b.computed and not self._is_done(b)]
        todo.sort(key=lambda branch: branch.length - branch.computed > 1)
        for branch in todo:
            if budget == 0:
                break
            if not branch.is_running:
                continue
            count = min(branch.length - branch.computed, budget)
            while not self.reserve(branch, count):
                if draining:
                    return None
                victim = self._victim()
                if victim is None:
                    break
                budget += self._drop(rows, victim)
                self.preempt(victim)
                if victim is branch:
                    break
            else:
                drafts = self._drafts(branch, count, budget)
                rows[branch] = Row(branch, count, drafts)
                budget -= count + len(drafts)
        if not self._admit(rows, budget, draining):
            return None
        return list(rows.values())

    def account(self, rows: Sequence[Row]) -> None:
        """Note that a step is computed."""
        for branch, count, drafts in rows:
            branch.tenant.served += (count + len(drafts)) / branch.tenant.weight
            branch.tenant.tokens += count
        if self._room < self.max_batched_tokens:
            self._calm += 1
            if self._calm >= _PATIENCE:
                self._room, self._calm = min(2 * self._room, self.max_batched_tokens), 0

    def shrink(self, rows: Sequence[Row]) -> bool:
        """Let the next steps have half the tokens of one that had no memory; False where it had only one."""
        self.counts["out_of_memory"] += 1
        tokens = sum(row.tokens + len(row.drafts) for row in rows)
        self._room, self._calm = max(tokens // 2, 1), 0
        return tokens > 1

    def preempt(self, branch: Branch) -> None:
        """Take the pages of a running reply: to the host, or where that has no room they are computed again."""
        self._stop(branch)
        self.waiting.append(branch)
        self._preempted.add(branch)
        branch.reason = "preempted: others needed its pages"
        self.counts["preemptions"] += 1
        branch.tenant.preemptions += 1
        assert branch.pages is not None
        moves = self.cache.swap_out(branch.pages) if self.offload else None
        if moves is not None:
            with suppress(MemoryError):
                self.memory.to_host(moves)
                branch.on_host = True
                self.counts["swapped_out"] += len(moves)
                return
        self._recompute(branch)

    def _recompute(self, branch: Branch) -> None:
        """Give up what is computed of a reply."""
        assert branch.pages is not None
        self.cache.release(branch.pages)
        self.counts["recomputed"] += branch.computed
        branch.pages, branch.computed, branch.on_host = None, 0, False

    def never_fits(self, branch: Branch) -> str | None:
        """Return why a reply cannot be computed, however empty the engine is; None if it can."""
        needed, there = pages_for(branch.longest), self.cache.pages
        share = branch.tenant.kv_share
        whose = "the engine has"
        if share is not None:
            there, whose = int(there * share), f"tenant {branch.tenant.name!r} may have"
        if needed <= there:
            return None
        return (
            f"the request needs {needed} pages of {PAGE_TOKENS} tokens ({len(branch.sequence.prompt)} of the prompt "
            f"and {branch.sequence.limit} of the reply), and {whose} {there}: shorten the prompt, lower max_tokens, or "
            "give the engine more memory="
        )

    def _all(self) -> Iterator[Branch]:
        yield from self.running
        yield from self.waiting

    def _key(self, branch: Branch) -> tuple[float, ...]:
        tenant = branch.tenant
        return tenant.rank, tenant.served, -branch.request.priority, branch.order

    @staticmethod
    def _is_done(branch: Branch) -> bool:
        """Whether nothing is left but to learn tokens that are pending."""
        return branch.pending > 0 and branch.is_full

    def _stop(self, branch: Branch) -> None:
        self.running.remove(branch)
        branch.is_running = False
        branch.tenant.running -= 1
        self._guaranteed.discard(branch)

    def _promised(self, to: Branch) -> int:
        """Pages that guaranteed replies were promised and do not have yet; not those of the asking one."""
        return sum(
            pages_for(branch.longest) - pages_for(branch.computed) for branch in self._guaranteed if branch is not to
        )

    def reserve(self, branch: Branch, count: int) -> bool:
        """Give a running reply pages for tokens that are not computed yet; False if there are none for it."""
        assert branch.pages is not None
        needed = pages_for(branch.computed + count) - pages_for(branch.computed)
        there = self.cache.available - self._promised(branch) if branch.tenant.rank > 0 else needed
        if needed and needed > there:
            # Pages of guesses that were wrong may be there already.
            needed = pages_for(branch.computed + count) - len(self.cache.sequence(branch.pages)["pages"])
            if needed > max(there, 0):
                return False
        return self.cache.reserve(branch.pages, count)

    def _drafts(self, branch: Branch, count: int, budget: int) -> Sequence[int]:
        """Guesses for a reply that needs its next token, as far as there is room for them."""
        if branch.forks or branch.pending or not branch.sequence.takes_drafts:
            return ()
        if branch.length != branch.computed + count:
            return ()
        # The last token of a reply needs no guess behind it.
        most = min(budget - count, branch.sequence.limit - len(branch.sequence.reply) - 1)
        if most <= 0:
            return ()
        drafts: Sequence[int] = branch.sequence.forced()[:most]
        if not drafts and self.drafter is not None:
            drafts = self.drafter(branch, most)[:most]
        return drafts if drafts and self.reserve(branch, count + len(drafts)) else ()

    @staticmethod
    def _drop(rows: dict[Branch, Row], branch: Branch) -> int:
        """Take a reply out of a step; how many tokens that leaves to others."""
        row = rows.pop(branch, None)
        return 0 if row is None else row.tokens + len(row.drafts)

    def _victim(self) -> Branch | None:
        """The newest of the lowest class; guaranteed ones are none."""
        found = [branch for branch in self.running if branch.tenant.rank > 0]
        return max(found, key=lambda b: (b.tenant.rank, -b.request.priority, b.order), default=None)

    def _admit(self, rows: dict[Branch, Row], budget: int, draining: bool) -> bool:
        """Admit waiting replies in order as long as there is room; False if pending tokens must be known first."""
        for branch in sorted(self.waiting, key=self._key):
            if budget == 0:
                branch.reason = branch.reason or "the step is full"
                break
            if branch in self._preempted:
                # What was taken in this step does not come back in it.
                break
            why = self._tenant_is_full(branch)
            if why:
                # Its own limit: others go past it.
                branch.reason = why
                continue
            count = self._start(branch, budget)
            while count is None:
                victim = self._victim()
                if victim is None or victim.tenant.rank <= branch.tenant.rank:
                    break
                if draining:
                    return False
                budget += self._drop(rows, victim)
                self.preempt(victim)
                count = self._start(branch, budget)
            if count is None:
                break
            self.waiting.remove(branch)
            self.run(branch)
            branch.reason = ""
            if count:
                rows[branch] = Row(branch, count)
                budget -= count
        return True

    def _tenant_is_full(self, branch: Branch) -> str | None:
        tenant = branch.tenant
        if tenant.max_running is not None and tenant.running >= tenant.max_running:
            return f"tenant {tenant.name!r} has {tenant.running} running replies, the most it may have"
        if tenant.kv_share is not None:
            has = sum(pages_for(max(b.computed, b.length)) for b in self.running if b.tenant is tenant)
            limit = int(self.cache.pages * tenant.kv_share)
            if has and has + pages_for(branch.length) > limit:
                return f"tenant {tenant.name!r} has {has} of the {limit} pages it may have"
        return None

    def _start(self, branch: Branch, budget: int) -> int | None:
        """Give a waiting reply its pages: the tokens of its first step, None if it must go on waiting."""
        if len(self.running) >= self.max_num_seqs:
            branch.reason = f"{len(self.running)} replies are running, the most at once (max_num_seqs)"
            return None
        if branch.on_host:
            return self._bring_back(branch, budget)
        if branch.pages is None:
            tokens = [*branch.sequence.prompt, *branch.sequence.reply]
            branch.pages = self.cache.begin(tokens, branch.salt)
            branch.computed = self.cache.sequence(branch.pages)["computed"]
        # All of the prompt has to fit, and one page of the reply beside others: fewer are preempted then.
        guaranteed = branch.tenant.rank == 0
        wanted = branch.longest if guaranteed else min(branch.longest, branch.length + PAGE_TOKENS * bool(self.running))
        needed = pages_for(wanted) - pages_for(branch.computed)
        there = self.cache.available - self._promised(branch)
        count = min(branch.length - branch.computed, budget)
        if needed > there or not self.cache.reserve(branch.pages, count):
            branch.reason = f"{needed} pages are needed, and {max(there, 0)} are free"
            # Found pages are left to others while it waits.
            self.cache.release(branch.pages)
            branch.pages, branch.computed = None, 0
            return None
        if not branch.sequence.reply and not branch.sequence.cached:
            branch.sequence.cached = branch.computed
        return count

    def _bring_back(self, branch: Branch, budget: int) -> int | None:
        assert branch.pages is not None
        needed = pages_for(min(branch.longest, branch.length + PAGE_TOKENS * bool(self.running)))
        there = self.cache.available - self._promised(branch)
        moves = self.cache.swap_in(branch.pages) if needed <= there else None
        if moves is None:
            branch.reason = f"its pages are on the host: {needed} pages are needed, and {max(there, 0)} are free"
            return None
        try:
            self.memory.from_host(moves)
        except MemoryError:
            self._recompute(branch)
            # The pages can be found already, and hold nothing.
            self.cache.clear()
            return self._start(branch, budget)
        branch.on_host = False
        self.counts["swapped_in"] += len(moves)
        count = min(branch.length - branch.computed, budget)
        return count if count and self.cache.reserve(branch.pages, count) else 0
