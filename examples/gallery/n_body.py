"""Bodies that attract each other: all pairs in one broadcast expression, moved by the leapfrog method.

python examples/gallery/n_body.py --picture orbits.png
"""

import argparse

import pygpukit as np


def disc(count):
    """A heavy body, and light ones on circular orbits around it; the same in every run and with NumPy."""
    i = np.arange(1, count)
    radius = 0.4 + 0.6 * ((i * 0.6180339887498949) % 1)
    angle = 2 * np.pi * ((i * 0.7548776662466927) % 1)
    speed = 1 / np.sqrt(radius)
    place = np.stack([radius * np.cos(angle), radius * np.sin(angle), 0.02 * np.sin(3 * angle)], axis=1)
    motion = np.stack([-speed * np.sin(angle), speed * np.cos(angle), np.zeros_like(angle)], axis=1)
    place = np.concatenate([np.zeros((1, 3), dtype="float64"), place])
    motion = np.concatenate([np.zeros((1, 3), dtype="float64"), motion])
    mass = np.full(count, 1e-5)
    mass[0] = 1
    return place, motion, mass


def attraction(place, mass):
    """Acceleration of every body by all others, and the potential energy."""
    apart = place[np.newaxis, :, :] - place[:, np.newaxis, :]
    squared = (apart**2).sum(axis=2) + 1e-4
    inverse = 1 / np.sqrt(squared)
    acceleration = np.einsum("ij,ijk,j->ik", inverse**3, apart, mass)
    pairs = np.triu(mass[:, np.newaxis] * mass[np.newaxis, :] * inverse, 1)
    return acceleration, -pairs.sum()


def simulate(count, steps, dt):
    """Places of all bodies at the end, a trace of some, and the energy before and after."""
    place, motion, mass = disc(count)
    acceleration, potential = attraction(place, mass)
    energy = [potential + 0.5 * (mass * (motion**2).sum(axis=1)).sum()]
    trace = []
    for _ in range(steps):
        motion = motion + 0.5 * dt * acceleration
        place = place + dt * motion
        acceleration, potential = attraction(place, mass)
        motion = motion + 0.5 * dt * acceleration
        trace.append(place[:64, :2])
    energy.append(potential + 0.5 * (mass * (motion**2).sum(axis=1)).sum())
    return place, np.stack(trace), energy


def main(arguments=None):
    """Simulate, print how well energy is kept, and draw the orbits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--dt", type=float, default=0.01)
    parser.add_argument("--picture", help="where to write a picture (needs matplotlib)")
    given = parser.parse_args(arguments)
    place, trace, (before, after) = simulate(given.bodies, given.steps, given.dt)
    print(f"energy {float(before):.6f} before, {float(after):.6f} after {given.steps} steps")
    if given.picture:
        import matplotlib.pyplot as plt

        path = trace.to_numpy()
        figure, axes = plt.subplots(figsize=(5, 5))
        axes.plot(path[:, :, 0], path[:, :, 1], linewidth=0.7)
        axes.set_aspect("equal")
        figure.savefig(given.picture, dpi=80)
    return place


if __name__ == "__main__":
    main()
