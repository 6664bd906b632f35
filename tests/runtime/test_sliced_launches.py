"""Ranges of blocks as the CUDA driver sees them."""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., str]


def test_every_range_says_where_it_begins_and_what_the_grid_is(run_fake: Run) -> None:
    run_fake("""
import struct
added = [(name, "u32") for name in ("first", "grid_x", "grid_y", "grid_z")]
params = [("x", "*f32"), ("flag", "b1")]
# The numbers begin at the next multiple of four.
variant = lambda: kernel("part", "8,1,4,4,4,4", [*params, *added])
whole = kernel("whole", "8,1", params, slicer=variant)
x = gp.zeros(4, dtype="float32")
before = len(launches())
whole._call_in_slices(5, x, True, grid=(3, 2, 2), block=(32, 2), shared=64)
made = launches()[before:]
assert len(made) == 3, made
found = []
for line in made:
    assert line.startswith("part ") and "block=[32, 2, 1] shared=64" in line, line
    blob = bytes.fromhex(line.split("args=")[1].split()[0])
    assert struct.unpack_from("<Q?", blob) == (x.ptr, True)
    found.append((line.split("grid=")[1].split("]")[0] + "]", *struct.unpack_from("<4I", blob, 12)))
    assert len(blob) == 28
assert found == [("[5, 1, 1]", 0, 3, 2, 2), ("[5, 1, 1]", 5, 3, 2, 2), ("[2, 1, 1]", 10, 3, 2, 2)], found
""")


def test_a_variant_is_asked_for_when_it_is_needed_and_once(run_fake: Run) -> None:
    run_fake("""
asked = []
def variant():
    asked.append(len(asked))
    if len(asked) == 1:
        raise KeyboardInterrupt
    return None
whole = kernel(slicer=variant)
x = gp.zeros(4, dtype="float32")
whole(x, 1.0, 4)
assert asked == []
try:
    whole._call_in_slices(2, x, 1.0, 4, grid=4)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("it did not arrive")
for _ in range(3):
    text = refused(lambda: whole._call_in_slices(2, x, 1.0, 4, grid=4), gp.errors.KernelLaunchError)
    assert "kernel 'scale' cannot be launched in ranges of blocks" in text, text
assert asked == [0, 1]
""")


def test_a_variant_with_other_parameters_is_refused(run_fake: Run) -> None:
    run_fake("""
added = [(name, "u32") for name in ("first", "grid_x", "grid_y", "grid_z")]
params = [("x", "*f32"), ("factor", "f32"), ("n", "i32")]
# What was compiled is not what was written: the kernel has a version that takes no range.
text = refused(lambda: kernel("part", "8,4,4", [*params, *added]), gp.errors.KernelLaunchError)
assert "has 7 parameters, the compiled kernel 3" in text, text
""")


def test_a_recording_is_not_made_in_ranges(run_fake: Run) -> None:
    run_fake("""
whole = kernel(slicer=lambda: None)
x = gp.zeros(4, dtype="float32")
graph = gp.CudaGraph()
with graph.capture():
    whole(x, 1.0, 4)
    text = refused(lambda: whole._call_in_slices(2, x, 1.0, 4), gp.errors.KernelLaunchError)
assert "cannot be recorded in ranges" in text, text
""")
