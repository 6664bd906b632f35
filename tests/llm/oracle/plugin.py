"""Write plugin_logits.npz: transformers' logits for a tiny StarCoder 2, which examples/llm_plugin adds.

Needs torch and transformers; the folder is written by `python tests/llm/test_plugins.py FOLDER` with this tree.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

PROMPT = list(range(3, 33))


@torch.no_grad()
def main() -> None:
    model, report = AutoModelForCausalLM.from_pretrained(
        sys.argv[1], attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    if report["missing_keys"] or report["unexpected_keys"]:
        raise RuntimeError(f"transformers reads other tensors: {report}")
    logits = model(torch.tensor([PROMPT])).logits[0].numpy()
    np.savez_compressed(Path(__file__).parent.parent / "plugin_logits.npz", logits=logits[-3:])
    print(logits.std())


if __name__ == "__main__":
    main()
