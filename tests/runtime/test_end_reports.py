"""Errors of work in the background that no call has reported: the end of the program writes them to stderr."""

from __future__ import annotations

from collections.abc import Callable


def test_the_end_reports_a_fault_in_the_background(run_python: Callable[..., str]) -> None:
    program = """
import sys
sys.stderr = sys.stdout
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
wild = gp.load_ptx('''
.version 8.0
.target sm_90
.address_size 64
.visible .entry wild(.param .u64 flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    mov.u64 %rd2, 64;
    st.global.u32 [%rd2], %r1;
    ret;
}
''')
flag = gp.zeros(1, dtype="int32")
# It goes on in the background.
wild(flag.ptr, grid=1, block=1)
with gp.Stream():
    flag.fill(1)
while native.busy_threads():
    pass
if SEEN:
    try:
        gp.synchronize()
    except gp.KernelFaultError:
        print("seen")
print("end")
"""
    out = run_python(program.replace("SEEN", "False"))
    assert out.startswith("end\npygpukit: work in the background failed")
    assert "'wild'" in out
    assert run_python(program.replace("SEEN", "True")) == "seen\nend\n"


def test_the_end_reports_a_fault_of_a_gpu(fake_cuda: str, run_python: Callable[..., str]) -> None:
    program = """
import ctypes, os, sys
sys.stderr = sys.stdout
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
fake = ctypes.CDLL(os.environ["PYGPUKIT_LIBCUDA"])
kernel = native.load_kernel(b".entry wild(8)\\n", "wild", "wild", [("x", "*f32")])
kernel(gp.empty(4))
assert fake.fakecuda_configure(b"FAIL", b"cuStreamQuery:1:700:*") == 0
print("end")
"""
    out = run_python(program, PYGPUKIT_DEVICE="cuda", PYGPUKIT_LIBCUDA=fake_cuda)
    assert out.startswith("end\npygpukit: work in the background failed")
    assert "the GPU stopped with a fault" in out
    assert out.count("the GPU stopped with a fault") == 1
