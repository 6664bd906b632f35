"""The file of recorded results: per case the bits a device gave, and which case exactly they are of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from diff_case import LANES, WIDTHS, Case
from generate import Results

PATH = Path(__file__).resolve().parent / "vectors.npz"


@dataclass
class Vectors:
    """Recorded results by the name of the case, with the digest of the case; and what the device refused."""

    device: dict[str, object]
    digests: dict[str, int] = field(default_factory=dict)
    results: dict[str, Results] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path, cases: Sequence[Case]) -> None:
        """Write the results of these cases; operands are not kept, they follow from the case."""
        outputs = {case.name: case.outputs for case in cases if case.name in self.results}
        rows = [
            (width, row)
            for name, kinds in outputs.items()
            for width, row in zip(kinds, self.results[name], strict=True)
        ]
        blob = b"".join(np.packbits(row).tobytes() if width == "pred" else row.tobytes() for width, row in rows)
        head = {
            "device": self.device,
            "cases": [[name, self.digests[name], list(kinds)] for name, kinds in outputs.items()],
            "refused": self.refused,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        np.savez_compressed(path, head=np.frombuffer(text, np.uint8), results=np.frombuffer(blob, np.uint8))


def load(path: Path = PATH) -> Vectors:
    """Read what `Vectors.save` wrote."""
    with np.load(path, allow_pickle=False) as data:
        head, blob = json.loads(data["head"].tobytes()), data["results"].tobytes()
    vectors = Vectors(head["device"], refused=head["refused"])
    at = 0
    for name, digest, outputs in head["cases"]:
        rows: Results = []
        for width in outputs:
            bits = WIDTHS[width]
            size = LANES * bits // 8
            part, at = blob[at : at + size], at + size
            if bits == 1:
                rows.append(np.unpackbits(np.frombuffer(part, np.uint8)))
            else:
                rows.append(np.frombuffer(part, f"<u{bits // 8}"))
        vectors.digests[name], vectors.results[name] = digest, rows
    if at != len(blob):
        raise ValueError(f"{path} holds {len(blob)} bytes of results, its head says {at}")
    return vectors
