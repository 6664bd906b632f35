"""Conway's Game of Life on a torus: a glider gun's pattern, or any text of dots and letters.

python examples/gallery/game_of_life.py --picture life.png
"""

import argparse

import pygpukit as np

GUN = """
........................O...........
......................O.O...........
............OO......OO............OO
...........O...O....OO............OO
OO........O.....O...OO..............
OO........O...O.OO....O.O...........
..........O.....O.......O...........
...........O...O....................
............OO......................
"""


def board(height, width, pattern):
    """An empty board with a pattern near its upper left corner."""
    rows = pattern.split()
    cells = np.zeros((height, width), dtype="bool")
    cells[4 : 4 + len(rows), 4 : 4 + len(rows[0])] = np.array([[cell == "O" for cell in row] for row in rows])
    return cells


def step(cells):
    """The next generation: a cell lives with three neighbours, or with two if it lived."""
    alive = cells.astype("uint8")
    neighbours = np.zeros_like(alive)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            if down or right:
                neighbours += np.roll(alive, (down, right), axis=(0, 1))
    return (neighbours == 3) | (cells & (neighbours == 2))


def main(arguments=None):
    """Run some generations, print how many cells live, and draw where cells have lived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--height", type=int, default=64)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--generations", type=int, default=120)
    parser.add_argument("--picture", help="where to write a picture (needs matplotlib)")
    given = parser.parse_args(arguments)
    cells = board(given.height, given.width, GUN)
    age = np.zeros(cells.shape, dtype="float32")
    for _ in range(given.generations):
        cells = step(cells)
        age = np.where(cells, 1, age * 0.95)
    print(f"{int(cells.sum())} cells live after {given.generations} generations")
    if given.picture:
        import matplotlib.pyplot as plt

        plt.imsave(given.picture, age.to_numpy(), cmap="viridis")
    return cells


if __name__ == "__main__":
    main()
