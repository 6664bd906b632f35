"""The CUDA program of a ring: all handlers, with their messages and states, compiled into one persistent kernel."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pygpukit.dtypes import dtype
from pygpukit.errors import RingError
from pygpukit.ring.kernel import RingKernel, find_kernel, find_subscribers
from pygpukit.ring.kinds import Kind, kind_of
from pygpukit.ring.layout import Layout
from pygpukit.ring.message import Message, require_fixed
from pygpukit.ring.tables import PLACE_WORDS, assertions

__all__ = ["HEADER_WORDS", "MOST_BYTES", "Handler", "Program", "name_handlers"]

HEADER_WORDS = 12
"""Words of 4 bytes in a header."""

MOST_THREADS = 1024 - 32
"""Threads of a handler."""

MOST_BYTES = 4096
"""Of a message to or from a device actor: blocks keep several in their shared memory."""

# Shared memory of a block, without what the kernel needs whatever the messages are.
_SHARED_BYTES = 48 * 1024 - 4096

_NAME = re.compile(r'\b(send|find)\s*\(\s*"([^"\\\n]*)"')
_TOPIC = re.compile(r'\bpublish\s*\(\s*"([^"\\\n]*)"')
_DYNAMIC = re.compile(r"\b(reply|reply_to|send_to)\s*\(")
_ENTRY = re.compile(r"\b(handle|handle_batch)\s*\(")
_UNMARKED = re.compile(r"__device__\s+(?=(?:inline\s+)?void\s+handle(?:_batch)?\s*\()")
_NUMBERED = re.compile(r"\bhandler ([0-9]+)\b")
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


# Words that cannot be names in CUDA C++, and names of types that every handler has.
_TAKEN = re.compile(
    "alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char16_t|char32_t|char8_t|class|"
    "co_await|co_return|co_yield|compl|concept|const|const_cast|consteval|constexpr|constinit|continue|decltype|"
    "default|delete|do|double|dynamic_cast|else|enum|explicit|export|extern|false|float|for|friend|goto|if|inline|"
    "int|long|mutable|namespace|new|noexcept|not|not_eq|nullptr|operator|or|or_eq|private|protected|public|"
    "register|reinterpret_cast|requires|return|short|signed|sizeof|static|static_assert|static_cast|struct|switch|"
    "template|this|thread_local|throw|true|try|typedef|typeid|typename|union|unsigned|using|virtual|void|volatile|"
    "wchar_t|while|xor|xor_eq|Context|State"
)


def _is_usable(name: str) -> bool:
    """Can something be called so in CUDA C++?"""
    return name.isascii() and _TAKEN.fullmatch(name) is None


def _check_names(one: type[Message], where: str) -> None:
    for what, name in (("is called", one.__name__), *(("has a field", name) for name in one._kinds)):
        if not _is_usable(name):
            raise RingError(
                f"{where} has messages that are structs of CUDA C++, where {name!r} is no name, and {one.__name__} "
                f"{what} {name!r}; call it otherwise"
            )


@dataclass(frozen=True)
class Handler:
    """What actors with the same source, messages and state have in common, whomever they name."""

    source: str
    """With numbers for names."""
    input_type: type[Message]
    output_type: type[Message] | None
    state: Layout | None = field(compare=False)
    state_source: str
    initial: bytes
    """The state an actor begins with."""
    takes_batches: bool
    names: tuple[str, ...] = field(compare=False)
    """Actors that the source names, by their numbers."""
    answers: bool
    """Does it send to actors that it does not name?"""
    others: tuple[type[Message], ...] = field(default=())
    """Messages of the actors it names, and of those that subscribe to its topics."""
    topics: tuple[str, ...] = field(default=(), compare=False)
    """Topics that it publishes to, by their numbers after those of the names."""

    @classmethod
    def of(cls, kernel: RingKernel) -> Handler:
        """Read a kernel's source and check what device actors must have.

        Raises
        ------
        RingError
            If there is no source, or no handler in it.
        MessageError
            If a message has no fixed layout.
        """
        where = f"device actor {kernel.kernel_id!r}"
        source = inspect.cleandoc(kernel.function.__doc__ or "")
        code = _COMMENTS.sub(" ", source)
        entries = {match.group(1) for match in _ENTRY.finditer(code)}
        if not entries:
            raise RingError(
                f"{where} has no handler: its docstring must be CUDA C++ with '__device__ void handle(const In& in, "
                "Out& out, State& state, Context& ctx)' or 'handle_batch(const Batch& batch, State& state, "
                "Context& ctx)'"
            )
        if len(entries) > 1:
            raise RingError(f"{where} has both handle and handle_batch; write one of them")
        if kernel.grid_size != 1 and ("handle_batch" in entries or kernel.dedicated is False):
            why = "handle_batch is for one block" if "handle_batch" in entries else "it shares blocks (dedicated=False)"
            raise RingError(f"{where} asks for grid_size={kernel.grid_size}, but {why}")
        if kernel.block_size > MOST_THREADS:
            raise RingError(
                f"{where} asks for block_size={kernel.block_size}, and {MOST_THREADS} is the most: one warp of its "
                "block fetches messages"
            )
        batches = "handle_batch" in entries
        if kernel.input_type is None:
            raise RingError(f"{where} needs an input_type: its messages are structs")
        for one in (kernel.input_type, kernel.output_type):
            if one is not None:
                _check_names(one, where)
            if one is not None and require_fixed(one, where).itemsize > MOST_BYTES:
                raise RingError(
                    f"{where} has messages of {require_fixed(one, where).itemsize} bytes ({one.__name__}), and "
                    f"{MOST_BYTES} is the most; keep the data in device memory and send where it is"
                )
        if kernel.output_type is None and batches:
            raise RingError(f"{where} needs an output_type: handle_batch gives a result for every message")
        if batches and kernel.every is not None:
            raise RingError(
                f"{where} has handle_batch, which gives a result for every message, and a tick asks for none; leave "
                f"every={kernel.every!r} out, or let an actor with handle have the timer"
            )
        if batches and kernel.dedicated is False:
            raise RingError(f"{where} has handle_batch, which needs a block of its own; leave dedicated out")
        names = tuple(dict.fromkeys(match.group(2) for match in _NAME.finditer(source)))
        topics = tuple(dict.fromkeys(_TOPIC.findall(source)))
        named = _NAME.sub(lambda m: f"{m[1]}(ring::Name{{{names.index(m[2])}u}}", source)
        layout, initial = _state(kernel)
        return cls(
            source=_TOPIC.sub(lambda m: f"publish(ring::Topic{{{len(names) + topics.index(m[1])}u}}", named),
            input_type=kernel.input_type,
            output_type=kernel.output_type,
            state=layout,
            state_source="" if layout is None else layout.source(),
            initial=initial,
            takes_batches=batches,
            names=names,
            answers=_DYNAMIC.search(code) is not None,
            others=_types_of(names, topics),
            topics=topics,
        )

    @property
    def words(self) -> int:
        """Words of the largest message it takes or gives, header included."""
        types = [one for one in (self.input_type, self.output_type, *self.others) if one is not None]
        return max(HEADER_WORDS + require_fixed(one, "a device actor").itemsize // 4 for one in types)


def _types_of(names: Iterable[str], topics: Iterable[str]) -> tuple[type[Message], ...]:
    """Messages that the actors of these names and topics take, as far as they are defined."""
    kernels: list[RingKernel] = []
    for name in names:
        with contextlib.suppress(RingError):
            kernels.append(find_kernel(name))
    for topic in topics:
        kernels += [kernel for kernel in find_subscribers(topic) if kernel.kind == "device"]
    found: dict[type[Message], None] = {}
    for kernel in kernels:
        # What does not fit is refused where its actor is launched.
        one = kernel.input_type
        if one is None or not one.is_fixed or not all(map(_is_usable, (one.__name__, *one._kinds))):
            continue
        if require_fixed(one, "a device actor").itemsize <= MOST_BYTES:
            found[one] = None
    return tuple(found)


def _state(kernel: RingKernel) -> tuple[Layout | None, bytes]:
    """Layout and first bytes of a kernel's state."""
    if not kernel.state:
        return None, b""
    kinds: dict[str, Kind] = {}
    values: dict[str, Any] = {}
    for name, given in kernel.state.items():
        if not str(name).isidentifier() or not _is_usable(str(name)):
            raise RingError(
                f"state of {kernel.kernel_id!r} has a field {name!r}, which is no name in CUDA C++; call it otherwise"
            )
        annotation = given
        if isinstance(given, np.ndarray | np.generic):
            values[name] = given
            annotation = _annotation_of(given)
        try:
            kinds[name] = kind_of(annotation)
        except TypeError as error:
            raise RingError(f"field {name!r} of the state of {kernel.kernel_id!r}: {error}") from error
        if not kinds[name].is_fixed:
            raise RingError(
                f"field {name!r} of the state of {kernel.kernel_id!r} is {kinds[name].text}; give a number type, a "
                "fixed shape such as gp.float32[64], or a NumPy array to begin with"
            )
    layout = Layout("State", kinds)
    begin = np.zeros(1, layout.dtype)
    for name, value in values.items():
        begin[0][name] = value
    return layout, begin.tobytes()


