"""Section ``llm``: an engine for language models, decoding batches and reading prompts."""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import pygpukit as gp
from pygpukit.benchmark.products import product_error
from pygpukit.benchmark.serving import PART, Pair, beside, loads, params, prefixes, serving
from pygpukit.benchmark.work import Call, Options, Row, Work, distance

if TYPE_CHECKING:
    from pygpukit.llm import LLM

_QWEN_7B: Mapping[str, Any] = {
    "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 18944, "max_position_embeddings": 32768,
    "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
_TINY: Mapping[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 512, "dtype": "float32",
}  # fmt: skip

LEVELS = ("batch_invariant", "run_to_run")
_CHECKED = 12
# Of scores of tokens, decoded one by one against computed at once: what 16 bits leave of them. batch_invariant has 0.
_TOLERANCE = 3e-2


class Shape(NamedTuple):
    """A model and what is measured with it."""

    name: str
    config: Mapping[str, Any]
    batches: tuple[int, ...]
    compared: tuple[int, ...]
    prompt: int
    new: int
    prompts: tuple[int, ...]
    known: int
    requests: int
    lengths: tuple[int, int]
    memory: str
    path: Path | None = None


_LARGE = Shape(
    "qwen2.5-7b", _QWEN_7B, (1, 8, 64, 256), (1, 64), 512, 256, (2048, 8192), 4096, 1000, (220, 200), "32GiB"
)
_SMALL = Shape("tiny", _TINY, (1, 8), (1, 8), 24, 24, (64, 256), 160, 24, (22, 20), "32MiB")


def llm(options: Options) -> Iterator[Row]:
    """An engine: prompts, decoding of batches, 8-bit and 4-bit weights, and what batch_invariant costs."""
    shape = _given(options.model, options) if options.model is not None else _LARGE if _is_large(options) else _SMALL
    shape = shape._replace(
        batches=options.sizes or shape.batches, compared=options.sizes or shape.compared,
        prompts=options.seq_lens or shape.prompts,
    )  # fmt: skip
    bench = _Bench(options, shape)
    level, weaker = LEVELS
    for n in shape.prompts:
        yield Row(f"llm layer products {n}", "gemm", _products_of(n), lambda n=n: bench.products(n))  # type: ignore[misc]
    for n in shape.prompts:
        yield Row(f"llm prefill {n}", "llm", _products_of(n), lambda n=n: bench.prefill(n))  # type: ignore[misc]
    decodes = [(batch, level, "") for batch in shape.batches] + [(batch, weaker, "") for batch in shape.compared]
    if options.model is None:
        decodes += [(shape.batches[0], level, quantization) for quantization in ("fp8", "int4")]
    held = {
        f"prefix hit {shape.known}": bench.prefix_hit,
        f"serving {shape.requests}": bench.serve,
        "load": bench.load,
    }
    if options.model is None:
        # Each row has one quantile of one run.
        for name in (f"{what} p{quantile}" for what in ("decoding", "prefilling") for quantile in (50, 99)):
            held[f"beside one {name}"] = lambda name=name: bench.beside(name)  # type: ignore[misc]
    for name, work in held.items():
        yield Row(f"llm {name}", "llm", "", work)
    for batch, which, quantization in decodes:
        yield Row(
            f"llm decode {batch} {quantization or which}", "llm", bench.dtype,
            lambda more=(batch, which, quantization): bench.decode(*more),  # type: ignore[misc]
        )  # fmt: skip


def _is_large(options: Options) -> bool:
    return options.on_gpu and not options.quick


def _given(model: Path, options: Options) -> Shape:
    """A model that is there, measured as the random ones are."""
    from pygpukit.llm import fetch
    from pygpukit.llm.loading import open_checkpoint, weight_dtype

    path = Path(fetch.find(str(model))) if str(model) in fetch.MODELS else model
    checkpoint = open_checkpoint(path)
    try:
        config, dtype = checkpoint.config, weight_dtype(checkpoint, "auto", None).name
    finally:
        checkpoint.close()
    sizes = {
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "intermediate_size": config.intermediate_size, "dtype": dtype,
    }  # fmt: skip
    return (_LARGE if _is_large(options) else _SMALL)._replace(name=path.stem, config=sizes, path=path)


def _products_of(tokens: int) -> str:
    return f"layer products {tokens}"


class _Bench:
    """One engine at a time, of one model that is written when it is first needed."""

    def __init__(self, options: Options, shape: Shape) -> None:
        self._options, self._shape = options, shape
        self._random = np.random.default_rng(options.seed)
        self._engine: tuple[tuple[str, str], LLM] | None = None
        self._folder: tuple[str, tempfile.TemporaryDirectory[str]] | None = None
        self._beside: dict[str, Pair] | None = None
        self.dtype = str(shape.config["dtype"])

    def products(self, tokens: int) -> Work:
        """The products of one layer for so many tokens: the rate that a prompt of this length is held against."""
        config, options = self._shape.config, self._options
        hidden, between = config["hidden_size"], config["intermediate_size"]
        heads = config["num_attention_heads"] * config["head_dim"]
        keys = config["num_key_value_heads"] * config["head_dim"]
        pairs = ((hidden, heads + 2 * keys), (heads, hidden), (hidden, 2 * between), (between, hidden))
        made = [(options.normal((tokens, k), self.dtype), options.normal((n, k), self.dtype).T) for k, n in pairs]
        outs = [gp.matmul(a, b) for a, b in made]

        def ours() -> Any:
            for (a, b), out in zip(made, outs, strict=True):
                gp.matmul(a, b, out=out)

        return Work(
            calls=(ours,),
            peer=self._peer(made),
            error=max(product_error(a, b, out) for (a, b), out in zip(made, outs, strict=True)),
            tolerance=3e-3 if gp.dtype(self.dtype).itemsize == 2 else 1e-5,
            nbytes=sum(x.nbytes for pair in made for x in pair) + sum(out.nbytes for out in outs),
            flops=sum(2 * tokens * k * n for k, n in pairs),
            variant=gp.explain(gp.matmul, *made[2]).variant,
        )

    def _peer(self, made: Sequence[tuple[Any, Any]]) -> tuple[Call, ...]:
        options = self._options
        torch = options.torch
        if torch is None:
            return ()
        theirs = [(options.to_torch(a), options.to_torch(b.T).T) for a, b in made]
        return options.tried("llm layer products", lambda: (lambda: [torch.matmul(a, b) for a, b in theirs],))

    def prefill(self, tokens: int) -> Work:
        """Prompts of so many tokens, one by one, until the first token of the reply is there."""
        engine = self._of(LEVELS[0])
        config = engine.config
        products = _weights(engine) - config.vocab_size * config.hidden_size
        pairs = tokens * (tokens + 1) // 2
        flops = 2 * products * tokens + 4 * config.num_layers * config.num_heads * config.head_dim * pairs

        def sample(rounds: int) -> Pair:
            found = []
            for _ in range(rounds + 1):
                prompt = self._prompt(tokens)
                begun = time.perf_counter()
                engine.generate(prompt, params(1))
                found.append(time.perf_counter() - begun)
            return tuple(found[1:]), ()

        return Work(
            calls=(),
            peer=(),
            error=self._error(engine),
            tolerance=_TOLERANCE,
            nbytes=self._read_bytes(engine),
            flops=flops + 2 * config.vocab_size * config.hidden_size,
            variant=f"{self._shape.name} {self.dtype}, to the first token",
            tokens=tokens,
            sample=sample,
        )

    def decode(self, batch: int, level: str, quantization: str = "") -> Work:
        """Steps in which each of so many replies gets a token, from the first one on until the first reply ends."""
        engine, shape = self._of(level, quantization), self._shape
        config, size = engine.config, gp.dtype(self.dtype).itemsize
        length = shape.prompt + shape.new // 2
        attended = 2 * config.num_layers * length * batch
        prompts = [self._prompt(shape.prompt) for _ in range(batch)]
        return Work(
            calls=(),
            peer=(),
            error=self._error(engine),
            tolerance=_TOLERANCE,
            nbytes=self._read_bytes(engine) + size * attended * config.num_kv_heads * config.head_dim,
            flops=2 * batch * _weights(engine) + 2 * attended * config.num_heads * config.head_dim,
            variant=f"{shape.name} {quantization or self.dtype}, prompt {shape.prompt}, {shape.new} new",
            tokens=batch,
            sample=lambda rounds: (_step_times(engine, prompts, shape.new, rounds), ()),
        )

    def prefix_hit(self) -> Work:
        """Prompts of which nine tenths are in the cache, to the first token, beside such ones that are not."""
        tokens, said = self._shape.known, f"{100 * PART:.0f} % of the prompt in the cache; beside none"
        return self._held(tokens, said, lambda engine, rounds: prefixes(engine, self._prompt, tokens, rounds))

    def serve(self) -> Work:
        """Requests of all lengths that arrive faster than they are served, beside a static batch."""
        shape, seed = self._shape, self._options.seed
        said = "requests at twice the capacity; beside a static batch of their mean size"
        return self._held(1, said, lambda engine, _: serving(engine, self._prompt, shape.requests, shape.lengths, seed))

    def load(self) -> Work:
        """Loading of the model from files that the system has in its cache, beside a copy of as many bytes."""
        nbytes = self._of(LEVELS[0])._weight_bytes
        self._close()
        return Work(
            calls=(),
            peer=(),
            error=0.0,
            tolerance=0.0,
            nbytes=nbytes,
            variant="beside a copy from page-locked memory",
            sample=lambda rounds: loads(lambda: self._made(LEVELS[0], ""), nbytes, rounds),
        )

    def beside(self, name: str) -> Work:
        """Time between tokens of an engine with half of the SMs, beside one that does what the name says, and alone."""
        self._close()
        shape = self._shape

        def sample(rounds: int) -> Pair:
            if self._beside is None:
                lengths, replies = (shape.prompt, shape.new), min(64, shape.batches[-1])
                self._beside = beside(
                    lambda **more: self._made(LEVELS[0], "", **more),
                    self._prompt, shape.memory, replies, lengths, shape.prompts[0], rounds,
                )  # fmt: skip
            return self._beside[name]

        said = "guaranteed half of the SMs, beside a besteffort engine; and alone"
        return Work((), (), 0.0, 0.0, 0, variant=said, tokens=1, sample=sample)

    def _held(self, tokens: int, said: str, run: Callable[[LLM, int], Pair]) -> Work:
        engine = self._of(LEVELS[0])
        return Work(
            calls=(),
            peer=(),
            error=self._error(engine),
            tolerance=_TOLERANCE,
            nbytes=0,
            variant=said,
            tokens=tokens,
            sample=lambda rounds: run(engine, rounds),
        )

    def _of(self, level: str, quantization: str = "") -> LLM:
        key = level, quantization
        if self._engine is None or self._engine[0] != key:
            self._close()
            shape, made = self._shape, self._made(level, quantization)
            self._engine = key, made
            # Kernels are compiled, and graphs captured, before anything is timed.
            for batch in shape.batches:
                made.generate([self._prompt(shape.prompt) for _ in range(batch)], params(4))
        return self._engine[1]

    def _made(self, level: str, quantization: str, **more: Any) -> LLM:
        from pygpukit.llm import LLM

        shape = self._shape
        longest = max(*shape.prompts, shape.prompt + shape.new, shape.known, 4 * sum(shape.lengths)) + _CHECKED + 2
        return LLM(
            self._path(quantization), dtype=self.dtype, deterministic=level, max_model_len=longest,
            seed=self._options.seed, **more,
        )  # fmt: skip

    def _close(self) -> None:
        if self._engine is not None:
            self._engine[1].close()
            self._engine = None

    def _path(self, quantization: str) -> Path:
        if self._shape.path is not None:
            return self._shape.path
        if self._folder is None or self._folder[0] != quantization:
            from pygpukit.llm.testing import random_model

            if self._folder is not None:
                self._folder[1].cleanup()
            config = self._shape.config
            # Memory is faster than most disks.
            memory, needed = Path("/dev/shm"), 40 * config["hidden_size"] ** 2 * config["num_hidden_layers"]
            fits = memory.is_dir() and shutil.disk_usage(memory).free > 2 * needed
            self._folder = quantization, tempfile.TemporaryDirectory(dir=memory if fits else None)
            random_model("qwen2", self._folder[1].name, self._options.seed, quantization or None, **config)
        return Path(self._folder[1].name)

    def _read_bytes(self, engine: LLM) -> int:
        """Bytes of the weights that a step reads."""
        read, size = _weights(engine), gp.dtype(self.dtype).itemsize
        if self._options.device.kind == "cpu":
            return int(read * size)
        # The embedding is not read.
        rest = 0 if engine.config.tied else engine.config.vocab_size * engine.config.hidden_size
        if self._shape.path is not None:
            return int(engine._weight_bytes * read / (read + rest))
        return int(engine._weight_bytes - rest * size)

    def _prompt(self, tokens: int) -> list[int]:
        return [int(token) for token in self._random.integers(3, self._shape.config["vocab_size"], tokens)]

    def _error(self, engine: LLM) -> float:
        """How far probabilities of a reply are from those of the same tokens computed as a prompt."""
        from pygpukit.llm import SamplingParams

        prompt = self._prompt(2 * _CHECKED)
        params = SamplingParams(temperature=0, max_tokens=_CHECKED, ignore_eos=True, logprobs=0)
        out = engine.generate(prompt, params)
        given = [row[token] for row, token in zip(out.logprobs or [], out.token_ids, strict=True)]
        return distance(given, engine.score([*prompt, *out.token_ids])[-_CHECKED:])


def _weights(engine: LLM) -> int:
    """Numbers that every step multiplies by; of the embedding only where it is the head."""
    from pygpukit.llm.architecture import wanted

    assert engine.model.spec is not None
    every = wanted(engine.config, engine.model.spec)
    tied = engine.config.tied
    left_out = ("positions", "head" if tied else "embed")
    return sum(math.prod(want.shape) for want in every if want.role not in left_out)


def _step_times(engine: LLM, prompts: Sequence[Sequence[int]], new: int, rounds: int) -> tuple[float, ...]:
    """Seconds of a step in which all replies get a token: so many means over parts of the time in which all run."""
    times: list[list[float]] = [[] for _ in prompts]
    main = threading.get_ident()

    def noted(at: list[float]) -> Callable[[], None]:
        # The first call is made here, when nothing has come yet.
        return lambda: at.append(time.perf_counter()) if threading.get_ident() != main else None

    requests = [engine.submit(prompt, params(new)) for prompt in prompts]
    for request, at in zip(requests, times, strict=True):
        request.on_change(noted(at))
    for request in requests:
        request.result()
    begun, ended = max(at[0] for at in times), min(at[-1] for at in times)
    steps = [b - a for a, b in itertools.pairwise(times[0]) if a >= begun and b <= ended]
    if not steps:
        raise RuntimeError(f"{len(prompts)} replies of {new} tokens never ran at once: give fewer --sizes")
    count = min(rounds, len(steps))
    return tuple(statistics.mean(part.tolist()) for part in np.array_split(steps, count))
