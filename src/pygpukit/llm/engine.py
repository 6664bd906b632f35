"""`LLM`: a model, its tokenizer, and replies."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Generator, Mapping
from collections.abc import Sequence as Ids
from pathlib import Path
from typing import Any, cast

import numpy as np

from pygpukit.core.device import current_device, device
from pygpukit.errors import ContextLengthError, MissingPackageError, ModelLoadError
from pygpukit.llm import fetch, sampling
from pygpukit.llm.decoder import KVCache
from pygpukit.llm.gguf_tokenizer import gguf_tokenizer
from pygpukit.llm.loading import Checkpoint, load_model, open_checkpoint, read_json
from pygpukit.llm.outputs import Piece, RequestOutput
from pygpukit.llm.quantizing import check_quantization
from pygpukit.llm.sampling import SamplingParams
from pygpukit.llm.sequence import Sequence
from pygpukit.llm.templates import ThinkingParser, apply_chat_template
from pygpukit.llm.tokenizer import Tokenizer

__all__ = ["LLM"]

Prompt = str | Ids[int]
Message = Mapping[str, Any]

# Options of the constructor that have one value so far.
_ONLY = {
    "kv_dtype": ("auto", "keys and values have the type of the weights"),
    "memory": (None, "memory is taken from the current pool; gp.memory sets its quota"),
    "speculative": (None, "tokens are decoded one by one"),
    "policy": (None, "an engine is no task of a scheduler yet"),
    "bandwidth": (None, "an engine is no task of a scheduler yet"),
    "scheduler": (None, "an engine is no task of a scheduler yet"),
}
_LATER = ("submit", "agenerate", "achat", "astream", "tenant", "save_cache", "load_cache")
_LEVELS = ("batch_invariant", "run_to_run", "not_guaranteed")


class LLM:
    """A language model that answers.

    Weights are on the current device; each request has keys and values of its own and runs by itself, so a reply does
    not depend on the others.

    Parameters
    ----------
    model : str or path-like
        A folder of Hugging Face, a ``.safetensors`` or ``.index.json`` in one, a ``.gguf``; or ``"smollm2"``, the model
        that ``pygpukit model fetch smollm2`` brings.
    tokenizer : str, path-like or Tokenizer, optional
        The one beside or in the model by default.
    dtype : str
        ``"auto"`` is float32 on the CPU device, else what is stored, and bfloat16 beside quantised weights, which then
        stay in their blocks.
    max_model_len : int, optional
        Tokens of a prompt and its reply; what the model allows by default.
    seed : int
        Of replies whose parameters have none: the n-th request draws by it and n.
    chat_template : str, optional
        In place of the model's own.
    quantization : str, optional
        What matrices of layers become when they are loaded: ``"fp8"``, ``"int8"`` or ``"int4"``. Embedding, head, norms
        and biases stay as they are. By default all is as stored.
    kv_dtype, memory, speculative, policy, bandwidth, scheduler : optional
        Not available yet: another value than the default is refused.
    max_num_seqs, max_batched_tokens, prefix_cache, deterministic, graphs, offload : optional
        Without effect while requests run one at a time.

    Attributes
    ----------
    config : TransformerConfig
    model : CausalTransformerModel
    tokenizer : Tokenizer or None
    default_params : SamplingParams
        What the model's ``generation_config.json`` says; used for requests without parameters.

    Examples
    --------
    >>> import tempfile
    >>> from pygpukit.llm.testing import tiny_gguf
    >>> with tempfile.TemporaryDirectory() as folder, LLM(tiny_gguf(f"{folder}/tiny.gguf")) as llm:
    ...     out = llm.generate([5, 6, 7], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    ...     len(out.token_ids), out.finish_reason
    (4, 'length')
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: Any = None,
        dtype: str = "auto",
        quantization: str | None = None,
        kv_dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        max_batched_tokens: int = 8192,
        memory: str | int | None = None,
        prefix_cache: bool = True,
        speculative: Any = None,
        deterministic: str = "batch_invariant",
        graphs: bool = True,
        offload: bool = True,
        policy: Any = None,
        bandwidth: Any = None,
        scheduler: Any = None,
        seed: int = 0,
        chat_template: str | None = None,
    ) -> None:
        check_quantization(quantization)
        given = {"kv_dtype": kv_dtype, "memory": memory, "speculative": speculative,
                 "policy": policy, "bandwidth": bandwidth, "scheduler": scheduler}  # fmt: skip
        for name, (only, why) in _ONLY.items():
            if given[name] != only:
                raise ValueError(f"{name}={given[name]!r} is not available yet, only {only!r}: {why}")
        if deterministic not in _LEVELS:
            raise ValueError(f"deterministic is {deterministic!r}, and must be one of {', '.join(_LEVELS)}")
        path = fetch.find(str(model)) if str(model) in fetch.MODELS else model
        checkpoint = open_checkpoint(path)
        try:
            self.config = checkpoint.config
            limit = self.config.max_position_embeddings
            if max_model_len is not None:
                if type(max_model_len) is not int or not max_model_len > 0:
                    raise ValueError(f"max_model_len is {max_model_len!r}, and must be a positive number")
                if self.config.learned_positions and max_model_len > limit:
                    raise ValueError(f"max_model_len is {max_model_len}, and the model has {limit} positions")
                limit = max_model_len
            self.max_model_len = limit
            self.name = Path(path).stem if Path(path).is_file() else Path(path).name
            self.tokenizer, ends = _tokenizer(checkpoint, tokenizer)
            self.chat_template = chat_template or (self.tokenizer.chat_template if self.tokenizer else None)
            self.default_params, more = _defaults(checkpoint)
            self._ends = {i for i in {*ends, *more, *self.config.eos_token_ids} if 0 <= i < self.config.vocab_size}
            self._device = current_device()
            self.model = load_model(checkpoint, dtype, quantization=quantization)
            self.model.max_positions = limit
            self._weight_bytes = checkpoint.files.file_size
        finally:
            checkpoint.close()
        known = self.config.vocab_size if self.tokenizer is None else self.tokenizer.vocab_size
        # Rows of the embedding beyond the tokenizer's tokens are padding, and must never be drawn.
        self._allowed = min(known, self.config.vocab_size)
        self._lock = threading.Lock()
        self._seed, self._requests = seed, 0
        self._counts = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self._closed = False

    def generate(
        self,
        prompts: Prompt | Ids[Prompt],
        params: SamplingParams | None = None,
        *,
        tenant: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Any:
        """Return the reply to one prompt, or a list of them.

        Parameters
        ----------
        prompts : str, sequence of int, or a list of those
            Text needs the model's tokenizer; ids do not.
        params : SamplingParams, optional
            `default_params` by default.

        Returns
        -------
        RequestOutput or list of RequestOutput
        """
        _refuse_tenant(tenant)
        if _is_one(prompts):
            return self._finish(self._ids(cast(Prompt, prompts)), params)
        checked = [self._ids(cast(Prompt, prompt)) for prompt in prompts]
        return [self._finish(ids, params) for ids in checked]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, tenant: str | None = None
    ) -> Generator[Piece, None, None]:
        """Return an iterator of the pieces of a reply as they appear; closing it ends the reply."""
        _refuse_tenant(tenant)
        return self._pieces(self._sequence(self._ids(prompt), params))

    def chat(
        self,
        messages: Ids[Message],
        params: SamplingParams | None = None,
        *,
        tools: Any = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continue_final: bool = False,
    ) -> RequestOutput:
        """Return the reply to a conversation.

        Parameters
        ----------
        messages : sequence of mapping
            With ``role`` and ``content``.
        tools : optional
            Descriptions of functions, for templates that know them.
        template_kwargs : mapping, optional
            For the template, such as ``{"enable_thinking": False}``.
        continue_final : bool
            Go on with the last message instead of a new one.
        """
        ids, thinking = self._conversation(messages, tools, template_kwargs, continue_final)
        return self._finish(ids, params, thinking)

    def chat_stream(
        self,
        messages: Ids[Message],
        params: SamplingParams | None = None,
        *,
        tools: Any = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continue_final: bool = False,
    ) -> Generator[Piece, None, None]:
        """Return an iterator of the pieces of a reply to a conversation; closing it ends the reply."""
        ids, thinking = self._conversation(messages, tools, template_kwargs, continue_final)
        return self._pieces(self._sequence(ids, params, thinking))

    def score(self, prompt: Prompt) -> list[float]:
        """Return the logarithmic probability of every token of a prompt but the first."""
        ids = self._ids(prompt)
        if len(ids) > self.max_model_len:
            raise ContextLengthError(f"the text has {len(ids)} tokens, and the model takes {self.max_model_len}")
        with self._lock, device(self._device):
            rows = self._scored(ids, self.model.new_cache(len(ids)), 0)[1]
        return [row[token] for row, token in zip(rows[1:], ids[1:], strict=True) if row is not None]

    def perplexity(self, prompt: Prompt) -> float:
        """Return how many tokens the model wavers between on average, in a text."""
        scores = self.score(prompt)
        if not scores:
            raise ValueError("perplexity needs at least two tokens")
        return math.exp(-sum(scores) / len(scores))

    def stats(self) -> dict[str, int]:
        """Return counts of requests and tokens since the start."""
        return dict(self._counts)

    def explain(self) -> str:
        """Return what the model is, and what it takes of memory."""
        config, itemsize = self.config, self.model.dtype.itemsize
        per_token = config.kv_bytes(itemsize)
        return "\n".join(
            (
                f"{self.name}: {config.architecture}, {config.num_layers} layers of {config.hidden_size}, "
                f"{config.num_heads} heads over {config.num_kv_heads} of keys, vocabulary {config.vocab_size}",
                f"weights {self.model.dtype.name} on {self._device.kind}, {self._weight_bytes} bytes in the files",
                f"keys and values {per_token} bytes a token, {per_token * self.max_model_len} bytes for the "
                f"{self.max_model_len} of the longest request",
                "requests run one at a time, each with keys and values of its own",
            )
        )

    def close(self) -> None:
        """Give up weights and tokenizer."""
        self._closed = True
        self.__dict__.pop("model", None)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise ValueError("the model is closed")
        if name in _LATER:
            raise AttributeError(f"LLM.{name} is not available yet; generate, stream, chat and chat_stream are")
        raise AttributeError(f"'LLM' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<LLM {self.name}{', closed' if self._closed else ''}>"

    def _ids(self, prompt: Prompt, special: bool = True) -> list[int]:
        if isinstance(prompt, str):
            ids = self._need_tokenizer().encode(prompt, add_special_tokens=special)
        else:
            ids = [int(token) for token in prompt]
        if not ids:
            raise ValueError("the prompt is empty: a reply needs at least one token before it")
        wrong = next((token for token in ids if not 0 <= token < self.config.vocab_size), None)
        if wrong is not None:
            raise ValueError(f"token {wrong} is not in the vocabulary of {self.config.vocab_size}")
        return ids

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            try:
                import tokenizers  # noqa: F401
            except ImportError as error:
                raise MissingPackageError(
                    "text needs the package 'tokenizers': pip install 'pygpukit[llm]'; token ids work without it"
                ) from error
            raise ModelLoadError(f"{self.name} has no tokenizer: give one with tokenizer=path, or token ids")
        return self.tokenizer

    def _conversation(
        self, messages: Ids[Message], tools: Any, values: Mapping[str, Any] | None, continue_final: bool
    ) -> tuple[list[int], ThinkingParser | None]:
        if not messages:
            raise ValueError("the conversation is empty: it needs at least one message")
        wrong: Any = next((m for m in messages if not {"role", "content"} <= set(m)), None)
        if wrong is not None:
            raise ValueError(f"a message has a role and a content, and this is {wrong!r:.80}")
        tokenizer = self._need_tokenizer()
        template = self.chat_template
        more = dict(values or {})
        if continue_final:
            last = str(messages[-1]["content"])
            text = apply_chat_template(messages, tokenizer, False, template=template, tools=tools, **more)
            at = text.rfind(last)
            text = text[: at + len(last)] if at >= 0 else text
        else:
            text = apply_chat_template(messages, tokenizer, True, template=template, tools=tools, **more)
        thinks = tokenizer.token_id("</think>") is not None
        # Templates of some models end with the opening tag, so that the reply has the closing one only.
        begun = text.rstrip().endswith("<think>")
        return self._ids(text, special=False), ThinkingParser(start=begun) if thinks else None

    def _sequence(
        self, ids: list[int], params: SamplingParams | None, thinking: Any = None, index: int = 0
    ) -> Sequence:
        params = self.default_params if params is None else params
        for token in (*params.logit_bias, *params.stop_token_ids, *(params.allowed_token_ids or ())):
            if not 0 <= token < self.config.vocab_size:
                raise ValueError(f"token {token} is not in the vocabulary of {self.config.vocab_size}")
        if params.stop or params.bad_words:
            self._need_tokenizer()
        if len(ids) >= self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, and the model takes {self.max_model_len} with the reply: shorten it"
            )
        with self._lock:
            if params.seed is None:
                params = dataclasses.replace(params, seed=self._seed * 1_000_003 % (1 << 62) + self._requests)
            self._requests += 1
            self._counts["requests"] += 1
            self._counts["prompt_tokens"] += len(ids)
        limit = min(params.max_tokens, self.max_model_len - len(ids))
        return Sequence(ids, params, limit, self._ends, self.tokenizer, self._allowed, thinking, index)

    def _finish(self, ids: list[int], params: SamplingParams | None, thinking: Any = None) -> RequestOutput:
        made = []
        chosen = self.default_params if params is None else params
        for index in range(chosen.n):
            parser = None if thinking is None else ThinkingParser(thinking.thinking)
            for piece in self._pieces(self._sequence(ids, chosen, parser, index)):
                if piece.output is not None:
                    made.append(piece.output)
        return dataclasses.replace(made[0], outputs=made)

    def _pieces(self, sequence: Sequence) -> Generator[Piece, None, None]:
        if sequence.finish_reason is not None:
            yield sequence.end(sequence.finish_reason)
            return
        cache = self.model.new_cache(len(sequence.prompt) + sequence.limit)
        ids, wanted = sequence.prompt, sequence.params.prompt_logprobs
        while sequence.finish_reason is None:
            with self._lock, device(self._device):
                if wanted is None:
                    logits = self.model.get_logits(self.model.step(ids, cache)[-1:])
                else:
                    logits, sequence.prompt_logprobs = self._scored(ids, cache, wanted)
                    wanted = None
                token = sequence.choose(logits)
                self._counts["completion_tokens"] += 1
            yield sequence.add(token)
            ids = [token]

    def _scored(self, ids: list[int], cache: KVCache, count: int) -> tuple[Any, list[dict[int, float] | None]]:
        """Append tokens to a sequence; the scores after the last, and per token the logarithmic probabilities."""
        rows: list[dict[int, float] | None] = [None]
        logits = None
        for start in range(0, len(ids), 64):
            part, following = ids[start : start + 64], ids[start + 1 : start + 65]
            logits = self.model.get_logits(self.model.step(part, cache))
            if following:
                rows += sampling.best(logits[: len(following), : self._allowed], following, count)
        assert logits is not None
        return logits[-1:], rows


