"""The Mandelbrot set: how many steps of z*z + c each point of the plane stays within a circle of radius 2.

python examples/gallery/mandelbrot.py --picture mandelbrot.png
"""

import argparse

import pygpukit as np


def mandelbrot(width, height, steps):
    """Counts of steps, one per pixel."""
    x = np.linspace(-2.2, 0.8, width)
    y = np.linspace(-1.2, 1.2, height)
    c = x[np.newaxis, :] + 1j * y[:, np.newaxis]
    z = np.zeros_like(c)
    counts = np.zeros(c.shape, dtype="int32")
    for _ in range(steps):
        inside = np.abs(z) <= 2
        z = np.where(inside, z * z + c, z)
        counts += inside
    return counts


def main(arguments=None):
    """Count, print a summary, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=300)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--picture", help="where to write a picture (needs matplotlib)")
    given = parser.parse_args(arguments)
    counts = mandelbrot(given.width, given.height, given.steps)
    members = np.count_nonzero(counts == given.steps)
    print(f"{int(members)} of {counts.size} points did not leave in {given.steps} steps")
    if given.picture:
        import matplotlib.pyplot as plt

        plt.imsave(given.picture, np.log1p(counts).to_numpy(), cmap="magma")
    return counts


if __name__ == "__main__":
    main()
