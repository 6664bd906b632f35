"""k-means: points in groups around centres that move to the mean of their group.

python examples/gallery/k_means.py --picture clusters.png
"""

import argparse

import pygpukit as np


def points_in_groups(count, groups):
    """Points scattered around places on a circle; the same in every run and with NumPy."""
    i = np.arange(count)
    angle = 2 * np.pi * (i % groups) / groups
    radius = 0.55 * np.sqrt((i * 0.7548776662466927) % 1)
    turn = 2 * np.pi * ((i * 0.5698402909980532) % 1)
    x = 1.5 * np.cos(angle) + radius * np.cos(turn)
    y = 1.5 * np.sin(angle) + radius * np.sin(turn)
    return np.stack([x, y], axis=1).astype("float32")


def k_means(points, groups, steps):
    """Centres, and the group of each point."""
    centres = points[:groups].copy() * np.float32(0.3)
    labels = np.zeros(len(points), dtype="int64")
    for _ in range(steps):
        distances = ((points[:, np.newaxis, :] - centres[np.newaxis, :, :]) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)
        sums = np.zeros((groups, 2), dtype="float32")
        np.add.at(sums, labels, points)
        counts = np.bincount(labels, minlength=groups)
        centres = np.where(counts[:, np.newaxis] > 0, sums / np.maximum(counts, 1)[:, np.newaxis], centres)
        centres = centres.astype("float32")
    return centres, labels


def main(arguments=None):
    """Find the groups, print their sizes, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=3000)
    parser.add_argument("--groups", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--picture", help="where to write a picture (needs matplotlib)")
    given = parser.parse_args(arguments)
    points = points_in_groups(given.points, given.groups)
    centres, labels = k_means(points, given.groups, given.steps)
    spread = np.sqrt(((points - centres[labels]) ** 2).sum(axis=1).mean())
    sizes = np.bincount(labels, minlength=given.groups)
    print(f"groups of {sizes.tolist()} points, mean distance {float(spread):.4f}")
    if given.picture:
        import matplotlib.pyplot as plt

        where, middle = points.to_numpy(), centres.to_numpy()
        figure, axes = plt.subplots(figsize=(5, 5))
        axes.scatter(where[:, 0], where[:, 1], c=labels.to_numpy(), s=3, cmap="tab10")
        axes.scatter(middle[:, 0], middle[:, 1], c="black", marker="x")
        figure.savefig(given.picture, dpi=80)
    return centres


if __name__ == "__main__":
    main()
