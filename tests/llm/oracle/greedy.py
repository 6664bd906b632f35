"""Write smollm2_greedy.json: what transformers continues ten prompts with, and a text's perplexity, in float32.

Needs torch, transformers and gguf, and the model's file: python greedy.py MODEL.gguf. The prompts stay as they are.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize

PATH = Path(__file__).resolve().parent.parent / "smollm2_greedy.json"
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": 9, "attn_k": 3}


def weights(path: str) -> dict[str, torch.Tensor]:
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        array = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        first, *rest = tensor.name.removesuffix(".weight").split(".")
        name = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}.get(first)
        if name is None:
            layer, part = rest
            name = f"model.layers.{layer}.{NAMES[part]}"
            if part in HEADS:
                pairs = array.reshape(HEADS[part], array.shape[0] // HEADS[part] // 2, 2, -1)
                array = pairs.swapaxes(1, 2).reshape(array.shape)
        found[f"{name}.weight"] = torch.from_numpy(np.ascontiguousarray(array))
    found["lm_head.weight"] = found["model.embed_tokens.weight"]
    return found


def model(path: str) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192, rms_norm_eps=float(np.float32(1e-5)), rope_theta=100000.0,
        tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    made = transformers.LlamaForCausalLM(config).float().eval()
    made.load_state_dict(weights(path), strict=True)
    return made


@torch.no_grad()
def main() -> None:
    made = model(sys.argv[1])
    document = json.loads(PATH.read_text())
    for prompt in document["prompts"]:
        out = made(torch.tensor([prompt["prompt"]]), use_cache=True)
        prompt["greedy"] = []
        for _ in range(64):
            prompt["greedy"].append(int(out.logits[0, -1].argmax()))
            last = torch.tensor([prompt["greedy"][-1:]])
            out = made(last, past_key_values=out.past_key_values, use_cache=True)
    # Its tokens are in the file too: tokenizers have a test of their own.
    ids = torch.tensor([document["perplexity"]["ids"]])
    logprobs = torch.log_softmax(made(ids).logits[0, :-1].double(), dim=-1)
    document["perplexity"]["value"] = float(torch.exp(-logprobs.gather(1, ids[0, 1:, None]).mean()))
    rows = ",\n".join("  " + json.dumps(prompt) for prompt in document["prompts"])
    about, text = json.dumps(document["about"]), json.dumps(document["perplexity"])
    PATH.write_text(f'{{"about": {about},\n "perplexity": {text},\n "prompts": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
