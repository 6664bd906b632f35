"""Who shares an engine, and what each is promised."""

from __future__ import annotations

import dataclasses
from typing import Any

from pygpukit.llm import arguments

__all__ = ["POLICIES", "Tenant"]

POLICIES = ("guaranteed", "burstable", "besteffort")


@dataclasses.dataclass(slots=True, eq=False)
class Tenant:
    """A tenant of an engine; `LLM.tenant` makes it.

    Attributes
    ----------
    name
    policy
        ``"guaranteed"``: admitted before all others, with pages for the longest reply, and never preempted.
        ``"burstable"``: shares what is left by `weight`. ``"besteffort"``: yields to the others, pages go to the host.
    weight
        Share of computed tokens among waiting requests of one policy.
    max_running
        Most replies that are computed at once; None for no limit.
    kv_share
        Most of the pages, from 0 to 1; None for no limit.
    """

    name: str
    policy: str = "burstable"
    weight: float = 1.0
    max_running: int | None = None
    kv_share: float | None = None
    served: float = dataclasses.field(default=0.0, repr=False)
    running: int = dataclasses.field(default=0, repr=False)
    tokens: int = dataclasses.field(default=0, repr=False)
    preemptions: int = dataclasses.field(default=0, repr=False)

    def __post_init__(self) -> None:
        arguments.one_of("policy", self.policy, POLICIES)
        if not _is_number(self.weight) or not self.weight > 0:
            raise ValueError(f"weight is {self.weight!r}, and must be a positive number")
        if self.max_running is not None:
            arguments.positive("max_running", self.max_running)
        share = self.kv_share
        if share is not None and not (_is_number(share) and 0 < share <= 1):
            raise ValueError(f"kv_share is {share!r}, and must be above 0 and at most 1")

    @property
    def rank(self) -> int:
        """Place of the policy: lower ones go first."""
        return POLICIES.index(self.policy)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
