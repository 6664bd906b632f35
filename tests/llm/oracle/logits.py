"""Write golden_logits.npz: logits of transformers for tiny random models. Needs torch, transformers, and this tree."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import golden_cases


@torch.no_grad()
def main() -> None:
    made: dict[str, np.ndarray] = {}
    for name in golden_cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            prompt = golden_cases.write(name, Path(folder))
            model, report = AutoModelForCausalLM.from_pretrained(
                folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
            )
            if report["missing_keys"] or report["unexpected_keys"]:
                raise RuntimeError(f"{name}: transformers reads other tensors: {report}")
            made[name] = model(torch.tensor([prompt])).logits[0].numpy()
            made[f"{name}:digest"] = np.array(golden_cases.digest(Path(folder)))
        print(f"{name}: logits of {made[name].std():.2f}")
    np.savez_compressed(golden_cases.PATH, **made)


if __name__ == "__main__":
    main()
