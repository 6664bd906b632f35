"""What lies beside a model's weights: tokenizer, chat template, default parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pygpukit.errors import MissingPackageError, ModelLoadError
from pygpukit.llm.gguf_tokenizer import gguf_tokenizer
from pygpukit.llm.loading import Checkpoint, read_json
from pygpukit.llm.sampling import SamplingParams
from pygpukit.llm.tokenizer import Tokenizer

__all__ = ["default_params", "find_tokenizer"]


def find_tokenizer(checkpoint: Checkpoint, given: Any) -> tuple[Tokenizer | None, set[int]]:
    """Return the tokenizer, and the tokens that end a reply by its names; none where there is none, or no package."""
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
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    file = folder / "chat_template.jinja"
    if file.exists():
        if file.stat().st_size > 1 << 20:
            raise ModelLoadError(f"{file} has {file.stat().st_size} bytes, and a template at most 1 MiB")
        template = file.read_text(encoding="utf-8", errors="replace")
    made.chat_template = template if isinstance(template, str) else None
    return made


def default_params(checkpoint: Checkpoint) -> tuple[SamplingParams, set[int]]:
    """Return parameters and ends of a reply by the model's generation_config.json."""
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
