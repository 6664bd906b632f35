"""A conversation with a model that thinks before it answers, such as Qwen3-4B-Thinking.

    python examples/chat/chat_cli_thinking.py --model Qwen3-4B-Thinking-2507
    python examples/chat/chat_cli_thinking.py --model tiny          # a tiny random model, which says nothing of sense

/clear begins anew, /think shows or hides thoughts, /quit ends, Ctrl-C stops a reply.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack, closing
from typing import Any

import terminal

from pygpukit.llm import LLM, SamplingParams


def arguments() -> argparse.Namespace:
    parser = terminal.parser(
        __doc__, models="folder, .safetensors, .index.json, .gguf", max_seq_len=8192, max_new_tokens=4096,
        temperature=0.6, top_k=20, top_p=0.95, system="You are a helpful assistant. Think step by step.",
        repetition_penalty=1.0,
    )  # fmt: skip
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
            path = terminal.tiny(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = LLM(path, tokenizer=args.tokenizer, dtype=args.dtype, max_model_len=args.max_seq_len)
        stack.enter_context(engine)
        params = SamplingParams(
            temperature=args.temperature, top_k=args.top_k, top_p=args.top_p, max_tokens=args.max_new_tokens,
            repetition_penalty=args.repetition_penalty,
        )  # fmt: skip
        thoughts = not args.hide_thinking
        conversation: list[dict[str, str]] = []
        print(f"{engine.name}, thoughts {'shown' if thoughts else 'hidden'}. /clear /think /quit")

        def think() -> str:
            nonlocal thoughts
            thoughts = not thoughts
            return f"thoughts {'shown' if thoughts else 'hidden'}"

        for line in terminal.typed(conversation, {"/think": think}):
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