def _annotation_of(value: np.ndarray[Any, Any] | np.generic) -> Any:
    kind = dtype(value.dtype)
    return kind[value.shape] if value.shape else kind


def name_handlers(text: str, users: Mapping[int, str]) -> str:
    """A text of the compiler, or of the device, with ids of actors in place of the numbers of handlers."""

    def name(match: re.Match[str]) -> str:
        user = users.get(int(match[1]))
        return match[0] if user is None else f"handler of {user!r}"

    return _NUMBERED.sub(name, text)


class Program:
    """Handlers in the order they came; the number of a handler never changes."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []

    def add(self, handler: Handler) -> int:
        """The handler's number; a new one if there is no equal one yet."""
        for number, known in enumerate(self.handlers):
            if known == handler:
                return number
        self.handlers.append(handler)
        return len(self.handlers) - 1

    @property
    def stride(self) -> int:
        """Words of the largest message, a multiple of 4."""
        most = max((handler.words for handler in self.handlers), default=PLACE_WORDS)
        return -(-max(most, PLACE_WORDS) // 4) * 4

    def source(self, threads: int, groups: bool) -> str:
        """The whole program, for blocks of at most so many threads, and actors with several of them or not."""
        messages: dict[int, type[Message]] = {}
        for handler in self.handlers:
            for one in (handler.input_type, handler.output_type, *handler.others):
                if one is not None:
                    messages[one.type_id] = one
        # Messages read together, three times, and what is left for runs of batches, twice.
        look = next((many for many in (8, 4, 2) if 12 * many * self.stride <= 8192), 1)
        largest = max(require_fixed(one, "a device actor").itemsize for one in messages.values())
        run = (_SHARED_BYTES - 12 * look * self.stride - largest) // 2048 * 1024
        sizes = {
            "RING_LOOK": look,
            "RING_STRIDE": self.stride,
            "RING_OUT": largest,
            "RING_RUN": run,
            "RING_NARROW": int(threads <= 64),
            "RING_GROUPS": int(groups),
        }
        includes: dict[str, None] = {f"#define {name} {size}": None for name, size in sizes.items()}
        includes["#include <pygpukit/ring_kernel.cuh>"] = None
        structs = "".join(_in_namespace(f"m_{number:08x}", one._layout, includes) for number, one in messages.items())
        traits = "".join(
            f"template <> struct TypeOf<m_{number:08x}::{one.__name__}> {{ static const u32 value = {number:#x}u; }};\n"
            for number, one in messages.items()
        )
        actors = "".join(self._actor(number, handler, includes) for number, handler in enumerate(self.handlers))
        return (
            "\n".join(includes)
            + "\n"
            + assertions()
            + structs
            + f"namespace ring {{\n{traits}struct Nothing {{}};\n}}\n"
            + actors
            + self._dispatch()
            + f'extern "C" __global__ void __launch_bounds__({threads}) '
            + "ring_kernel(ring::Engine* engine, unsigned long long launch) {\n"
            + "    ring::run<Program>(engine, launch);\n}\n"
        )

    def _actor(self, number: int, handler: Handler, includes: dict[str, None]) -> str:
        """A namespace with everything a handler sees."""
        types = dict.fromkeys(one for one in (handler.input_type, handler.output_type, *handler.others) if one)
        lines = [f"namespace k{number} {{", "using ring::Context;"]
        taken: set[str] = set()
        for one in types:
            if one.__name__ not in taken:
                lines.append(f"using {one.__name__} = ::m_{one.type_id:08x}::{one.__name__};")
                taken.add(one.__name__)
        lines.append(f"using In = ::{_path(handler.input_type)};")
        out = "ring::Nothing" if handler.output_type is None else _path(handler.output_type)
        lines.append(f"using Out = ::{out};")
        if handler.takes_batches:
            lines.append("using Batch = ring::Batch<In, Out>;")
        if handler.state is None:
            lines.append("struct State {};")
        else:
            body, heads = _split_includes(handler.state_source)
            includes.update(dict.fromkeys(heads))
            lines.append(body)
        # A context whose address is passed on would be in memory: handlers are part of the loop.
        source = _UNMARKED.sub("__device__ __forceinline__ ", handler.source)
        lines += [f'#line 1 "handler {number}"', source, '#line 1 "ring"', "}", ""]
        return "\n".join(lines)

    def _dispatch(self) -> str:
        one, many, batches, types, sizes = "", "", [], "", ""
        for number, handler in enumerate(self.handlers):
            state = f"*(k{number}::State*)ctx.state"
            if handler.takes_batches:
                many += (
                    f'#line 1 "call of handle_batch with batch, state and ctx, handler {number}"\n'
                    f"        case {number}: {{ k{number}::Batch batch; batch.run = run; batch.size = run.size; "
                    f"k{number}::handle_batch(batch, {state}, ctx); break; }}\n"
                )
                batches.append(f"type == {number}")
                assert handler.output_type is not None
                size = require_fixed(handler.output_type, "a device actor").itemsize
                types += f"        if (type == {number}) return {handler.output_type.type_id:#x}u;\n"
                sizes += f"        if (type == {number}) return {size}u;\n"
            else:
                one += (
                    f'#line 1 "call of handle with in, out, state and ctx, handler {number}"\n'
                    f"        case {number}: k{number}::handle(*(const k{number}::In*)(&ctx.header() + 1), "
                    f"*(k{number}::Out*)ctx.out(), {state}, ctx); break;\n"
                )
        return (
            "struct Program {\n"
            "    static __device__ __forceinline__ void dispatch(unsigned type, ring::Context& ctx) {\n"
            f"        switch (type) {{\n{one}        default: break;\n        }}\n    }}\n"
            "    static __device__ __forceinline__ void dispatch_batch(unsigned type, ring::Context& ctx, "
            "ring::Run& run) {\n"
            f"        switch (type) {{\n{many}        default: break;\n        }}\n    }}\n"
            "    static __device__ __forceinline__ bool takes_batches(unsigned type) { return "
            f"{' || '.join(batches) or 'false'}; }}\n"
            f"    static __device__ unsigned reply_type(unsigned type) {{\n{types}        return 0;\n    }}\n"
            f"    static __device__ unsigned reply_bytes(unsigned type) {{\n{sizes}        return 0;\n    }}\n"
            "};\n"
        )


def _path(one: type[Message]) -> str:
    return f"m_{one.type_id:08x}::{one.__name__}"


def _split_includes(source: str) -> tuple[str, list[str]]:
    lines = source.splitlines()
    heads = [line for line in lines if line.startswith("#include")]
    return "\n".join(line for line in lines if not line.startswith("#include")), heads


def _in_namespace(name: str, layout: Layout | None, includes: dict[str, None]) -> str:
    assert layout is not None
    body, heads = _split_includes(layout.source())
    includes.update(dict.fromkeys(heads))
    return f"namespace {name} {{\n{body}\n}}\n"
