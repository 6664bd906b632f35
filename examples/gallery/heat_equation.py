"""The heat equation on a plate: hot spots spread while the edges stay cold.

Each step adds a fifth of the sum of differences to the four neighbours, written with slices of the inner points.

python examples/gallery/heat_equation.py --picture heat.png
"""

import argparse

import pygpukit as np


def plate(size):
    """A cold plate with a hot disc and a hot bar."""
    y, x = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    disc = (x - 0.3 * size) ** 2 + (y - 0.35 * size) ** 2 < (0.14 * size) ** 2
    heat = np.where(disc, 1, 0).astype("float32")
    heat[size * 3 // 5 : size * 3 // 5 + size // 16, size // 4 : -size // 8] = 0.8
    return heat


def diffuse(heat, steps):
    """The plate after a number of steps; its edges keep their temperature."""
    for _ in range(steps):
        inner = heat[1:-1, 1:-1]
        change = heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:] - 4 * inner
        heat[1:-1, 1:-1] = inner + np.float32(0.2) * change
    return heat


def main(arguments=None):
    """Spread the heat, print what is left of it, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--picture", help="where to write a picture (needs matplotlib)")
    given = parser.parse_args(arguments)
    heat = diffuse(plate(given.size), given.steps)
    print(f"mean {float(heat.mean()):.4f}, hottest {float(heat.max()):.4f} after {given.steps} steps")
    if given.picture:
        import matplotlib.pyplot as plt

        plt.imsave(given.picture, heat.to_numpy(), cmap="inferno")
    return heat


if __name__ == "__main__":
    main()
