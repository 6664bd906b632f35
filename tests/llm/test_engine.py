"""`LLM`: replies, streams, what ends them, and what is refused."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pygpukit.errors import ContextLengthError, MissingPackageError, ModelFileError, ModelLoadError
from pygpukit.llm import LLM, SamplingParams
from pygpukit.llm.testing import tiny_gguf, tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = [5, 60, 7, 200, 33]


@pytest.fixture(scope="module")
def llm(gguf_file: Path) -> Iterator[LLM]:
    pytest.importorskip("tokenizers")
    with LLM(gguf_file) as made:
        yield made


def test_a_prompt_gives_a_reply_and_a_list_a_list(llm: LLM) -> None:
    one = llm.generate(PROMPT, GREEDY)
    assert len(one.token_ids) == 12
    assert (one.finish_reason, one.stop_reason, one.outputs) == ("length", None, [one.outputs[0]])
    assert (one.usage.prompt, one.usage.completion) == (5, 12)
    assert 0 < one.timing.first_token <= one.timing.total
    text = llm.generate("Hello", GREEDY)
    both = llm.generate(["Hello", PROMPT], GREEDY)
    assert [out.token_ids for out in both] == [text.token_ids, one.token_ids]
    assert llm.generate([PROMPT], GREEDY)[0].token_ids == one.token_ids


def test_greedy_is_the_best_token_of_the_whole_text_each_time(llm: LLM) -> None:
    out = llm.generate(PROMPT, GREEDY)
    ids = list(PROMPT)
    for token in out.token_ids:
        hidden, _ = llm.model(ids)
        assert token == int(llm.model.get_logits(hidden[-1:]).to_numpy().argmax())
        ids.append(token)


def test_the_model_with_keys_and_values_of_before(llm: LLM) -> None:
    whole, _ = llm.model(PROMPT)
    _, past = llm.model(PROMPT[:3], use_cache=True)
    assert past is not None
    assert past[0][0].shape == (3, 2, 16)
    rest, more = llm.model(PROMPT[3:], position_ids=[3, 4], past_key_values=past, use_cache=True)
    assert more is not None
    assert more[1][1].shape == (5, 2, 16)
    np.testing.assert_allclose(rest.to_numpy(), whole.to_numpy()[3:], atol=2e-5)
    with pytest.raises(ValueError, match="position_ids must be 3 to 4"):
        llm.model(PROMPT[3:], position_ids=[0, 1], past_key_values=past)


def test_long_prompts_are_computed_in_parts(llm: LLM) -> None:
    ids = np.random.default_rng(0).integers(3, 259, 400).tolist()
    cache = llm.model.new_cache()
    parts = [llm.model.step(ids[a:b], cache).to_numpy() for a, b in ((0, 1), (1, 130), (130, 400))]
    whole, _ = llm.model(ids)
    np.testing.assert_allclose(np.concatenate(parts), whole.to_numpy(), atol=5e-5)


def test_pieces_join_to_the_text(llm: LLM) -> None:
    params = SamplingParams(seed=4, max_tokens=60, ignore_eos=True)
    pieces = list(llm.stream("Hello", params))
    output = pieces[-1].output
    assert output is not None
    assert "".join(piece.text for piece in pieces) == output.text == llm.generate("Hello", params).text
    assert [token for piece in pieces for token in piece.token_ids] == output.token_ids
    assert all(piece.output is None for piece in pieces[:-1])


def test_a_stop_text_is_not_shown_in_any_part(llm: LLM) -> None:
    free = llm.generate("Hello", GREEDY)
    stop = free.text[3:6]
    at = free.text.index(stop)
    shown = ""
    for piece in llm.stream("Hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=["zz", stop])):
        shown += piece.text
        assert free.text[:at].startswith(shown)
        last = piece
    assert last.output is not None
    assert (last.output.text, last.output.finish_reason, last.output.stop_reason) == (free.text[:at], "stop", stop)


def test_what_may_become_a_stop_text_and_does_not_is_shown(llm: LLM) -> None:
    free = llm.generate("Hello", GREEDY)
    stop = free.text[-2:] + "never"
    out = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop))
    assert (out.text, out.finish_reason) == (free.text, "length")


def test_a_stop_token_ends_and_is_not_printed(llm: LLM) -> None:
    free = llm.generate(PROMPT, GREEDY)
    token = free.token_ids[4]
    first = free.token_ids.index(token)
    out = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[token]))
    assert out.token_ids == free.token_ids[: first + 1]
    assert (out.finish_reason, out.stop_reason) == ("stop", token)
    more = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[token], min_tokens=8)
    assert len(llm.generate(PROMPT, more).token_ids) >= 8


def test_the_models_own_end(llm: LLM) -> None:
    always = SamplingParams(temperature=0, logit_bias={2: 1e4})
    out = llm.generate(PROMPT, always)
    assert (out.token_ids, out.text, out.finish_reason, out.stop_reason) == ([2], "", "stop", None)


def test_no_tokens_asked_for(llm: LLM) -> None:
    out = llm.generate(PROMPT, SamplingParams(max_tokens=0))
    assert (out.token_ids, out.text, out.finish_reason) == ([], "", "length")


def test_bad_words_and_allowed_tokens(llm: LLM) -> None:
    free = llm.generate("Hello", GREEDY)
    letter = free.text[0]
    out = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, bad_words=[letter]))
    assert letter not in out.text
    only = SamplingParams(max_tokens=12, ignore_eos=True, allowed_token_ids=[70, 71])
    assert set(llm.generate("Hello", only).token_ids) <= {70, 71}


def test_seeds(llm: LLM) -> None:
    def reply(seed: int | None) -> list[int]:
        return list(llm.generate(PROMPT, SamplingParams(seed=seed, max_tokens=8, ignore_eos=True)).token_ids)

    assert reply(1) == reply(1) != reply(2)
    assert reply(None) != reply(None)
    several = llm.generate(PROMPT, SamplingParams(seed=1, n=3, max_tokens=8, ignore_eos=True))
    assert several.token_ids == reply(1)
    assert len({tuple(out.token_ids) for out in several.outputs}) == 3


def test_engines_with_one_seed_agree(gguf_file: Path) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    runs = [[made.generate(PROMPT, params).token_ids for _ in range(3)] for made in (LLM(gguf_file), LLM(gguf_file))]
    assert runs[0] == runs[1]


def test_logprobs(llm: LLM) -> None:
    out = llm.generate(
        PROMPT, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    )
    assert out.logprobs is not None
    assert out.prompt_logprobs is not None
    for token, row in zip(out.token_ids, out.logprobs, strict=True):
        assert len(row) == 3
        assert max(row, key=row.__getitem__) == token
        assert sum(np.exp(list(row.values()))) <= 1.00001
    assert out.prompt_logprobs[0] is None
    assert [token in row for token, row in zip(PROMPT[1:], out.prompt_logprobs[1:], strict=True)] == [True] * 4
    scores = llm.score(PROMPT)
    np.testing.assert_allclose(scores, [row[t] for t, row in zip(PROMPT[1:], out.prompt_logprobs[1:], strict=True)])
    assert llm.perplexity(PROMPT) == pytest.approx(np.exp(-np.mean(scores)))


def test_a_reply_is_the_same_beside_others(llm: LLM) -> None:
    params = [SamplingParams(seed=i, max_tokens=10, ignore_eos=True) for i in range(6)]
    alone = [llm.generate(PROMPT, p).token_ids for p in params]
    found: dict[int, list[int]] = {}

    def run(index: int) -> None:
        found[index] = llm.generate(PROMPT, params[index]).token_ids

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(6)] == alone


def test_an_interrupted_stream_leaves_the_engine_as_it_was(llm: LLM) -> None:
    pieces = llm.stream(PROMPT, GREEDY)
    next(pieces)
    pieces.close()
    assert len(llm.generate(PROMPT, GREEDY).token_ids) == 12


def test_a_conversation(llm: LLM) -> None:
    pytest.importorskip("jinja2")
    messages = [{"role": "user", "content": "Hi"}]
    out = llm.chat(messages, GREEDY)
    assert out.prompt_token_ids == llm.tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert "".join(piece.text for piece in llm.chat_stream(messages, GREEDY)) == out.text
    with pytest.raises(TypeError, match="template_kwargs is 5"):
        llm.chat(messages, GREEDY, template_kwargs=5)
    for name in (5, "messages"):
        with pytest.raises(ValueError, match=rf"template_kwargs has {name!r}: a name is a text, and none of messages"):
            llm.chat(messages, GREEDY, template_kwargs={name: 1})
    for wrong in ("Hi", 5, messages[0], None):
        with pytest.raises(TypeError, match="must be a list of mappings with role and content"):
            llm.chat(wrong, GREEDY)
    for wrong in ([5], [{"role": "user"}], ["Hi"]):
        with pytest.raises(ValueError, match="a message has a role and a content, and this is"):
            llm.chat(wrong, GREEDY)
    begun = [*messages, {"role": "assistant", "content": "Well,"}]
    shown = llm.chat(begun, GREEDY, continue_final=True).prompt_token_ids
    assert llm.tokenizer.decode(shown, skip_special_tokens=False).endswith("<|im_start|>assistant\nWell,")


def test_a_reply_goes_on_with_any_message(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    strips = (llm.chat_template or "").replace("m.content", "m.content | trim")
    for template in (llm.chat_template, strips):
        monkeypatch.setattr(llm._prompts, "chat_template", template)
        for text in ("", "Sure: ", "Hi"):
            messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
            shown = llm.chat(messages, GREEDY, continue_final=True).prompt_token_ids
            assert llm.tokenizer.decode(shown, skip_special_tokens=False).endswith(f"<|im_start|>assistant\n{text}")
    monkeypatch.setattr(llm._prompts, "chat_template", "{{ messages[0].content }}")
    with pytest.raises(ValueError, match="leaves out the last message"):
        llm.chat(messages, GREEDY, continue_final=True)


@pytest.mark.parametrize("values", [{"prefix_cache": 3}, {"graphs": "x"}, {"offload": None}, {"seed": "x"}])
def test_wrong_options_are_refused_before_loading(folder: Path, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(values))} is .*, and must be"):
        LLM(folder, **values)


def test_the_models_own_parameters(folder: Path) -> None:
    pytest.importorskip("tokenizers")
    llm = LLM(folder)
    assert (llm.default_params.temperature, llm.default_params.top_p) == (0.8, 0.95)
    assert llm._ends == {0, 2}
    (folder / "generation_config.json").write_text('{"do_sample": false, "eos_token_id": 5}')
    assert LLM(folder).default_params.temperature == 0


@pytest.mark.parametrize(
    ("prompt", "params", "kind", "reason"),
    [
        ("", None, ValueError, "the prompt is empty"),
        ([], None, ValueError, "the prompt is empty"),
        ([[]], None, ValueError, "the prompt is empty"),
        ([3, 259], None, ValueError, "token 259 is not in the vocabulary of 259"),
        ([-1], None, ValueError, "token -1 is not in the vocabulary"),
        ([3] * 512, None, ContextLengthError, "has 512 tokens, and the model takes 512"),
        ([3], SamplingParams(stop_token_ids=[999]), ValueError, "token 999"),
        ([3], SamplingParams(logit_bias={999: 1.0}), ValueError, "token 999"),
    ],
)
def test_bad_requests_are_refused(llm: LLM, prompt: Any, params: Any, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        llm.generate(prompt, params)


def test_the_context_bounds_the_reply(llm: LLM) -> None:
    out = llm.generate([3] * 508, SamplingParams(max_tokens=100, ignore_eos=True))
    assert (len(out.token_ids), out.finish_reason) == (4, "length")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"speculative": "trees"}, "there is no speculative='trees': 'ngram', 'jacobi', 'lookahead'"),
        (
            {"quantization": "nvf4"},
            "quantization='nvf4' is not available: no product reads that format yet; use one of",
        ),
        ({"quantization": "int5"}, "quantization is 'int5', and must be None, .* or one of fp8, int8, int4"),
        ({"kv_dtype": "fp4"}, "kv_dtype is 'fp4', and must be one of auto, bf16, f16, fp8, int8"),
        ({"kv_dtype": "bf16"}, "kv_dtype='bf16' beside weights of float32: .* give dtype='bfloat16' as well"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_batched_tokens": True}, "max_batched_tokens is True"),
        ({"deterministic": "yes"}, "must be one of batch_invariant"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"dtype": "int8"}, "must be auto, float32, bfloat16 or float16"),
        ({"quantization": ["int8"]}, r"quantization is \['int8'\], and must be None"),
        ({"chat_template": "{{"}, "this is no chat template, line 1: unexpected 'end of template'"),
        ({"chat_template": "a\n{% for %}"}, "this is no chat template, line 2: Expected an expression"),
        ({"chat_template": "{{ " + "(" * 5000}, "this is no chat template"),
        ({"chat_template": "nothing"}, "there is no chat template 'nothing'; plugins have"),
    ],
)
def test_options_that_cannot_be_are_refused(gguf_file: Path, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        LLM(gguf_file, **options)


def test_tenants_that_are_unknown(llm: LLM) -> None:
    with pytest.raises(ValueError, match="tenant 'a' is unknown"):
        llm.generate(PROMPT, tenant="a")
    with pytest.raises(ValueError, match=r"tenant is \['x'\], and must be a text"):
        llm.generate(PROMPT, tenant=["x"])
    with pytest.raises(ValueError, match=r"cache_salt is 5, and must be a text"):
        llm.generate(PROMPT, cache_salt=5)
    assert not hasattr(llm, "nothing")


def test_files_that_are_no_models(tmp_path: Path, gguf_file: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        LLM(tmp_path / "x.gguf")
    with pytest.raises(FileNotFoundError, match="has no weights"):
        LLM(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(ModelFileError, match="a model is a folder"):
        LLM(tmp_path / "x.bin")
    other = tiny_gguf(tmp_path / "other.gguf")
    other.write_bytes(gguf_file.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(ModelLoadError, match="'mamba' is unknown; known are"):
        LLM(other)


def test_all_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "wrong.gguf")
    data = path.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight")
    path.write_bytes(data.replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_morn.weight"))
    with pytest.raises(ModelLoadError) as raised:
        LLM(path)
    text = str(raised.value)
    assert "4 tensors do not fit the architecture llama" in text
    assert "missing: blk.0.attn_q.weight, of shape [64, 64]" in text
    assert "unexpected: blk.0.attn_x.weight" in text
    assert "missing: blk.1.ffn_norm.weight" in text


def test_a_shape_that_does_not_fit(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 70', '"intermediate_size": 72'))
    with pytest.raises(ModelLoadError, match=r"mlp\.up_proj\.weight is \[70, 48\], and must be \[72, 48\]"):
        LLM(folder)


def test_token_ids_work_without_the_packages_for_text(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    llm = LLM(gguf_file)
    assert llm.tokenizer is None
    assert len(llm.generate(PROMPT, GREEDY).token_ids) == 12
    with pytest.raises(MissingPackageError, match=r"pip install 'pygpukit\[llm\]'"):
        llm.generate("Hello")


def test_a_closed_engine(gguf_file: Path) -> None:
    llm = LLM(gguf_file)
    llm.close()
    with pytest.raises(ValueError, match="the model is closed"):
        llm.generate(PROMPT, GREEDY)


def test_weights_are_read_only(llm: LLM) -> None:
    assert not llm.model.embed_tokens.flags.writeable
    assert not llm.model.blocks[0].attn.qkv.weight.flags.writeable


def test_it_says_what_it_is(llm: LLM) -> None:
    assert "keys and values 512 bytes a token" in llm.explain()
    before = llm.stats()["requests"]
    llm.generate(PROMPT, GREEDY)
    assert llm.stats()["requests"] == before + 1
    assert repr(llm) == "<LLM tiny>"
