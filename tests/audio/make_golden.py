"""Write golden.npz with librosa's results: run in an environment of its own.

python -m venv /tmp/golden && /tmp/golden/bin/pip install librosa==0.11.0
/tmp/golden/bin/python tests/audio/make_golden.py
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import librosa
import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from golden_cases import CASES, run, thinned  # noqa: E402


def main() -> None:
    warnings.simplefilter("ignore")
    assert librosa.__version__ == "0.11.0", "the stored results are those of one version"
    stored = {}
    for one in CASES:
        for i, x in enumerate(run(one, librosa, lambda y: y)):
            kept = thinned(x)
            narrow = {"f": np.float32, "c": np.complex64}.get(kept.dtype.kind) if one.limit >= 1e-6 else None
            stored[f"{one.name}.{i}"] = kept if narrow is None else kept.astype(narrow)
            stored[f"{one.name}.{i}.shape"] = np.array(x.shape, np.int32)
    path = HERE / "golden.npz"
    np.savez_compressed(path, **stored)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
