"""One compiled kernel image as bytes: the key it is found by, and a checked file format for caches and bundles."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgpack  # type: ignore[import-untyped]

try:
    # hashlib's module of the same function loads OpenSSL, which takes longer than everything else here.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["Entry", "ImageKind", "Summary", "blake2b", "decode", "encode", "image_key", "is_key", "summarize"]

ImageKind = Literal["cubin", "ptx"]

# Part of every key: a change of what an image means makes all older ones misses.
_FORMAT = 1
_MAGIC = b"PGKIMG2\n"
_PREFIX = struct.Struct("<8sIQ32s")  # magic, header bytes, image bytes, digest of all that follows
_MAX_HEADER = 4 << 20
_MAX_LOG = 16 << 10
_KEY_BYTES = 32
_KEY = re.compile(f"[0-9a-f]{{{2 * _KEY_BYTES}}}")


class Entry(NamedTuple):
    """A compiled image and what is known about it.

    Attributes
    ----------
    key : str
        What it is found by (`image_key`).
    name : str
        Name for people.
    arch : str
        Architecture it is compiled for, such as ``"90a"``.
    kind : str
        ``"cubin"`` or ``"ptx"``.
    image : bytes
        What the driver loads.
    lowered : mapping of str to str
        Name expression to the name of the entry point in the image.
    log : str
        Warnings of the compiler.
    created : float
        Seconds since the epoch.
    """

    key: str
    name: str
    arch: str
    kind: ImageKind
    image: bytes
    lowered: Mapping[str, str] = MappingProxyType({})
    log: str = ""
    created: float = 0.0


class Summary(NamedTuple):
    """What the head of an encoded entry claims; the digest is not checked."""

    key: str
    name: str
    arch: str
    created: float


def image_key(
    source: str,
    *,
    headers: Mapping[str, str],
    options: Sequence[str],
    arch: str,
    expressions: Sequence[str],
    kind: ImageKind,
    compiler: str,
) -> str:
    """Hash of everything that decides what an image is; 64 hexadecimal digits.

    Parameters
    ----------
    compiler : str
        Version of the compiler for a cache; ``""`` in a bundle, which is used whatever compiler is there.
    """
    digest = blake2b(digest_size=_KEY_BYTES)

    def add(*texts: str) -> None:
        # Length first, so that no two lists of texts give the same bytes.
        digest.update(len(texts).to_bytes(8, "little"))
        for text in texts:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)

    add(str(_FORMAT), source, arch, kind, compiler)
    add(*options)
    add(*expressions)
    add(*(part for name in sorted(headers) for part in (name, headers[name])))
    return digest.hexdigest()


def is_key(text: str) -> bool:
    """Whether a text has the form of a key."""
    return _KEY.fullmatch(text) is not None


def encode(entry: Entry) -> bytes:
    """Bytes of an entry, for a file of its own or a member of a bundle."""
    header: bytes = msgpack.packb(
        {
            "key": entry.key,
            "name": entry.name,
            "arch": entry.arch,
            "kind": entry.kind,
            "created": entry.created,
            "lowered": dict(entry.lowered),
            "log": entry.log[:_MAX_LOG],
        }
    )
    digest = _digest(header, entry.image)
    return _PREFIX.pack(_MAGIC, len(header), len(entry.image), digest) + header + entry.image


def decode(data: bytes, key: str) -> Entry:
    """Check and read an encoded entry.

    Raises
    ------
    ValueError
        If the bytes are not exactly one intact entry with this key; the text says what is wrong.
    """
    header_size, image_size, digest = _prefix(data)
    if len(data) != _PREFIX.size + header_size + image_size:
        expected = _PREFIX.size + header_size + image_size
        raise ValueError(f"{len(data)} bytes are there, the head says {expected}")
    header = data[_PREFIX.size : _PREFIX.size + header_size]
    image = data[_PREFIX.size + header_size :]
    if _digest(header, image) != digest:
        raise ValueError("the content does not match its digest")
    fields = _fields(header)
    if fields["key"] != key:
        raise ValueError(f"it holds key {fields['key']}, not {key}")
    lowered = fields.get("lowered")
    if not isinstance(lowered, dict) or not all(isinstance(x, str) for pair in lowered.items() for x in pair):
        raise ValueError("its entry names are not texts")
    kind, log = fields.get("kind"), fields.get("log")
    if kind not in ("cubin", "ptx") or not isinstance(log, str):
        raise ValueError(f"it is of kind {kind!r}, not cubin or ptx")
    return Entry(key, fields["name"], fields["arch"], kind, image, lowered, log, float(fields["created"]))


def summarize(head: bytes) -> Summary:
    """Read the head of an encoded entry, for listings.

    Raises
    ------
    ValueError
        If `head` does not begin with the whole head of an entry.
    """
    header_size, _, _ = _prefix(head)
    header = head[_PREFIX.size : _PREFIX.size + header_size]
    if len(header) != header_size:
        raise ValueError("the head is cut off")
    fields = _fields(header)
    return Summary(fields["key"], _printable(fields["name"]), _printable(fields["arch"]), float(fields["created"]))


def _prefix(data: bytes) -> tuple[int, int, bytes]:
    if len(data) < _PREFIX.size:
        raise ValueError(f"{len(data)} bytes are too few for an entry")
    magic, header_size, image_size, digest = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("it does not begin like an entry of this version")
    if header_size > _MAX_HEADER:
        raise ValueError(f"its head of {header_size} bytes is larger than {_MAX_HEADER}")
    return header_size, image_size, digest


def _fields(header: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(header)
    except (ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"its head cannot be read: {error or type(error).__name__}") from None
    if not isinstance(fields, dict):
        raise ValueError("its head is not an object")
    for name in ("key", "name", "arch"):
        if not isinstance(fields.get(name), str):
            raise ValueError(f"its head has no text '{name}'")
    created = fields.get("created")
    if isinstance(created, bool) or not isinstance(created, (int, float)) or not 0 <= created < 1e12:
        raise ValueError("its head has no time 'created'")
    return fields


def _printable(text: str) -> str:
    """A text from a file as a terminal may show it."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])


def _digest(header: bytes, image: bytes) -> bytes:
    digest = blake2b(header, digest_size=32)
    digest.update(image)
    return digest.digest()
