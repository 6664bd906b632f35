"""Text to token ids and back, by the package `tokenizers`; special tokens; text that appears a token at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pygpukit.errors import MissingPackageError
from pygpukit.llm.mapped import MappedFile, file_error

__all__ = ["Detokenizer", "Tokenizer"]

# Ends of a reply that some models do not name in their settings.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
         "</s>", "<EOT>", "<eos>")  # fmt: skip
_LONGEST_FILE = 256 << 20
_UNFINISHED = "\ufffd"
# Tokens that a character may take: bytes that never make one are shown as such.
_LONGEST_CHARACTER = 8


def library() -> Any:
    """Return the package `tokenizers`.

    Raises
    ------
    MissingPackageError
        If it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise MissingPackageError(
            "text needs the package 'tokenizers': pip install 'pygpukit[llm]'; token ids work without it"
        ) from error
    return tokenizers


class Tokenizer:
    """Text to token ids and back. Experimental under its published name: models take ids of any tokenizer.

    Parameters
    ----------
    source : str, path-like or tokenizers.Tokenizer
        A ``tokenizer.json``, or its folder.
    adds_special
        Whether `encode` adds what the model expects before a text, such as the beginning of one.

    Attributes
    ----------
    bos_token_id, eos_token_id : int or None
    """

    def __init__(
        self,
        source: Any,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        adds_special: bool = True,
        chat_template: str | None = None,
    ) -> None:
        if isinstance(source, str | os.PathLike):
            source = _read(Path(source))
        self._tokenizer = source
        self._adds_special = adds_special
        self.bos_token_id, self.eos_token_id, self.chat_template = bos_token_id, eos_token_id, chat_template

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Return the tokenizer that the text of a ``tokenizer.json`` describes.

        Raises
        ------
        ModelFileError
            If it does not describe one.
        """
        return cls(_parse(text, "tokenizer.json"))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, with the special ones."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text.

        Special tokens in the text are taken as such. ``add_special_tokens=False`` is for text of a chat template, which
        has them already.
        """
        special = add_special_tokens and self._adds_special
        if not text.isascii() and (lone := next((c for c in text if "\ud800" <= c <= "\udfff"), None)):
            raise ValueError(f"the text has {lone!a}, half of a character: it was decoded from bytes that are no UTF-8")
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int | None) -> str:
        """Return the text of one token as the vocabulary has it, or nothing for None."""
        return "" if token_id is None else str(self._tokenizer.id_to_token(token_id) or "")

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its text in the vocabulary."""
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def id_to_token(self, token_id: int) -> str | None:
        """Return the text of one token as the vocabulary has it, None for an id that is not there."""
        found = self._tokenizer.id_to_token(token_id)
        return None if found is None else str(found)

    def token_to_id(self, token: str) -> int | None:
        """The same as `token_id`."""
        return self.token_id(token)

    def __len__(self) -> int:
        return self.vocab_size

    def end_ids(self) -> set[int]:
        """Return the tokens that end a reply, as far as the vocabulary names them."""
        ends = {found for name in _ENDS if (found := self.token_id(name)) is not None}
        return ends if self.eos_token_id is None else ends | {self.eos_token_id}


def _read(path: Path) -> Any:
    if path.is_dir():
        path = path / "tokenizer.json"
    library()
    file = MappedFile(path)
    if file.size > _LONGEST_FILE:
        raise file.fail(f"the file has {file.size} bytes; {_LONGEST_FILE} are allowed")
    return _parse(file.read(0, file.size), str(path))


def _parse(text: str | bytes, source: str) -> Any:
    tokenizers = library()
    try:
        return tokenizers.Tokenizer.from_str(text if isinstance(text, str) else text.decode("utf-8"))
    except Exception as error:  # the library raises Exception itself
        raise file_error(source, f"this is no tokenizer: {error}") from error


class Detokenizer:
    """Text of tokens that come one by one: each piece is whole characters, and all pieces make the text.

    Parameters
    ----------
    tokenizer : Tokenizer
    prompt : sequence of int
        What comes before; its end decides how the first token is spaced.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # A few tokens before: how one is spaced depends on its neighbour.
        self._ids = list(prompt[-5:])
        self._start = 0
        self._shown = len(self._ids)

    def add(self, token_id: int) -> str:
        """Return the text that a token adds, nothing while a character is unfinished."""
        self._ids.append(token_id)
        before, after = self._texts()
        pending = len(self._ids) - self._shown
        if len(after) <= len(before) or (after.endswith(_UNFINISHED) and pending < _LONGEST_CHARACTER):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def flush(self) -> str:
        """Return what is left at the end, an unfinished character included."""
        before, after = self._texts()
        self._start, self._shown = self._shown, len(self._ids)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        ids = self._ids[self._start :]
        return self._tokenizer.decode(ids[: self._shown - self._start]), self._tokenizer.decode(ids)