def _is_one(prompts: Any) -> bool:
    if isinstance(prompts, str):
        return True
    if len(prompts) == 0:
        raise ValueError("the prompt is empty: a reply needs at least one token before it")
    return not isinstance(prompts[0], str) and np.ndim(prompts[0]) == 0


def _refuse_tenant(tenant: str | None) -> None:
    if tenant is not None:
        raise ValueError(f"tenant {tenant!r} is unknown: tenants inside of an engine are not available yet")


def _tokenizer(checkpoint: Checkpoint, given: Any) -> tuple[Tokenizer | None, set[int]]:
    """The tokenizer, and the tokens that end a reply by its names; none where there is none or no package for it."""
    if isinstance(given, Tokenizer):
        return given, given.end_ids()
    try:
        if given is not None:
            made = _from_folder(Path(given))
        elif checkpoint.gguf is not None:
            if "tokenizer.ggml.tokens" not in checkpoint.gguf.metadata:
                return None, set()
            made = gguf_tokenizer(checkpoint.gguf.metadata)
        elif checkpoint.folder is not None and (checkpoint.folder / "tokenizer.json").exists():
            made = _from_folder(checkpoint.folder)
        else:
            return None, set()
    except MissingPackageError:
        if given is not None:
            raise
        # Ids work without it, and what needs text says what is missing.
        return None, _ids_of_metadata(checkpoint)
    return made, made.end_ids() | _ids_of_metadata(checkpoint)


