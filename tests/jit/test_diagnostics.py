"""What a compile error shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pygpukit.errors import KernelCompileError
from pygpukit.jit.diagnostics import compile_error

SOURCE = "__global__ void k(float* x) {\n    int y = z;\n\tx[0] = foo(y);\n}\n"
LOG = """\
k.cu(2): error: identifier "z" is undefined
      int y = z;
              ^

k.cu(3): error: identifier "foo" is undefined
  \tx[0] = foo(y);
  \t       ^

h.cuh(2): error #20-D: identifier "q" is undefined
   return q;
          ^

k.cu(3): warning #177-D: variable "y" was declared but never referenced
3 errors detected in the compilation of "k.cu".
"""


def explain(log: str, source: str = SOURCE, **headers: str) -> KernelCompileError:
    return compile_error(log, name="k", file="k.cu", source=source, headers=headers, options=["-a", "-b"])


def test_lines_carets_log_and_options() -> None:
    error = compile_error(
        LOG, name="k", file="k.cu", source=SOURCE, headers={"h.cuh": "int f() {\n return q;\n}"}, options=["-a", "-b"]
    )
    text = str(error)
    assert "kernel 'k' does not compile" in text
    assert (
        'line 2: identifier "z" is undefined\n'
        "  1 | __global__ void k(float* x) {\n"
        "> 2 |     int y = z;\n"
        "    |             ^\n"
        "  3 | \tx[0] = foo(y);\n"
    ) in text
    assert "> 3 | \tx[0] = foo(y);\n    | \t       ^\n" in text
    assert "h.cuh, line 2: identifier" in text
    assert "> 2 |  return q;\n    |         ^\n" in text
    assert LOG.splitlines()[0] in text
    assert text.endswith("Options: -a -b")
    assert (error.line, error.log, error.options, error.source) == (2, LOG, ("-a", "-b"), SOURCE)


def test_only_the_first_errors_are_shown_at_length() -> None:
    error = explain("".join(f"k.cu({line}): error: bad\n" for line in (1, 2, 3, 4, 4)))
    assert "... and 2 more errors" in str(error)
    assert str(error).count("> ") == 3


def test_a_long_log_is_cut_in_the_text_and_whole_in_the_attribute() -> None:
    log = "".join(f"note {i}\n" for i in range(500))
    error = explain(log)
    assert "440 more lines" in str(error)
    assert error.log == log
    assert error.line is None


def test_an_error_in_a_header_has_no_line_in_the_source() -> None:
    assert explain("other.h(2): error: bad\n").line is None


def test_hints() -> None:
    missing = explain('k.cu(1): catastrophic error: could not open source file "cuda_fp16.h" (no directories)\n')
    assert missing.line == 1
    assert 'headers={"cuda_fp16.h": ...}' in str(missing)
    assert "#include <cstdint>" in str(explain('k.cu(1): error: identifier "int64_t" is undefined\n'))
    assert "--upgrade" in str(explain("nvrtc: error: invalid value for --gpu-architecture (-arch)\n"))
    assert "defines=" in str(explain("__nv_nvrtc_builtin_header.h(3): error: expected an identifier\n"))


def test_an_empty_log_is_said_to_be_empty() -> None:
    assert "(empty)" in str(explain(""))


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_log_makes_an_error(log: str, source: str) -> None:
    error = explain(f"k.cu(1): error: {log}\nk.cu(99999): error: x\n{log}", source)
    assert "Options:" in str(error)
