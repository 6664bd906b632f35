"""Libraries written for the standard, on arrays of the package: each call gives what it gives for NumPy's arrays.

array-api-extra and einops are in every development environment; SciPy and scikit-learn come with the extra `consumers`
(``make test-consumers``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy_oracle import agree, to_host

import pygpukit as gp

# SciPy reads this when it is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 4))
LABELS = (X[:, 0] > 0).astype(np.int64)
GUESSES = (X[:, 1] > 0).astype(np.int64)
TARGET = X @ np.array([1.0, 2.0, 3.0, 4.0])
SIGNAL = RNG.standard_normal(64)
TAPS = np.array([1.0, 2.0, 1.0]) / 4
POSITIVE = np.abs(RNG.random(8)) + 0.05
Call = Callable[..., Any]


def parts(x: Any) -> list[Any]:
    """The arrays and numbers of a result."""
    return [b for a in x for b in parts(a)] if isinstance(x, tuple | list) else [x]


def compare(call: Call, *hosts: np.ndarray[Any, Any], rtol: float = 1e-6) -> None:
    theirs = parts(call(*(h.copy() for h in hosts)))
    ours = parts(call(*(gp.from_numpy(h) for h in hosts)))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, np.ndarray):
            assert isinstance(a, gp.GPUArray)
            assert (a.shape, str(a.dtype.name)) == (b.shape, b.dtype.name)
        np.testing.assert_allclose(to_host(a), b, rtol=rtol, atol=1e-9)


def attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


EINOPS: dict[str, Call] = {
    "rearrange": lambda e, x: e.rearrange(x, "(a b) c -> a (b c)", a=4),
    "reduce mean": lambda e, x: e.reduce(x, "(a b) c -> a c", "mean", a=4),
    "reduce max": lambda e, x: e.reduce(x, "a b -> b", "max"),
    "repeat": lambda e, x: e.repeat(x, "a b -> a n b", n=3),
    "pack": lambda e, x: e.pack([x, x[:, :2]], "a *")[0],
    "unpack": lambda e, x: e.unpack(x, [(1,), (3,)], "a *"),
    "a list": lambda e, x: e.rearrange([x, x], "n a b -> a (n b)"),
}


@pytest.mark.parametrize("name", EINOPS)
def test_einops(device: str, name: str) -> None:
    einops = pytest.importorskip("einops.array_api")
    compare(lambda x: EINOPS[name](einops, x), X)


EXTRA: dict[str, Call] = {
    "apply_where": lambda m, x: m.apply_where(x > 0, x, lambda a: a**0.5, fill_value=0.0),
    "at add": lambda m, x: m.at(x, (slice(None), 0)).add(1.0),
    "at set": lambda m, x: m.at(x, x > 0).set(0.0),
    "atleast_nd": lambda m, x: m.atleast_nd(x, ndim=3),
    "cov": lambda m, x: m.cov(x),
    "create_diagonal": lambda m, x: m.create_diagonal(x[0, :]),
    "isclose": lambda m, x: m.isclose(x, x + 1e-9),
    "kron": lambda m, x: m.kron(x[:2, :], x[:3, :]),
    "nan_to_num": lambda m, x: m.nan_to_num(x),
    "nunique": lambda m, x: m.nunique(x),
    "pad": lambda m, x: m.pad(x, 2),
    "setdiff1d": lambda m, x: m.setdiff1d(x[:, 0], x[:5, 0]),
    "sinc": lambda m, x: m.sinc(x),
    "union1d": lambda m, x: m.union1d(x[:, 0], x[:, 1]),
}


@pytest.mark.parametrize("name", EXTRA)
def test_array_api_extra(device: str, name: str) -> None:
    extra = pytest.importorskip("array_api_extra")
    compare(lambda x: EXTRA[name](extra, x), X)


def test_array_api_compat(device: str) -> None:
    compat = pytest.importorskip("array_api_compat")
    x = gp.from_numpy(X)
    assert compat.is_array_api_obj(x)
    assert compat.array_namespace(x, 1.0) is gp.array_api
    assert compat.device(x) == x.device
    assert compat.size(x) == X.size
    assert compat.to_device(x, x.device) is x
    assert not compat.is_lazy_array(x)
    assert not compat.is_numpy_array(x)


SCIPY: dict[str, tuple[Call, tuple[Any, ...]]] = {
    "special.logsumexp": (lambda f, x: f(x), (SIGNAL,)),
    "special.softmax": (lambda f, x: f(x), (SIGNAL,)),
    "special.log_softmax": (lambda f, x: f(x, axis=1), (X,)),
    "special.xlogy": (lambda f, x: f(x, x), (POSITIVE,)),
    "special.rel_entr": (lambda f, x: f(x, x + 0.1), (POSITIVE,)),
    "fft.fft": (lambda f, x: f(x), (SIGNAL,)),
    "fft.rfft2": (lambda f, x: f(x), (X,)),
    "fft.irfft": (lambda f, x: f(x), (SIGNAL,)),
    "fft.fht": (lambda f, x: f(x, 0.1, 1.0), (SIGNAL,)),
    "signal.fftconvolve": (lambda f, x, k: f(x, k), (SIGNAL, TAPS)),
    "signal.oaconvolve": (lambda f, x, k: f(x, k), (SIGNAL, TAPS)),
    "signal.convolve": (lambda f, x, k: f(x, k, method="fft"), (SIGNAL, TAPS)),
    "signal.correlate": (lambda f, x, k: f(x, k, method="fft"), (SIGNAL, TAPS)),
    "signal.freqz": (lambda f, k: f(k), (TAPS,)),
    "signal.hilbert": (lambda f, x: f(x), (SIGNAL,)),
    "signal.envelope": (lambda f, x: f(x), (SIGNAL,)),
    "signal.resample": (lambda f, x: f(x, 32), (SIGNAL,)),
    "signal.get_window": (lambda f, x: f("hann", 8, xp=x.__array_namespace__()), (SIGNAL,)),
    "signal.vectorstrength": (lambda f, x: f(x, 2.0), (SIGNAL,)),
    "stats.zscore": (lambda f, x: f(x), (X,)),
    "stats.skew": (lambda f, x: f(x), (X,)),
    "stats.kurtosis": (lambda f, x: f(x), (X,)),
    "stats.describe": (lambda f, x: tuple(f(x)[2:]), (X,)),
    "stats.gmean": (lambda f, x: f(x), (POSITIVE,)),
    "stats.sem": (lambda f, x: f(x), (X,)),
    "stats.variation": (lambda f, x: f(x), (X,)),
    "stats.iqr": (lambda f, x: f(x), (SIGNAL,)),
    "stats.mode": (lambda f, x: tuple(f(x)), (LABELS,)),
    "stats.trim_mean": (lambda f, x: f(x, 0.1), (SIGNAL,)),
    "stats.rankdata": (lambda f, x: f(x), (SIGNAL,)),
    "stats.circmean": (lambda f, x: f(x), (SIGNAL,)),
    "stats.false_discovery_control": (lambda f, x: f(x), (POSITIVE / 2,)),
    "stats.differential_entropy": (lambda f, x: f(x), (SIGNAL,)),
    "cluster.vq.whiten": (lambda f, x: f(x), (X,)),
    "integrate.trapezoid": (lambda f, y: f(y), (SIGNAL,)),
    "integrate.cumulative_trapezoid": (lambda f, y: f(y), (SIGNAL,)),
    "integrate.tanhsinh": (lambda f, p: f(lambda x: x**2, p * 0, p).integral, (POSITIVE,)),
    "differentiate.derivative": (lambda f, p: f(lambda x: x**3, p).df, (POSITIVE,)),
    "optimize.elementwise.find_root": (
        lambda f, p: f(lambda x, c: x**2 - c, (p * 0, p * 0 + 2), args=(p,)).x,
        (POSITIVE,),
    ),
    "spatial.transform.Rotation": (lambda f, q, x: f.from_quat(q).apply(x), (X, X[:, :3])),
    "spatial.transform.Rotation.from_rotvec": (lambda f, x: f(x).as_matrix(), (X[:, :3],)),
}


@pytest.mark.consumers
@pytest.mark.parametrize("name", SCIPY)
def test_scipy(name: str) -> None:
    module, _, function = name.rpartition(".")
    if module == "spatial.transform.Rotation":
        module, function = "spatial.transform", "Rotation.from_rotvec"
    found = attribute(pytest.importorskip(f"scipy.{module}"), function)
    call, hosts = SCIPY[name]
    with gp.device("cpu"):
        compare(lambda *arrays: call(found, *arrays), *hosts)


@pytest.fixture
def dispatch() -> Any:
    """scikit-learn with its dispatch on."""
    sklearn = pytest.importorskip("sklearn")
    with sklearn.config_context(array_api_dispatch=True), gp.device("cpu"):
        yield


ESTIMATORS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "preprocessing.StandardScaler": ({}, ("transform", "mean_")),
    "preprocessing.MinMaxScaler": ({}, ("transform",)),
    "preprocessing.MaxAbsScaler": ({}, ("transform",)),
    "preprocessing.Normalizer": ({}, ("transform",)),
    "preprocessing.PolynomialFeatures": ({}, ("transform",)),
    "decomposition.PCA": ({"n_components": 2, "svd_solver": "full"}, ("explained_variance_", "mean_")),
    "decomposition.PCA covariance": (
        {"n_components": 2, "svd_solver": "covariance_eigh"},
        ("explained_variance_", "singular_values_"),
    ),
    "linear_model.Ridge": ({"solver": "svd"}, ("coef_", "predict")),
    "linear_model.RidgeClassifier": ({"solver": "svd"}, ("decision_function", "predict")),
    "linear_model.LogisticRegression": ({}, ("coef_", "predict", "predict_proba")),
    "discriminant_analysis.LinearDiscriminantAnalysis": ({}, ("transform", "predict", "predict_proba")),
    "naive_bayes.GaussianNB": ({}, ("predict_proba", "theta_")),
    "kernel_approximation.Nystroem": ({"n_components": 4, "random_state": 0}, ("transform",)),
}


@pytest.mark.consumers
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_of_scikit_learn(dispatch: None, name: str) -> None:
    module, _, made = name.split()[0].rpartition(".")
    found = getattr(pytest.importorskip(f"sklearn.{module}"), made)
    options, results = ESTIMATORS[name]

    def call(x: Any, y: Any) -> list[Any]:
        estimator = found(**options).fit(x, y)
        values = [getattr(estimator, r) for r in results]
        return [v(x) if callable(v) else v for v in values]

    # An iterative solver stops a step earlier or later where sums are rounded in another order.
    compare(call, X, TARGET if made == "Ridge" else LABELS, rtol=1e-4 if made == "LogisticRegression" else 1e-6)


@pytest.mark.consumers
@pytest.mark.parametrize("name", ["accuracy_score", "f1_score", "confusion_matrix", "balanced_accuracy_score"])
def test_scores_of_scikit_learn(dispatch: None, name: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    compare(getattr(metrics, name), LABELS, GUESSES)


@pytest.mark.consumers
@pytest.mark.parametrize("name", ["mean_squared_error", "r2_score", "mean_absolute_error", "max_error"])
def test_losses_of_scikit_learn(dispatch: None, name: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    compare(getattr(metrics, name), TARGET, TARGET + X[:, 0])


@pytest.mark.consumers
@pytest.mark.parametrize("name", ["cosine_similarity", "euclidean_distances", "rbf_kernel", "manhattan_distances"])
def test_distances_of_scikit_learn(dispatch: None, name: str) -> None:
    pairwise = pytest.importorskip("sklearn.metrics.pairwise")
    compare(getattr(pairwise, name), X, X + 0.5)


def test_nothing_is_converted_to_numpy_unasked() -> None:
    x = gp.from_numpy(X)
    with pytest.raises(TypeError, match="to_numpy"):
        np.asarray(x)
    agree(lambda n, x: n.sum(x), X)
