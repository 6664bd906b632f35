"""A conversation with a model that thinks before it answers, such as Qwen3-4B-Thinking.

    python examples/chat/chat_cli_thinking.py --model Qwen3-4B-Thinking-2507
    python examples/chat/chat_cli_thinking.py --model tiny          # a tiny random model, which says nothing of sense

/clear begins anew, /think shows or hides thoughts, /quit ends, Ctrl-C stops a reply.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pygpukit.llm import LLM, SamplingParams


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", required=True, help="folder, .safetensors, .index.json, .gguf; tiny for a random one"
    )
    parser.add_argument("--tokenizer", help="tokenizer.json; the one beside the model by default")
    parser.add_argument("--max-seq-len", type=int, default=8192, help="tokens of a conversation (%(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=4096, help="length of a reply (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.6, help="0 takes the best token (%(default)s)")
    parser.add_argument("--top-k", type=int, default=20, help="only the best K tokens (%(default)s)")
    parser.add_argument("--top-p", type=float, default=0.95, help="only the best that together have this (%(default)s)")
    parser.add_argument("--system", default="You are a helpful assistant. Think step by step.")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, help="1 for none (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--hide-thinking", action="store_true", help="show the answer only")
    return parser.parse_args()


def show(pieces: Any, thoughts: bool) -> tuple[str, Any]:
    """Print a reply as it appears; return the answer, and how it ended."""
    said, output, inside = "", None, False
    with closing(pieces):
        try:
            for piece in pieces:
                if piece.thinking and thoughts:
                    print(("" if inside else "\n[Thinking]\n") + piece.thinking, end="", flush=True)
                    inside = True
                if piece.text:
                    print(("\n[Answer]\n" if inside else "") + piece.text, end="", flush=True)
                    inside = False
                said += piece.text
                output = piece.output
        except KeyboardInterrupt:
            print("\n(stopped)", end="")
    print()
    return said, output


def main() -> None:
    args = arguments()
    with ExitStack() as stack:
        path = args.model
        if path == "tiny":
            from pygpukit.llm.testing import tiny_model

            path = tiny_model("qwen3", Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tiny")
        engine = LLM(path, tokenizer=args.tokenizer, dtype=args.dtype, max_model_len=args.max_seq_len)
        stack.enter_context(engine)
        params = SamplingParams(
            temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, max_tokens=args.max_new_tokens,
            repetition_penalty=args.repetition_penalty,
        )  # fmt: skip
        thoughts = not args.hide_thinking
        conversation: list[dict[str, str]] = []
        print(f"{engine.name}, thoughts {'shown' if thoughts else 'hidden'}. /clear /think /quit")
        while True:
            try:
                line = input("\nYou: ").strip()
            except (EOFError, KeyboardInterrupt):
                break
            if line == "/quit":
                break
            if line == "/clear":
                conversation.clear()
                print("cleared")
            elif line == "/think":
                thoughts = not thoughts
                print(f"thoughts {'shown' if thoughts else 'hidden'}")
            elif line:
                conversation.append({"role": "user", "content": line})
                print("Assistant: ", end="", flush=True)
                messages = [{"role": "system", "content": args.system}, *conversation]
                said, output = show(engine.chat_stream(messages, params), thoughts)
                # Thoughts are no part of the conversation.
                conversation.append({"role": "assistant", "content": said})
                if output is not None:
                    usage, timing = output.usage, output.timing
                    print(f"[{usage.prompt} tokens of prompt, {usage.completion} of reply in {timing.total:.2f} s]")


if __name__ == "__main__":
    main()
