"""`LLM`: a model, its tokenizer, and replies."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from collections.abc import Sequence as Ids
from contextlib import aclosing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

from pygpukit._pygpukit_rust import PageCache
from pygpukit.core.device import current_device, synchronize
from pygpukit.dtypes import dtype as _dtype
from pygpukit.errors import AdmissionError, ContextLengthError
from pygpukit.llm import arguments, budget, fetch, saved_cache, structured
from pygpukit.llm.draft_models import DraftModel
from pygpukit.llm.engine_task import EngineTask, admit
from pygpukit.llm.kv_types import KVType, check_kv_dtype, kv_type
from pygpukit.llm.loading import Checkpoint, load_model, open_checkpoint, weight_dtype
from pygpukit.llm.loop import EngineLoop
from pygpukit.llm.outputs import Piece, RequestOutput
from pygpukit.llm.pages import PAGE_TOKENS, PageMemory
from pygpukit.llm.prompts import Message, Prompt, Prompts, is_one_prompt
from pygpukit.llm.quantizing import check_quantization
from pygpukit.llm.request import ChatOptions, Request, RequestOptions
from pygpukit.llm.runner import Runner
from pygpukit.llm.sampling import SamplingParams
from pygpukit.llm.scheduler import Branch, Scheduler
from pygpukit.llm.sequence import Sequence
from pygpukit.llm.speculation import Method, Speculation, make_drafter, read_method
from pygpukit.llm.templates import ThinkingParser, check_template
from pygpukit.llm.tenants import Tenant
from pygpukit.llm.tokenizer_files import default_params, find_tokenizer
from pygpukit.scheduler import current_task

__all__ = ["LLM"]

_LEVELS = ("batch_invariant", "run_to_run", "not_guaranteed")
# A longer step takes seconds there, and all replies wait for it.
_MOST_TOKENS_ON_CPU = 512


class LLM:
    """A language model that answers.

    Weights are on the current device. Requests are computed together by one thread, which starts with the first; what
    a reply is does not depend on the others.

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
    max_num_seqs, max_batched_tokens : int
        Most replies and most tokens that are computed in one step; longer prompts take several steps. The CPU device
        takes at most 512 tokens in a step.
    memory : int or str, optional
        What the engine may use for weights, keys and values and the arrays of its steps, reserved before loading. By
        default a share of what is free on a GPU, and 1 GiB of keys and values on the CPU device.
    prefix_cache : bool
        Pages with the tokens of a prompt's beginning are used again.
    deterministic : str
        ``"batch_invariant"``: tokens and probabilities are the same bits alone and beside others. Weaker levels allow
        faster operators.
    offload : bool
        Replies that lose their pages to others keep them on the host; otherwise they are computed again.
    quantization : str, optional
        What matrices of layers become when they are loaded: ``"fp8"``, ``"int8"`` or ``"int4"``. Embedding, head, norms
        and biases stay as they are. By default all is as stored.
    kv_dtype : str
        How keys and values are stored: ``"auto"`` as the weights' type, or ``"fp8"`` or ``"int8"`` for codes of 8 bits,
        which attention decodes as it reads them. ``"bf16"`` and ``"f16"`` go with weights of that type.
    policy : {"guaranteed", "burstable", "besteffort"}, optional
        With this, `bandwidth` or `scheduler` the engine is a task of a scheduler: its steps take the task's turns on
        its lane, and `memory` is reserved for the task; for a besteffort one, which nothing is reserved for, it is the
        most it gets. By default burstable where memory or bandwidth is given, else besteffort.
    bandwidth : float, optional
        Part of the device's compute that is kept for the engine.
    scheduler : Scheduler or Partition, optional
        Which one admits it; the process's own by default.
    speculative : str or mapping, optional
        How next tokens are guessed, to be verified several in one step: ``"ngram"``, ``"jacobi"``, ``"lookahead"``,
        ``{"draft": path, "k": 4}`` with a smaller model, ``{"early_exit": layers}`` with the first layers, or the name
        of a plugin. Replies are the same.
    graphs : bool
        Steps of one token per reply are captured in graphs, each when it is needed for the second time.

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
        policy: str | None = None,
        bandwidth: float | None = None,
        scheduler: Any = None,
        seed: int = 0,
        chat_template: str | None = None,
    ) -> None:
        check_quantization(quantization)
        check_kv_dtype(kv_dtype)
        method = read_method(speculative)
        arguments.one_of("deterministic", deterministic, _LEVELS)
        for name, value in (("max_num_seqs", max_num_seqs), ("max_batched_tokens", max_batched_tokens)):
            arguments.positive(name, value)
        for name, flag in (("prefix_cache", prefix_cache), ("graphs", graphs), ("offload", offload)):
            arguments.true_or_false(name, flag)
        if arguments.text_or_none("chat_template", chat_template):
            # The model's own is read with the first conversation: without one it need not be right.
            check_template(cast(str, chat_template))
        self._seed, self._orders = arguments.whole("seed", seed), itertools.count()
        self._device, self._task, pool = current_device(), None, None
        if self._device.kind == "cpu":
            max_batched_tokens = min(max_batched_tokens, _MOST_TOKENS_ON_CPU)
        path = fetch.find(str(model)) if str(model) in fetch.MODELS else model
        checkpoint = open_checkpoint(path)
        try:
            self.name = Path(path).stem if Path(path).is_file() else Path(path).name
            self._read(checkpoint, tokenizer, max_model_len, chat_template)
            if method is not None:
                method.check(self.config.num_layers)
            kind = weight_dtype(checkpoint, dtype, quantization)
            kv = kv_type(kv_dtype, kind)
            # What keys and values depend on beside the model.
            self._settings = repr((quantization, kv.stored.name, deterministic, self._device))
            coded = checkpoint.gguf is not None or checkpoint.scheme is not None
            blocks = coded and self._device.kind != "cpu"
            budget.check_memory(memory, self.config, checkpoint.spec, 0 if blocks or quantization else kind.itemsize)
            self._task = admit(self.name, self._device, policy, bandwidth, memory, scheduler, offload)
            pool = budget.reserve(memory) if self._task is None else None
            load = partial(
                self._load, checkpoint, dtype, quantization, kv, method, memory is not None, max_num_seqs,
                max_batched_tokens,
            )  # fmt: skip
            with pool or nullcontext():
                pages, draft = load() if self._task is None else self._task.run(load)
        except BaseException:
            if self._task is not None:
                self._task.end()
            raise
        finally:
            checkpoint.close()
        cache = PageCache(
            self._budget.pages, PAGE_TOKENS, self._budget.host_pages, prefix=prefix_cache,
            seed=int.from_bytes(os.urandom(8), "little"),
        )  # fmt: skip
        self._loop = EngineLoop(
            Runner(self.model, cache, pages, self._allowed, graphs),
            Scheduler(cache, pages, max_num_seqs, max_batched_tokens, offload),
            self._device, pool, deterministic, self._device.kind == "cuda", self._task,
        )  # fmt: skip
        if method is not None:
            drafter = make_drafter(method, self._loop.runner, self._loop.scheduler, draft)
            self._loop.speculate(Speculation(drafter, self._device.kind, self._allowed, self._loop.ahead))
        if prefix_cache:
            self._loop.prefixes = saved_cache.Prefixes(2 * PAGE_TOKENS * self._budget.pages)
        self._loop.telemetry.publish(self.name)
        self._stop = weakref.finalize(self, _end, self._loop, self._task)
        self._lock, self._closed = threading.Lock(), False
        self._tenants = {"": Tenant("")}

    def _read(
        self, checkpoint: Checkpoint, tokenizer: Any, max_model_len: int | None, chat_template: str | None
    ) -> None:
        """What requests are checked against, out of the model's files."""
        config = self.config = checkpoint.config
        self.max_model_len = config.max_position_embeddings
        if max_model_len is not None:
            arguments.positive("max_model_len", max_model_len)
            if config.learned_positions and max_model_len > self.max_model_len:
                raise ValueError(f"max_model_len is {max_model_len}, and the model has {self.max_model_len} positions")
            self.max_model_len = max_model_len
        self.tokenizer, ends = find_tokenizer(checkpoint, tokenizer)
        template = chat_template or (self.tokenizer.chat_template if self.tokenizer else None)
        self._prompts = Prompts(self.name, self.tokenizer, template, config.vocab_size)
        self.default_params, more = default_params(checkpoint)
        self._ends = {i for i in {*ends, *more, *config.eos_token_ids} if 0 <= i < config.vocab_size}
        known = config.vocab_size if self.tokenizer is None else self.tokenizer.vocab_size
        # Rows of the embedding beyond the tokenizer's tokens are padding, and must never be drawn.
        self._allowed = min(known, config.vocab_size)

    def _load(
        self,
        checkpoint: Checkpoint,
        dtype: str,
        quantization: str | None,
        kv: KVType,
        method: Method | None,
        limited: bool,
        max_num_seqs: int,
        max_batched_tokens: int,
    ) -> tuple[PageMemory, DraftModel | None]:
        """Bring the weights to the device, and take pages in what is left of the engine's memory."""
        self.model = load_model(checkpoint, dtype, quantization=quantization)
        self.model.max_positions, self._dtype_name = self.max_model_len, self.model.dtype.name
        self._codes = f" as codes of {kv.stored.name}" if kv.is_coded else ""
        self._weight_bytes = checkpoint.files.file_size
        draft: DraftModel | None = None
        if method is not None and method.name == "draft":
            draft = DraftModel(method.value, dtype, self._allowed, self.tokenizer, self.max_model_len)
        self._budget = budget.plan_pages(
            self.config, _dtype(self.model.dtype), kv, self._weight_bytes, limited, self.max_model_len, max_num_seqs,
            max_batched_tokens, () if draft is None else (draft.page_bytes,),
        )  # fmt: skip
        pages = PageMemory(self.config, kv, self._budget.pages, self._budget.host_pages, self.model.kv_scales)
        if draft is not None:
            draft.allocate(self._budget.pages)
        synchronize()
        return pages, draft

    def generate(
        self, prompts: Prompt | Ids[Prompt], params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Any:
        """Return the reply to one prompt, or a list of them.

        Parameters
        ----------
        prompts : str, sequence of int, or a list of those
            Text needs the model's tokenizer; ids do not.
        params : SamplingParams, optional
            `default_params` by default.
        **options
            As `submit` takes them.

        Returns
        -------
        RequestOutput or list of RequestOutput
            A reply of a list that failed has ``finish_reason`` ``"error"`` and says why in ``stop_reason``; a single
            one raises.
        """
        if is_one_prompt(prompts):
            return self._wait([self.submit(cast(Prompt, prompts), params, **options)])[0].result()
        made = [self._request(self._prompts.ids(cast(Prompt, prompt)), params, **options) for prompt in prompts]
        return [request.output() for request in self._wait([self._start(*pair) for pair in made])]

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Request:
        """Begin a reply and return at once.

        Parameters
        ----------
        prompt, params
            As `generate` takes them.
        tenant : str, optional
            One that `tenant` has made.
        priority : int
            Higher ones go first among requests of one policy.
        cache_salt : str, optional
            Pages of a prompt are shared with requests of the same salt only.

        Returns
        -------
        Request
            With ``result``, ``cancel``, ``state`` and ``reason``; ``await request`` gives the reply in a coroutine.
        """
        return self._start(*self._request(self._prompts.ids(prompt), params, **options))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Generator[Piece, None, None]:
        """Return an iterator of the pieces of a reply as they appear; closing it ends the reply."""
        return self._pieces(*self._single(self._request(self._prompts.ids(prompt), params, **options)))

    async def agenerate(
        self, prompts: Prompt | Ids[Prompt], params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> Any:
        """Return what `generate` does, in a coroutine; cancelling it ends the replies."""
        if is_one_prompt(prompts):
            return await self._awaited(self.submit(cast(Prompt, prompts), params, **options))
        pairs = [self._request(self._prompts.ids(cast(Prompt, prompt)), params, **options) for prompt in prompts]
        made = [self._start(*pair) for pair in pairs]
        try:
            for request in made:
                await request.ended()
        finally:
            for request in made:
                request.cancel()
        return [request.output() for request in made]

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[Piece]:
        """Return an asynchronous iterator of the pieces of a reply; closing it ends the reply."""
        request = self._start(*self._single(self._request(self._prompts.ids(prompt), params, **options)))
        try:
            async with aclosing(request.apieces()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            request.cancel()

    def chat(
        self, messages: Ids[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> RequestOutput:
        """Return the reply to a conversation.

        Parameters
        ----------
        messages : sequence of mapping
            With ``role`` and ``content``.
        params : SamplingParams, optional
        tools : optional
            Descriptions of functions, for templates that know them.
        template_kwargs : mapping, optional
            For the template, such as ``{"enable_thinking": False}``.
        continue_final : bool
            Go on with the last message instead of a new one.
        tenant, priority, cache_salt
            As `submit` takes them.
        """
        return self._wait([self._start(*self._chat_request(messages, params, **options))])[0].result()

    async def achat(
        self, messages: Ids[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> RequestOutput:
        """Return what `chat` does, in a coroutine; cancelling it ends the reply."""
        return await self._awaited(self._start(*self._chat_request(messages, params, **options)))

    def chat_stream(
        self, messages: Ids[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> Generator[Piece, None, None]:
        """Return an iterator of the pieces of a reply to a conversation; closing it ends the reply."""
        return self._pieces(*self._single(self._chat_request(messages, params, **options)))

    def score(self, prompt: Prompt) -> list[float]:
        """Return the logarithmic probability of every token of a prompt but the first."""
        ids = self._prompts.ids(prompt)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        rows = self._wait([self._start(*self._request(ids, params))])[0].result().prompt_logprobs or []
        return [row[token] for row, token in zip(rows[1:], ids[1:], strict=True) if row is not None]

    def perplexity(self, prompt: Prompt) -> float:
        """Return how many tokens the model wavers between on average, in a text."""
        scores = self.score(prompt)
        if not scores:
            raise ValueError("perplexity needs at least two tokens")
        return math.exp(-sum(scores) / len(scores))

    def tenant(
        self,
        name: str,
        policy: str = "burstable",
        weight: float = 1.0,
        max_running: int | None = None,
        kv_share: float | None = None,
    ) -> Tenant:
        """Make a tenant, whose name requests give, or change what it is promised.

        Parameters
        ----------
        name : str
        policy : {"guaranteed", "burstable", "besteffort"}
            Guaranteed requests are admitted before all others, with pages for their longest reply, and never preempted;
            burstable ones share what is left by weight; besteffort ones yield to the others, their pages to the host.
        weight : float
            Share among waiting requests of one policy, by computed tokens.
        max_running : int, optional
            Most replies that are computed at once.
        kv_share : float, optional
            Most of the pages, from 0 to 1.
        """
        if not (isinstance(cast(Any, name), str) and name):
            raise ValueError(f"a tenant's name is {name!r}, and must be a text that is not empty")
        made = Tenant(name, policy, weight, max_running, kv_share)
        with self._lock:
            known = self._tenants.setdefault(name, made)
            known.policy, known.weight = made.policy, made.weight
            known.max_running, known.kv_share = made.max_running, made.kv_share
        return known

    def save_cache(self, path: str | os.PathLike[str]) -> int:
        """Write the pages that new prompts could find to a file, and return how many there are."""
        return self._with_cache(saved_cache.save, path)

    def load_cache(self, path: str | os.PathLike[str]) -> int:
        """Bring the pages of a file that `save_cache` has written, as far as there is room; return how many are new.

        Raises
        ------
        CacheError
            If the file is of another model or setting, or damaged; `ModelFileError` if it is cut off.
        """
        return self._with_cache(saved_cache.load, path, self.config.vocab_size)

    def _with_cache(self, function: Callable[..., int], path: str | os.PathLike[str], *more: int) -> int:
        loop = self._loop
        if loop.prefixes is None:
            raise ValueError("the engine has no cache to find prompts in: it was made with prefix_cache=False")
        self._check_thread()
        arguments = loop.scheduler.cache, loop.prefixes

        def call() -> int:
            cache, prefixes = arguments
            digest = saved_cache.model_digest(self.model, self._settings)
            return function(path, cache, loop.scheduler.memory, prefixes, digest, *more)

        return loop.call(call)

    def stats(self) -> dict[str, Any]:
        """Return counts of requests, tokens and steps since the start, and what runs, waits and is in use now."""
        loop = self._loop
        cache = loop.scheduler.cache.stats()
        made: dict[str, Any] = {**loop.counts, **loop.scheduler.counts, **loop.sizes}
        graphs = loop.runner.graphs
        made |= {
            "graphs": 0 if graphs is None else len(graphs),
            "pages": self._budget.pages,
            "pages_used": cache["used"],
            "pages_kept": cache["kept"],
        }
        if loop.speculation is not None:
            made["speculation"] = loop.speculation.stats()
        tenants = {t.name: {"running": t.running, "tokens": t.tokens} for t in self._tenants.values() if t.name}
        if self._task is not None:
            made["task"] = self._task.stats()
        return made | ({"tenants": tenants} if tenants else {})

    def explain(self) -> str:
        """Return what the model is, and what it takes of memory."""
        config, plan, loop = self.config, self._budget, self._loop
        graphs = loop.runner.graphs
        per_token = plan.page // PAGE_TOKENS
        return "\n".join(
            (
                f"{self.name}: {config.architecture}, {config.num_layers} layers of {config.hidden_size}, "
                f"{config.num_heads} heads over {config.num_kv_heads} of keys, vocabulary {config.vocab_size}",
                f"weights {self._dtype_name} on {self._device.kind}, {self._weight_bytes} bytes in the files",
                f"keys and values {per_token} bytes a token{self._codes}: {plan.pages} pages of {PAGE_TOKENS} tokens, "
                f"for {plan.pages * PAGE_TOKENS} in all and {self.max_model_len} in one request",
                f"steps of at most {loop.scheduler.max_num_seqs} replies and {loop.scheduler.max_batched_tokens} tokens"
                + (f"; they are not captured: {graphs.refused}" if graphs is not None and graphs.refused else ""),
                *(() if loop.speculation is None else (loop.speculation.explain(),)),
                *(() if self._task is None else (self._task.explain(),)),
            )
        )

    @property
    def chat_template(self) -> str | None:
        """The template that makes texts of conversations."""
        return self._prompts.chat_template

    def close(self, timeout: float | None = None) -> None:
        """End the requests in flight, and give up the weights, pages and thread.

        Parameters
        ----------
        timeout : float, optional
            Seconds that the step in progress may take. Without it there is no limit but for a processor, or another
            function that the engine was given: one that does not return within 5 seconds is not waited for.

        Raises
        ------
        TimeoutError
            If the thread does not end in time; the text names the function that it is in. Requests end with the same
            error. Memory and thread are given up by another ``close()``, when the function has returned.
        """
        self._closed = True
        self._loop.close(timeout)
        self._loop.give_memory_up()
        self.__dict__.pop("model", None)
        self._stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "model":
            raise ValueError("the model is closed")
        raise AttributeError(f"'LLM' object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<LLM {self.name}{', closed' if self._closed else ''}>"

    def _chat_request(
        self,
        messages: Ids[Message],
        params: SamplingParams | None = None,
        *,
        tools: Any = None,
        template_kwargs: Mapping[str, Any] | None = None,
        continue_final: bool = False,
        **options: Unpack[RequestOptions],
    ) -> tuple[Request, Branch]:
        ids, thinking = self._prompts.conversation(messages, tools, template_kwargs, continue_final)
        return self._request(ids, params, thinking, **options)

    def _request(
        self,
        ids: list[int],
        params: SamplingParams | None = None,
        thinking: ThinkingParser | None = None,
        *,
        tenant: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> tuple[Request, Branch]:
        """Check a request; nothing runs before all of a call are checked."""
        if self._closed:
            raise ValueError("the model is closed")
        params = self.default_params if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params is {params!r:.80}, and must be SamplingParams")
        for token in (*params.logit_bias, *params.stop_token_ids, *(params.allowed_token_ids or ())):
            if not 0 <= token < self.config.vocab_size:
                raise ValueError(f"token {token} is not in the vocabulary of {self.config.vocab_size}")
        if params.stop or params.bad_words:
            self._prompts.need_tokenizer()
        arguments.whole("priority", priority)
        for name, value in (("tenant", tenant), ("cache_salt", cache_salt)):
            arguments.text_or_none(name, value)
        owner = self._tenants.get(tenant or "")
        if owner is None:
            known = ", ".join(sorted(name for name in self._tenants if name)) or "there are none"
            raise ValueError(f"tenant {tenant!r} is unknown ({known}): llm.tenant({tenant!r}) makes it")
        scores = params.max_tokens == 0 and params.prompt_logprobs is not None
        if len(ids) + (not scores) > self.max_model_len:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens, and the model takes {self.max_model_len} with the reply: shorten it"
            )
        order = next(self._orders)
        if params.seed is None:
            params = dataclasses.replace(params, seed=self._seed * 1_000_003 % (1 << 62) + order)
        limit = min(params.max_tokens, self.max_model_len - len(ids))
        constraint = None
        if structured.grammar_of(params) is not None:
            constraint = structured.compile(self._prompts.need_tokenizer(), params, size=self._allowed, ends=self._ends)
        sequence = Sequence(
            ids, params, limit, self._ends, self.tokenizer, self._allowed, thinking, constraint=constraint
        )
        request = Request(ids, params.n, owner, priority, self._loop.touch)
        # What is in the cache already has no scores to report; keys of long requests turn by other frequencies.
        alone = None if params.prompt_logprobs is None else order
        long = self.config.rope is not None and self.config.rope.is_long(len(ids) + limit)
        branch = Branch(request, sequence, order, repr((owner.name, cache_salt, long, alone)))
        branch.forks = [sequence.fork(index) for index in range(1, params.n)]
        problem = self._loop.scheduler.never_fits(branch)
        if problem is not None:
            raise AdmissionError(problem)
        return request, branch

    @staticmethod
    def _single(made: tuple[Request, Branch]) -> tuple[Request, Branch]:
        """A request of one reply, whose pieces can be streamed."""
        if made[1].forks:
            raise ValueError(f"n is {made[1].sequence.params.n}: a stream has the pieces of one reply")
        return made

    def _start(self, request: Request, branch: Branch) -> Request:
        counts, sequence = self._loop.counts, branch.sequence
        with self._lock:
            counts["requests"] += 1
            counts["prompt_tokens"] += len(sequence.prompt)
        if sequence.limit == 0 and sequence.params.prompt_logprobs is None:
            for made in (sequence, *branch.forks):
                request.put(made.index, made.end("length"))
            return request
        if sequence.limit == 0:
            branch.forks = []
        request.engine = self
        self._loop.submit(branch)
        return request

    def _wait(self, requests: list[Request]) -> list[Request]:
        """Wait for the end of requests; what interrupts the wait ends them."""
        try:
            for request in requests:
                request.wait()
        except BaseException:
            for request in requests:
                request.cancel()
            raise
        return requests

    def _check_thread(self) -> None:
        own = threading.current_thread() is self._loop._thread
        if own or (self._task is not None and current_task() is self._task.task):
            raise RuntimeError("a processor cannot wait for a reply of its own engine, whose thread it runs in")

    async def _awaited(self, request: Request) -> RequestOutput:
        try:
            return await request
        finally:
            request.cancel()

    def _pieces(self, request: Request, branch: Branch) -> Generator[Piece, None, None]:
        self._check_thread()
        self._start(request, branch)
        try:
            yield from request.pieces()
        finally:
            request.cancel()


def _end(loop: EngineLoop, task: EngineTask | None) -> None:
    """What is left to end when an engine is closed, collected or alive at the interpreter's exit."""
    ended = True
    try:
        loop.close()
    except TimeoutError as error:
        ended = False
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    loop.telemetry.withdraw()
    if task is not None:
        task.end(wait=ended)
