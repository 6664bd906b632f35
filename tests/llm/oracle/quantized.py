"""Compare the checkpoints of test_quantized.py with what others read in them.

Needs torch, transformers, compressed-tensors, and the sources of autoawq and gptqmodel as folders (their pure Python
parts), and this tree::

    pip download --no-deps autoawq gptqmodel && tar xzf autoawq*.gz && tar xzf gptqmodel*.gz
    python tests/llm/oracle/quantized.py autoawq-0.2.9 gptqmodel-7.7.0

Float8 checkpoints are loaded by transformers, which decodes them, and logits are compared; the matrices of AWQ and GPTQ
are decoded by their own packages.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import test_quantized as t


def awq_numbers(folder: str, parts: t.Tensors) -> np.ndarray:
    spec = importlib.util.spec_from_file_location("packing_utils", Path(folder) / "awq/utils/packing_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tensors = [torch.from_numpy(parts[name].copy()) for name in ("qweight", "qzeros", "scales")]
    tensors[2] = tensors[2].float()
    return module.dequantize_gemm(*tensors, 4, 32).numpy().T


def gptq_numbers(folder: str, parts: t.Tensors, version: int) -> np.ndarray:
    sys.path.insert(0, folder)
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    k, n = parts["qweight"].shape[0] * 8, parts["qweight"].shape[1]
    layer = TorchLinear(
        bits=4, group_size=32, sym=False, desc_act=True, in_features=k, out_features=n, bias=False,
        pack_dtype=torch.int32, adapter=None, register_buffers=True,
    )  # fmt: skip
    for name, array in parts.items():
        setattr(layer, name, torch.from_numpy(array.copy()))
    if version == 1:
        convert_gptq_v1_to_v2_format_module(layer, bits=4, pack_dtype=torch.int32)
    layer.scales = layer.scales.float()
    layer.dequant_dtype = torch.int32
    layer.post_init()
    return layer.dequantize_weight().float().numpy().T


@torch.no_grad()
def main() -> None:
    for case, (entry, _) in t.CASES.items():
        if case == "packed sorted":
            # compressed-tensors reads columns sorted by group no longer.
            continue
        with tempfile.TemporaryDirectory() as name:
            # transformers infers the size of a block from those of the arrays, so sizes are multiples of 128.
            coded, plain, stored = t.write(Path(name), case, hidden_size=128, intermediate_size=256, head_dim=64)
            method = entry["quant_method"]
            if method == "compressed-tensors":
                # Activations stay as they are.
                group = entry["config_groups"]["group_0"] | {"input_activations": None}
                # It decodes to the type of the scales, which tests have in bfloat16.
                stored = {key: x.astype(np.float32) if "scale" in key else x for key, x in stored.items()}
                stored |= {key: x.astype(np.int64) for key, x in stored.items() if key.endswith("weight_shape")}
                t.rewrite(
                    coded, stored, entry | {"config_groups": {"group_0": group}, "quantization_status": "compressed"}
                )
            if method in ("awq", "gptq"):
                meant = t.SafeTensorsFile(plain / "model.safetensors")
                worst, count = 0.0, 0
                for weight in meant.tensor_names:
                    module = weight.removesuffix(".weight")
                    parts = {key.rsplit(".", 1)[1]: x for key, x in stored.items() if key.rsplit(".", 1)[0] == module}
                    if "qweight" not in parts:
                        continue
                    version = 0 if entry.get("checkpoint_format") == "gptq_v2" else 1
                    found = (
                        awq_numbers(sys.argv[1], parts)
                        if method == "awq"
                        else gptq_numbers(sys.argv[2], parts, version)
                    )
                    worst = max(worst, float(np.abs(found - meant.tensor_view(weight)).max()))
                    count += 1
                print(f"{case}: {count} matrices, largest difference {worst}")
                continue
            config = {
                "fp8": lambda: FineGrainedFP8Config(dequantize=True),
                "compressed-tensors": lambda: CompressedTensorsConfig(run_compressed=False),
            }[method]()
            model = AutoModelForCausalLM.from_pretrained(
                coded, attn_implementation="eager", dtype=torch.float32, quantization_config=config
            )
            if model.model.layers[0].mlp.up_proj.weight.dtype == torch.float8_e4m3fn:
                print(f"{case}: transformers decodes no such weights")
                continue
            found = model(torch.tensor([t.IDS])).logits[0].float().numpy()
            print(f"{case}: logits, largest difference {np.abs(found - t.logits(plain)).max()}")


if __name__ == "__main__":
    main()
