"""A conversation by the parts of a model: prefill, caches of a fixed size, and a decode strategy.

    python examples/chat/chat_cli.py --model Qwen3-8B/model.safetensors.index.json --tokenizer Qwen3-8B/tokenizer.json
    python examples/chat/chat_cli.py --model tiny                   # a tiny random model, which says nothing of sense

/clear begins anew, /quit ends, Ctrl-C stops a reply. `pygpukit chat` does the same with less: it finds the model's own
template and parameters.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import terminal

from pygpukit import llm
from pygpukit.llm.tokenizer import Detokenizer
from pygpukit.ops.basic import kv_cache_prefill_gqa


class Decoder:
    """Tokens of a reply, by the strategy that the arguments choose."""

    def __init__(self, model: llm.CausalTransformerModel, args: argparse.Namespace) -> None:
        self.model, self.args = model, args
        self.size = min(args.max_seq_len, model.max_positions)
        self.counts = {"drafted": 0, "accepted": 0}
        for block in model.blocks:
            block.attn.init_fixed_cache(self.size, dtype=args.dtype)
        self.buffers = llm.DecodeBuffers.allocate(model.config, dtype=args.dtype)
        # Strategies that guess compare with the best token, so they draw none.
        self.guesses: llm.DecodeStrategy | None = None
        if args.speculative:
            self.guesses = llm.DecodeSpeculative(args.draft_tokens, args.draft_layers)
        elif args.batch_size > 1:
            self.guesses = llm.DecodeJacobi(n_tokens=args.batch_size)
        self.single: llm.DecodeStrategy = llm.DecodeM1Graph() if args.cuda_graph else llm.DecodeM1()
        for strategy in (self.guesses, self.single):
            if strategy is not None:
                strategy.bind(model)
        if args.cuda_graph:
            self.single.init_graph(self.size)

    def prefill(self, prompt: Sequence[int]) -> np.ndarray:
        """Fill the caches, and return the scores behind the prompt."""
        hidden, past = self.model(prompt, use_cache=True)
        for block, (k, v) in zip(self.model.blocks, past or (), strict=True):
            kv_cache_prefill_gqa(k, block.attn._k_cache, block.attn.num_heads, start_pos=0)
            kv_cache_prefill_gqa(v, block.attn._v_cache, block.attn.num_heads, start_pos=0)
        return self.model.get_logits(hidden[-1:]).to_numpy()[0]

    def reply(self, prompt: Sequence[int]) -> Iterator[int]:
        """Return an iterator of the tokens that follow a prompt, without end."""
        seen: list[int] = []
        token = self.choose(self.prefill(prompt), seen)
        position = len(prompt)
        yield token
        while position < self.size:
            if self.guesses is None:
                logits = self.single.step(token, position, position + 1, self.buffers)
                new, position = [self.choose(logits.to_numpy()[0], seen)], position + 1
            else:
                step = getattr(self.guesses, "step_speculative", None) or self.guesses.step_jacobi
                new, position, stats = step(token, position, position + 1)
                self.counts["drafted"] += stats["draft_count"]
                self.counts["accepted"] += stats["accepted_count"]
            token = new[-1]
            yield from new

    def choose(self, scores: np.ndarray, seen: list[int]) -> int:
        """Draw a token, less likely where it was there before; with guesses the best one."""
        args = self.args
        if self.guesses is not None:
            return llm.sample_token(scores, temperature=0)
        scores = np.array(scores, np.float32)
        before = np.unique(seen).astype(int)
        scores[before] = np.where(
            scores[before] > 0, scores[before] / args.repetition_penalty, scores[before] * args.repetition_penalty
        )
        token = llm.sample_token(scores, args.temperature, args.top_k, args.top_p)
        seen.append(token)
        return token


def arguments() -> argparse.Namespace:
    parser = terminal.parser(
        __doc__, models="folder, .safetensors or .index.json", max_seq_len=2048, max_new_tokens=512, temperature=0.7,
        top_k=50, top_p=0.9, system="You are a helpful assistant.", repetition_penalty=1.1,
    )  # fmt: skip
    parser.add_argument("--batch-size", type=int, default=1, help="positions that are guessed together (Jacobi)")
    parser.add_argument("--cuda-graph", action="store_true", help="record the step once and replay it")
    parser.add_argument("--speculative", action="store_true", help="the first layers guess; the best tokens only")
    parser.add_argument("--draft-tokens", type=int, default=4, help="guesses per step (%(default)s)")
    parser.add_argument("--draft-layers", type=int, default=8, help="layers that guess (%(default)s)")
    return parser.parse_args()


def load(args: argparse.Namespace) -> tuple[llm.CausalTransformerModel, llm.Tokenizer]:
    if args.model != "tiny":
        path = Path(args.model)
        folder = path if path.is_dir() else path.parent
        return llm.load_model_from_safetensors(path, dtype=args.dtype), llm.Tokenizer(args.tokenizer or folder)
    with tempfile.TemporaryDirectory() as folder:
        path = terminal.tiny(folder)
        return llm.load_model_from_safetensors(path, dtype=args.dtype), llm.Tokenizer(path)


def main() -> None:
    args = arguments()
    model, tokenizer = load(args)
    ends = tokenizer.end_ids() | set(model.config.eos_token_ids)
    name = model.spec.name
    decoder = Decoder(model, args)
    print(f"{name}: {model.config.num_layers} layers, vocabulary {model.embed_tokens.shape[0]}. /clear /quit")
    system = llm.ChatMessage(role="system", content=args.system)
    conversation: list[llm.ChatMessage] = []
    for line in terminal.typed(conversation, {}):
        conversation.append(llm.ChatMessage(role="user", content=line))
        text = llm.format_chat_messages([system, *conversation], model_type=name)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        if len(prompt) >= decoder.size:
            print(f"the conversation has {len(prompt)} tokens, and there is room for {decoder.size}: /clear")
            conversation.pop()
            continue
        said, shown, start = [], "", time.perf_counter()
        detokenizer = Detokenizer(tokenizer, prompt)
        print("Assistant: ", end="", flush=True)
        try:
            for token in decoder.reply(prompt):
                if token in ends or len(said) >= args.max_new_tokens:
                    break
                said.append(token)
                piece = detokenizer.add(token)
                shown += piece
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            print("\n(stopped)", end="")
        rest = detokenizer.flush()
        print(rest)
        conversation.append(llm.ChatMessage(role="assistant", content=shown + rest))
        seconds = time.perf_counter() - start
        print(f"[{len(prompt)} tokens of prompt, {len(said)} of reply in {seconds:.2f} s", end="")
        print(
            f", {decoder.counts['accepted']} of {decoder.counts['drafted']} guesses right]" if decoder.guesses else "]"
        )


if __name__ == "__main__":
    main()