def _ids_of_metadata(checkpoint: Checkpoint) -> set[int]:
    metadata = {} if checkpoint.gguf is None else checkpoint.gguf.metadata
    found = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom"))
    return {token for token in found if type(token) is int}


def _from_folder(path: Path) -> Tokenizer:
    """A tokenizer.json, with what lies beside it."""
    folder = path if path.is_dir() else path.parent
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    made = Tokenizer(path)

    def token(name: str) -> int | None:
        value = settings.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        return made.token_id(value) if isinstance(value, str) else None

    made.bos_token_id, made.eos_token_id = token("bos_token"), token("eos_token")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    file = folder / "chat_template.jinja"
    if file.exists():
        if file.stat().st_size > 1 << 20:
            raise ModelLoadError(f"{file} has {file.stat().st_size} bytes, and a template at most 1 MiB")
        template = file.read_text(encoding="utf-8", errors="replace")
    made.chat_template = template if isinstance(template, str) else None
    return made


def _defaults(checkpoint: Checkpoint) -> tuple[SamplingParams, set[int]]:
    """Parameters and ends of a reply by the model's generation_config.json."""
    if checkpoint.folder is None or not (checkpoint.folder / "generation_config.json").exists():
        return SamplingParams(), set()
    values = read_json(checkpoint.folder / "generation_config.json")
    ends = values.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    known = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    given = {name: values[name] for name in known if values.get(name) is not None}
    if values.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given), {token for token in listed if type(token) is int}
    except ValueError as error:
        raise ModelLoadError(f"{checkpoint.folder / 'generation_config.json'}: {error}") from error
