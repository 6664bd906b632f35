"""Filters on a picture: Gaussian blur with two passes, edges by differences, and a low-pass filter by FFT.

python examples/gallery/image_filter.py --picture filters.png
"""

import argparse

import pygpukit as np


def test_picture(size):
    """Rings that get finer towards the edge, and a square."""
    axis = np.linspace(-1, 1, size, dtype="float32")
    x, y = np.meshgrid(axis, axis)
    rings = 0.5 + 0.5 * np.cos(40 * (x * x + y * y))
    rings[size // 8 : size // 3, size // 8 : size // 3] = 1
    return rings


def blur(image, radius):
    """Gaussian blur: weighted sums of shifted rows, then of shifted columns; edges are repeated."""
    offsets = np.arange(-radius, radius + 1).astype("float32")
    weights = np.exp(-0.5 * (offsets / (radius / 2)) ** 2)
    weights = weights / weights.sum()
    for axis in (0, 1):
        width = [(radius, radius) if i == axis else (0, 0) for i in range(2)]
        padded = np.pad(image, width, mode="edge")
        windows = [np.take(padded, np.arange(k, k + image.shape[axis]), axis=axis) for k in range(2 * radius + 1)]
        image = np.tensordot(weights, np.stack(windows), axes=1)
    return image


def edges(image):
    """Length of the gradient, by central differences."""
    down, right = np.gradient(image)
    return np.hypot(down, right)


def low_pass(image, keep):
    """Only frequencies below a share of the highest one."""
    spectrum = np.fft.rfft2(image)
    rows = np.abs(np.fft.fftfreq(image.shape[0]))[:, np.newaxis]
    columns = np.fft.rfftfreq(image.shape[1])[np.newaxis, :]
    spectrum[np.hypot(rows, columns) > keep / 2] = 0
    return np.fft.irfft2(spectrum, s=image.shape)


def main(arguments=None):
    """Filter, print figures, and draw the four pictures side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--radius", type=int, default=6)
    parser.add_argument("--picture", help="where to write a picture (needs matplotlib)")
    given = parser.parse_args(arguments)
    image = test_picture(given.size)
    results = [image, blur(image, given.radius), edges(image), low_pass(image, 0.15)]
    for name, result in zip(("picture", "blurred", "edges", "low-pass"), results, strict=True):
        print(f"{name:>9}: mean {float(result.mean()):.4f}, deviation {float(result.std()):.4f}")
    combined = np.concatenate([r / r.max() for r in results], axis=1)
    if given.picture:
        import matplotlib.pyplot as plt

        plt.imsave(given.picture, combined.to_numpy(), cmap="gray")
    return combined


if __name__ == "__main__":
    main()
