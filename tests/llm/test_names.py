"""Published names: where they are, what they are, and the calls that published programs make."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
from pygpukit import llm
from pygpukit.errors import ModelFileError, ModelLoadError, OutOfMemoryError
from pygpukit.llm.testing import tiny_gguf, tiny_model


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("llm.buffers", "DecodeBuffers PrefillBuffers"),
        ("llm.layers", "Attention MLP Norm TransformerBlock Linear LinearBF16 LinearFP8 MoELayer precompute_freqs_cis "
         "apply_rotary_pos_emb_numpy repack_linear repack_norm repack_weight"),
        ("llm.sampling", "sample_token"),
        ("llm.chat", "ChatMessage format_chat_messages apply_chat_template create_chat_prompt"),
        ("llm.decode", "DecodeStrategy DecodeM1 DecodeM1Graph DecodeBatch DecodeSpeculative DecodeJacobi"),
        ("llm.streaming", "SlidingWindow LayerStreamingContext"),
        ("ops.basic", "matmul add rmsnorm kv_cache_prefill_gqa sdpa_causal rope_inplace embedding"),
        ("core", "default_stream from_numpy zeros GPUArray"),
    ],
)  # fmt: skip
def test_import_paths(module: str, names: str) -> None:
    found = importlib.import_module(f"pygpukit.{module}")
    for name in names.split():
        assert getattr(found, name) is getattr(llm if hasattr(llm, name) else gp, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = found.nothing


def test_several_names_of_one_class() -> None:
    assert llm.CausalSelfAttention is llm.LlamaAttention is llm.Attention
    assert llm.LlamaMLP is llm.MLP
    assert llm.LlamaBlock is llm.TransformerBlock
    assert llm.RMSNorm is llm.LayerNorm is llm.Norm
    assert llm.LinearBF16 is llm.Linear


def test_architectures_as_constants() -> None:
    assert llm.MODEL_SPECS["gpt2"] is llm.GPT2_SPEC
    spec = llm.GPT2_SPEC
    assert (spec.norm_type, spec.activation, spec.use_rope, spec.use_position_embed) == (
        "layernorm",
        "gelu",
        False,
        True,
    )
    spec = llm.QWEN3_SPEC
    assert (spec.name, spec.norm_type, spec.activation, spec.use_rope) == ("qwen3", "rmsnorm", "silu", True)
    flags = [(s.use_qk_norm, s.use_position_embed) for s in (llm.QWEN3_SPEC, llm.QWEN2_SPEC, llm.LLAMA_SPEC)]
    assert flags == [(True, False), (False, False), (False, False)]
    for spec in llm.MODEL_SPECS.values():
        assert spec.norm_type in ("rmsnorm", "layernorm")
    names = ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]
    assert llm.detect_model_spec(names) is llm.LLAMA_SPEC
    assert llm.detect_model_spec([*names, "model.layers.0.self_attn.q_norm.weight"]) is llm.QWEN3_SPEC


def test_mixtures_of_experts_say_that_they_follow(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"MIXTRAL_SPEC is not available yet: .* follow with the MoE operators"):
        _ = llm.MIXTRAL_SPEC
    with pytest.raises(ModelLoadError, match="follow with the MoE operators"):
        llm.MoELayer(llm.TransformerConfig(), None, [])
    with pytest.raises(ModelLoadError, match="follow with the MoE operators"):
        llm.load_mixtral_from_safetensors(tmp_path)
    with pytest.raises(ValueError, match="follow with the MoE operators"):
        llm.DecodeBuffers.allocate(llm.TransformerConfig(), moe_config={})
    for name in ("block_sparse_moe.experts.0.w1", "mlp.experts.0.up_proj"):
        with pytest.raises(ValueError, match="Cannot detect model type: the tensors are those of a mixture"):
            llm.detect_model_spec(["model.embed_tokens.weight", f"model.layers.0.{name}.weight"])


def test_settings() -> None:
    config = llm.TransformerConfig(hidden_size=4096, num_heads=32, num_kv_heads=8)
    assert (config.head_dim, config.num_kv_groups, config.intermediate_size) == (128, 4, 16384)
    config = llm.GPT2Config().to_transformer_config()
    assert (config.architecture, config.learned_positions, config.intermediate_size) == ("gpt2", True, 3072)
    assert not config.use_rope
    config = llm.LlamaConfig(rope_theta=5e5).to_transformer_config()
    assert (config.num_layers, config.rope_theta, config.norm_eps, config.use_rope) == (22, 5e5, 1e-5, True)
    config = llm.Qwen3Config().to_transformer_config()
    assert (config.qk_norm, config.head_dim, config.rope_theta, config.tie_word_embeddings) == (True, 128, 1e6, False)


def test_a_model_that_a_program_puts_together(tmp_path: Path) -> None:
    model = llm.load_model_from_safetensors(tiny_model("qwen3", tmp_path))
    again = llm.CausalTransformerModel(
        model.config, model.embed_tokens, model.blocks, model.final_norm, lm_head=model._lm_head, spec=model.spec
    )
    ids = [5, 6, 7]
    assert again.generate(ids, 4, temperature=0) == model.generate(ids, 4, temperature=0)
    assert again._lm_head.shape == (259, 48)
    # Published programs make tables themselves; they are not needed.
    again._rope_cos_gpu = gp.zeros((4, 4))  # type: ignore[attr-defined]
    assert again.spec.use_qk_norm


def test_rotary_tables_are_those_of_the_operator() -> None:
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((5, heads, 8)).astype(np.float32) for heads in (4, 2))
    cos, sin = llm.precompute_freqs_cis(8, 5, 500.0)
    assert (cos.shape, cos.dtype) == ((5, 8), np.float32)
    turned = llm.apply_rotary_pos_emb_numpy(q, k, cos, sin)
    on_device = [gp.from_numpy(x) for x in (q, k)]
    gp.rope_inplace(*on_device, gp.from_numpy(cos), gp.from_numpy(sin))
    for found, expected in zip(turned, on_device, strict=True):
        np.testing.assert_allclose(found, expected.to_numpy(), atol=1e-6)


def test_weights_of_8_bit_floats() -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((128, 256)).astype(np.float32)
    stored = weight.astype(ml_dtypes.float8_e4m3fn)
    scale = np.full((1, 2), 0.5, np.float32)
    layer = llm.LinearFP8(stored, scale, bias=gp.ones(128))
    x = rng.standard_normal((3, 256)).astype(np.float32)
    expected = x @ (stored.astype(np.float32) * 0.5).T + 1
    np.testing.assert_allclose(layer(gp.from_numpy(x)).to_numpy(), expected, atol=1e-4)


def test_repacking_gives_memory_of_its_own(tmp_path: Path) -> None:
    model = llm.load_model_from_safetensors(tiny_model("qwen2", tmp_path))
    expected = model.generate([3, 4], 4, temperature=0)
    before = model.blocks[0].attn.qkv.weight
    llm.repack_model_weights(model)
    assert model.blocks[0].attn.qkv.weight is not before
    assert model.generate([3, 4], 4, temperature=0) == expected


def test_tensors_by_their_published_names(tmp_path: Path, gguf_file: Path) -> None:
    file = llm.SafeTensorsFile(tiny_model("llama", tmp_path, dtype="bfloat16") / "model.safetensors")
    info = file.tensor_info("model.norm.weight")
    assert (info.dtype, info.dtype_name, info.numel, info.size_bytes) == (llm.Dtype.BFloat16, "bfloat16", 48, 96)
    assert llm.Dtype.element_size(info.dtype) == 2
    with llm.GGUFFile(gguf_file) as gguf:
        info = gguf.tensor_info("output_norm.weight")
        assert (info.dtype_name, info.numel, info.size_bytes) == ("F32", 64, 256)


def test_tokenizers_by_their_published_names(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    made = llm.Tokenizer(folder / "tokenizer.json")
    again = llm.Tokenizer.from_json((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert made.encode("Hi") == again.encode("Hi")
    assert (len(made), made.id_to_token(2), made.token_to_id("<|im_end|>")) == (259, "<|im_end|>", 2)
    assert made.id_to_token(999) is None
    with pytest.raises(ModelFileError, match="this is no tokenizer"):
        llm.Tokenizer.from_json("{}")


def test_conversations_in_known_forms() -> None:
    messages = llm.create_chat_prompt("Hi", system_message="Be brief.", assistant_prefix="Well")
    assert [m.role for m in messages] == ["system", "user", "assistant"]
    assert llm.format_chat_messages(messages[:1], "qwen3", False) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert llm.format_chat_messages(messages, "llama2") == "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Well</s>"
    assert llm.format_chat_messages(messages[:2], "mistral") == "[INST] Be brief.\n\nHi [/INST]"
    shown = llm.format_chat_messages(messages[1:2], model_type="llama3")
    assert shown == (
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )

    class Theirs:
        """A tokenizer of transformers."""

        def apply_chat_template(self, messages: Any, **options: Any) -> list[int]:
            assert messages == [{"role": "user", "content": "Hi"}]
            return [1, 2] if options["add_generation_prompt"] and options["tokenize"] else []

    assert llm.apply_chat_template(messages[1:2], Theirs()) == [1, 2]


def test_what_a_config_says_of_its_weights() -> None:
    entry = {"quant_method": "fp8", "weight_block_size": [64, 128], "modules_to_not_convert": ["lm_head"]}
    info = llm.ModelOptimizationInfo.from_config(
        {"quantization_config": entry, "sparsity_config": {"pattern": "2:4", "density": 0.5, "block_size": [2, 4]}}
    )
    assert info.fp8_config == llm.FP8QuantConfig("fp8", "e4m3", (64, 128), ["lm_head"])
    assert info.sparsity_config == llm.SparsityConfig("2:4", (2, 4), 0.5)
    assert (info.summary(), info.has_any_optimization()) == ("FP8(e4m3), Sparse(2:4)", True)
    assert llm.ModelOptimizationInfo.from_config({}).summary() == "None"
    maker = {
        "producer": {"name": "modelopt", "version": "0.1"},
        "quantization": {"quant_algo": "NVFP4", "group_size": 16},
    }
    found = llm.QATQuantConfig.from_config(maker)
    assert found is not None
    assert (found.quant_method, found.quant_algo, found.group_size, found.producer) == (
        "modelopt",
        "NVFP4",
        16,
        "modelopt",
    )
    pruned = llm.PruningConfig.from_config({"pruning_config": {"method": "magnitude", "sparsity": 0.3}})
    assert pruned == llm.PruningConfig("magnitude", 0.3)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return tiny_model("llama", tmp_path, num_hidden_layers=5) / "model.safetensors"


def layer_bytes(loader: llm.LazyModelLoader, layer: int = 0) -> int:
    return sum(loader.tensor_info(n).nbytes for n in loader.tensor_names if n.startswith(f"model.layers.{layer}."))


def test_tensors_come_when_they_are_asked_for(weights: Path) -> None:
    with llm.LazyModelLoader("1MiB") as loader:
        assert loader.load_file(weights) == loader.num_tensors == 48
        name = "model.layers.1.mlp.up_proj.weight"
        assert loader.tensor_state(name) is llm.TensorState.ON_DISK
        array = loader.get_tensor(name)
        assert loader.get_tensor(name) is array
        np.testing.assert_array_equal(array.to_numpy(), llm.SafeTensorsFile(weights).tensor_view(name))
        assert not array.flags.writeable
        assert loader.tensor_state(name) is llm.TensorState.LOADED
        assert (loader.pool_stats.used, loader.pool_stats.active_blocks) == (array.nbytes, 1)
        assert loader.pool_stats.available == (1 << 20) - array.nbytes
        assert not loader.is_layer_loaded("model.layers.1.")
        loader.load_layer("model.layers.1.")
        assert loader.is_layer_loaded("model.layers.1.")
        assert loader.unload_layer("model.layers.1.") == 9
        assert loader.pool_stats.used == 0
        with pytest.raises(KeyError, match="no file has a tensor 'x'"):
            loader.get_tensor("x")
        with pytest.raises(KeyError, match="no tensor's name begins with 'x'"):
            loader.load_layer("x")
        with pytest.raises(ValueError, match="which another file has"):
            loader.load_file(weights)


def test_a_full_budget(weights: Path, tmp_path: Path) -> None:
    loader = llm.LazyModelLoader(1)
    loader.load_file(weights)
    size = layer_bytes(loader)
    with pytest.raises(OutOfMemoryError, match="of the budget of 1 B are left"):
        loader.load_layer("model.layers.0.")
    loader = llm.LazyModelLoader(2 * size)
    loader.load_file(weights)
    for layer in (0, 1, 0, 2):
        loader.load_layer(f"model.layers.{layer}.")
    assert [loader.is_layer_loaded(f"model.layers.{i}.") for i in range(3)] == [True, False, True]
    assert loader.pool_stats.eviction_count == 9
    assert loader.tensor_state("model.layers.1.mlp.up_proj.weight") is llm.TensorState.EVICTED
    strict = llm.LazyModelLoader(2 * size, enable_eviction=False)
    strict.load_file(weights)
    strict.load_layer("model.layers.0.")
    strict.load_layer("model.layers.1.")
    with pytest.raises(OutOfMemoryError, match="enable_eviction=True"):
        strict.load_layer("model.layers.2.")


@pytest.mark.parametrize(
    ("strategy", "options", "expected"),
    [
        ("simple", {}, [[0], [1], [2], [3], [4], [0]]),
        ("sliding", {"window_size": 2}, [[0, 1], [1, 2], [2, 3], [3, 4], [3, 4], [0, 1]]),
        ("sliding", {"window_size": 3, "prefetch_ahead": 0}, [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 3, 4]]),
        ("auto", {"unload_on_end": True}, [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 3, 4]]),
    ],
)
def test_layers_come_and_go(weights: Path, strategy: str, options: dict[str, Any], expected: list[list[int]]) -> None:
    loader = llm.LazyModelLoader("1GiB")
    loader.load_file(weights)
    if strategy == "auto":
        loader.memory_budget = 3 * layer_bytes(loader)
    seen = []
    with llm.create_streaming_context(loader, strategy, 5, **options) as context:
        for layer in (0, 1, 2, 3, 4, 0):
            assert f"model.layers.{layer}.mlp.up_proj.weight" in context.prepare(layer)
            seen.append([i for i in range(5) if loader.is_layer_loaded(f"model.layers.{i}.")])
            assert context.current_layer == layer
        assert context.memory_stats["active_blocks"] == 9 * len(seen[-1])
        with pytest.raises(ValueError, match="layer_idx is 5"):
            context.prepare(5)
    assert seen == expected
    assert loader.pool_stats.active_blocks == (0 if strategy != "sliding" else 9 * len(seen[-1]))
    with pytest.raises(ValueError, match="inside of a with block"):
        context.prepare(0)


def test_strategies_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="window_size is 0"):
        llm.SlidingWindow(window_size=0)
    with pytest.raises(ValueError, match="prefetch_ahead is 4, and must be from 0 to 3"):
        llm.SlidingWindow(prefetch_ahead=4)
    with pytest.raises(ValueError, match="must be simple, sliding or auto"):
        llm.create_streaming_context(llm.LazyModelLoader(1), "all", 1)
    with pytest.raises(ValueError, match="options of a strategy that is given by its name"):
        llm.create_streaming_context(llm.LazyModelLoader(1), llm.AutoLRU(), 1, window_size=3)
    with pytest.raises(ValueError, match="memory_budget is 0"):
        llm.LazyModelLoader(0)


def test_quantised_files_are_decoded(tmp_path: Path) -> None:
    loader = llm.LazyModelLoader("1MiB")
    loader.load_file(tiny_gguf(tmp_path / "q.gguf", kind="Q8_0"))
    assert loader.get_tensor("blk.0.attn_q.weight").dtype is gp.float32


def loaded(model: llm.CausalTransformerModel) -> list[int]:
    return [i for i, block in enumerate(model.blocks) if block.is_loaded]  # type: ignore[attr-defined]


def test_models_whose_layers_are_loaded_later(weights: Path) -> None:
    expected = llm.QwenModel.from_safetensors(str(weights), "float32").generate([5, 6], 4, temperature=0)
    progressive, single = (
        llm.QwenModel.from_safetensors(str(weights), "float32", streaming=strategy)
        for strategy in (llm.StreamingStrategy.PROGRESSIVE, "layer_by_layer")
    )
    assert loaded(progressive) == loaded(single) == []
    assert progressive.generate([5, 6], 4, temperature=0) == expected
    assert loaded(progressive) == [0, 1, 2, 3, 4]
    assert single.generate([5, 6], 4, temperature=0) == expected
    assert loaded(single) == [4]
    # Caches belong to the layers and stay.
    for block in single.blocks:
        block.attn.init_fixed_cache(16, dtype="float32")
    assert loaded(single) == [4]
    for position, token in enumerate(expected[:-1]):
        logits = single.get_logits(single._decode_step_fixed_cache(token, position, position + 1))
    assert int(logits.to_numpy().argmax()) == expected[-1]
    assert single.blocks[2].attn.qkv.weight.shape == (100, 48)
    assert loaded(single) == [2]
    with pytest.raises(ValueError, match="'sometimes' is not a valid StreamingStrategy"):
        llm.QwenModel.from_safetensors(str(weights), "float32", streaming="sometimes")
