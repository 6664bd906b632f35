"""Processors: functions of the tokens so far and the scores of the next one."""

from __future__ import annotations

import numpy as np

LENGTH = 3


def no_repeat(ids: list[int], scores: np.ndarray) -> np.ndarray:
    """Forbid tokens that would end a run of three tokens that was there before."""
    begun = ids[len(ids) - LENGTH + 1 :]
    if len(begun) == LENGTH - 1:
        scores = scores.copy()
        for at in range(len(ids) - LENGTH + 1):
            if ids[at : at + LENGTH - 1] == begun:
                scores[ids[at + LENGTH - 1]] = -np.inf
    return scores
