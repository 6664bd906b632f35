"""The benchmark: what it refuses to time, what it writes and reads, and when it calls a row slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.benchmark import main, operators, products, results
from pygpukit.benchmark.timing import Timer
from pygpukit.benchmark.work import Options, Row, Work, distance

SMALL = ["--gemm", "--sizes", "24", "--rounds", "2"]


@pytest.mark.parametrize("name", list(products.PRECISIONS))
def test_every_precision_is_checked_against_float64(name: str) -> None:
    work = products._square(Options(), 40, name)
    assert work.error <= work.tolerance
    assert work.nbytes > 0
    assert work.calls[0]().shape == (40, 40)


def test_a_peer_that_does_not_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> tuple[Any, ...]:
        raise RuntimeError("no such kernel")

    assert Options().tried("gemm fp8", broken) == ()
    assert "no peer for gemm fp8: RuntimeError: no such kernel" in capsys.readouterr().err


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    assert main([*SMALL, "--save", str(path)]) == 0
    return path


def test_a_run_is_written_and_read_back(saved: Path) -> None:
    run = results.Run.load(saved)
    (row,) = run.rows
    assert (row.name, row.flops, row.nbytes) == ("gemm float32 24", 2 * 24**3, 3 * 24 * 24 * 4)
    assert len(row.ours) == len(row.peer) == 2
    assert row.error <= row.tolerance
    assert set(run.ceilings) == {"copy", "read", "float32"}
    assert row.of_roofline(run.ceilings) > 0
    again = saved.with_name("again.json")
    run.save(again)
    assert again.read_text() == saved.read_text()


def test_a_wrong_product_is_not_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = gp.matmul

    def wrong(a: Any, b: Any, **options: Any) -> Any:
        return gp.add(right(a, b), 1.0)

    monkeypatch.setattr(gp, "matmul", wrong)
    monkeypatch.setattr(gp, "explain", lambda *args, **options: type("Explained", (), {"variant": ""}))
    assert main([*SMALL, "--no-peer"]) == 1
    assert "wrong result" in capsys.readouterr().out


def test_nan_is_a_wrong_result() -> None:
    assert distance([np.nan], [1.0]) == np.inf
    assert distance([1.0, 2.0], [1.0]) == np.inf
    assert distance([1.1, 1.0], [1.0, 1.0]) == pytest.approx(0.1 / np.sqrt(2))


def test_rows_of_operators_come_from_the_registry() -> None:
    names = [row.name for row in operators.ops(Options(sizes=(64,)))]
    assert len(names) == len(set(names))
    assert {"op add float32 64", "op gcd int32 64"} <= set(names)
    assert any(name.startswith("op sum float32 256x16384 axis=0") for name in names)


@pytest.mark.parametrize("name", ["add", "log", "where", "gcd", "isnan", "real"])
def test_an_elementwise_row_agrees_with_its_reference(name: str) -> None:
    options = Options(sizes=(100,))
    row = next(row for row in operators.ops(options) if row.name.startswith(f"op {name} "))
    work = row.prepare()
    assert work.error <= work.tolerance
    assert work.nbytes > 0


def test_large_problems_are_checked_by_their_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_CHECKED", 50)
    row = next(row for row in operators.ops(Options(sizes=(400,))) if row.name.startswith("op exp "))
    assert row.prepare().error == 0.0
    monkeypatch.setattr(gp, "exp", gp.expm1)
    assert row.prepare().error > 0.1


def test_a_layer_is_multiplied_as_it_is_stored() -> None:
    options = Options()
    work = products._layer(options, 40, 56, "float32")
    assert work.error <= work.tolerance
    assert work.nbytes == 4 * (40 * 56 + 40)
    np.testing.assert_allclose(work.calls[0]().to_numpy(), work.peer[0](), rtol=1e-5)


def row_of(*seconds: float, name: str = "a") -> results.Measurement:
    return results.Measurement(name, "gemm", "float32", seconds, (), 1, 1)


def run_of(*rows: results.Measurement, device: str = "d") -> results.Run:
    return results.Run({"device": device, "pygpukit": "0"}, {"copy": 1.0, "read": 1.0}, rows)


def test_a_change_beyond_the_noise_is_told_from_one_within() -> None:
    old = run_of(row_of(*(1.0 + 0.01 * i for i in range(15))))
    (slower,) = results.compare(old, run_of(row_of(*(1.3 + 0.01 * i for i in range(15)))))
    assert slower.ratio == pytest.approx(1.37 / 1.07)
    assert slower.low < slower.ratio < slower.high
    assert slower.is_slower(5.0)
    assert not slower.is_slower(40.0)
    (noisy,) = results.compare(old, run_of(row_of(*(0.8, 1.5) * 8)))
    assert not noisy.is_slower(5.0)
    (faster,) = results.compare(old, run_of(row_of(*(0.5,) * 9)))
    assert not faster.is_slower(0.0)


def test_only_rows_of_both_runs_are_compared() -> None:
    old = run_of(row_of(1.0), row_of(1.0, name="gone"))
    new = run_of(row_of(1.0), row_of(1.0, name="new"), results.Measurement("failed", "gemm", "", failure="wrong"))
    assert [change.name for change in results.compare(old, new)] == ["a"]
    with pytest.raises(ValueError, match="measured on d, this one on e"):
        results.compare(old, run_of(row_of(1.0), device="e"))


def test_a_regression_is_exit_status_1(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(saved.read_text())
    content["rows"][0]["ours"] = [1e-12] * 5
    saved.write_text(json.dumps(content))
    assert main([*SMALL, "--compare", str(saved)]) == 0
    assert main([*SMALL, "--compare", str(saved), "--fail-on-regression", "10"]) == 1
    assert "slower beyond the noise: gemm float32 24" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "is not a result"),
        ("[]", "is not a result"),
        ('{"schema": 9}', "schema 9, this version reads 1"),
        ('{"schema": 1, "machine": {}, "ceilings": {}, "rows": [{"ours": [], "peer": [], "x": 1}]}', "is not a result"),
        ('{"schema": 1, "machine": {}, "ceilings": {}, "rows": [{"ours": ["a"], "peer": []}]}', "could not convert"),
    ],
)
def test_foreign_files_are_refused(
    tmp_path: Path, content: str, match: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    assert main([*SMALL, "--compare", str(path)]) == 2
    assert match in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--gemm", "--dtypes", "int3"], "int3"),
        (["--gemm", "--only", "nothing like it"], "no row has"),
        (["--gemm", "--rounds", "0"], "--rounds must be at least 1"),
        (["--fail-on-regression"], "needs --compare"),
        (["--gemm", "--compare", "missing.json"], "missing.json"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], match: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert match in capsys.readouterr().err


def test_sizes_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--sizes", "0"])
    assert "at least 1" in capsys.readouterr().err


def test_the_table_and_the_picture(saved: Path, tmp_path: Path) -> None:
    run = results.Run.load(saved)
    lines = results.markdown(run).splitlines()
    assert lines[-1].startswith("| gemm float32 24 | ")
    assert len({line.count("|") for line in lines[-3:]}) == 1
    pytest.importorskip("matplotlib")
    from pygpukit.benchmark.plot import draw

    draw(run, tmp_path / "roofline.svg")
    assert (tmp_path / "roofline.svg").stat().st_size > 1000


def test_ours_and_the_peer_take_turns() -> None:
    order: list[str] = []
    timer = Timer(Options(), rounds=3)
    timer._on_host = lambda calls: lambda: (order.append(calls[0]()), 1.0)[1]  # type: ignore[method-assign,assignment]
    ours, peer = timer.measure([lambda: "ours"], [lambda: "peer"])
    assert order == ["ours", "peer"] * 5
    assert len(ours.seconds) == 3
    assert peer is not None


def test_a_row_without_peer() -> None:
    row = Row("r", "ops", "", lambda: Work((lambda: None,), (), 0.0, 0.0, 8))
    ours, peer = Timer(Options(peer=False), rounds=2).measure(row.prepare().calls)
    assert peer is None
    assert all(second > 0 for second in ours.seconds)


def test_attention_of_given_lengths(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert main(["--attention", "--seq-lens", "40", "--dtypes", "float32", "--rounds", "1", "--save", str(path)]) == 0
    rows = results.Run.load(path).rows
    assert [row.name for row in rows] == [f"attention {what} float32 40" for what in ("prompt", "token", "token paged")]
    assert all(row.error <= row.tolerance and row.flops > 0 for row in rows)


@pytest.fixture(scope="module")
def engine_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, results.Measurement]:
    path = tmp_path_factory.mktemp("llm") / "run.json"
    assert main(["--llm", "--sizes", "1,3", "--seq-lens", "48", "--rounds", "2", "--save", str(path)]) == 0
    return {row.name.removeprefix("llm "): row for row in results.Run.load(path).rows}


def test_an_engine_is_timed_by_itself(engine_rows: dict[str, results.Measurement]) -> None:
    levels = [f"decode {batch} {level}" for level in ("batch_invariant", "run_to_run") for batch in (1, 3)]
    others = [f"beside one {what} {part}" for what in ("decoding", "prefilling") for part in ("p50", "p99")]
    requests = ["prefix hit 160", "serving 24", "load", *others]
    assert list(engine_rows) == [
        "layer products 48", "prefill 48", *requests, *levels, "decode 1 fp8", "decode 1 int4",
    ]  # fmt: skip
    # Beside a prompt that is not in the cache, a static batch, a copy.
    assert all(min(*row.ours, *row.peer) > 0 for row in map(engine_rows.get, requests) if row is not None)
    assert all(engine_rows[a].seconds <= engine_rows[b].seconds for a, b in (others[:2], others[2:]))
    assert results.cells(engine_rows["serving 24"], {"copy": 1.0, "read": 1.0})[4] == ""
    decode, prefill = engine_rows["decode 3 batch_invariant"], engine_rows["prefill 48"]
    assert (decode.tokens, prefill.tokens, len(decode.ours), len(prefill.ours)) == (3, 48, 2, 2)
    # One layer has 64 x 128, 64 x 64, 64 x 192 and 96 x 64 weights, the head 512 x 64.
    weights = 2 * (64 * 128 + 64 * 64 + 64 * 192 + 96 * 64)
    keys = 3 * 2 * 2 * (24 + 24 // 2) * 2 * 16
    least = 4 * (weights + 512 * 64 + keys)
    assert least < decode.nbytes < 1.02 * least
    attended = 4 * 2 * 4 * 16 * (48 * 49 // 2)
    assert 1.0 <= prefill.flops / (2 * 48 * weights + 2 * 512 * 64 + attended) < 1.02
    assert engine_rows["layer products 48"].flops == 48 * weights


def test_probabilities_of_an_engine_are_checked(engine_rows: dict[str, results.Measurement]) -> None:
    assert all(row.error <= row.tolerance for row in engine_rows.values())
    assert engine_rows["decode 3 batch_invariant"].error == 0.0


def test_what_batch_invariance_costs(engine_rows: dict[str, results.Measurement]) -> None:
    lines = results.invariance(list(engine_rows.values()))
    assert [line.split(":")[0] for line in lines] == ["llm decode 1", "llm decode 3"]
    rows = [row_of(2.0, name="llm decode 8 batch_invariant"), row_of(1.5, name="llm decode 8 run_to_run")]
    rows = [results.Measurement(row.name, "llm", "float32", row.ours, (), 1, 1, tokens=8) for row in rows]
    assert results.invariance(rows) == ["llm decode 8: batch_invariant has 0.750 of run_to_run's rate"]
    assert results.cells(rows[0], {"copy": 1.0, "read": 1.0})[3] == "4 tokens/s"


def test_a_given_model_is_measured(tmp_path: Path) -> None:
    from pygpukit.llm.testing import tiny_gguf

    model, path = tiny_gguf(tmp_path / "mine.gguf"), tmp_path / "run.json"
    arguments = ["--llm", "--model", str(model), "--sizes", "2", "--seq-lens", "32", "--rounds", "1"]
    assert main([*arguments, "--only", "decode", "--save", str(path)]) == 0
    rows = results.Run.load(path).rows
    assert [row.name for row in rows] == ["llm decode 2 batch_invariant", "llm decode 2 run_to_run"]
    assert rows[0].variant.startswith("mine float32")
    assert main([*arguments[:2], str(tmp_path / "none.gguf")]) == 2
