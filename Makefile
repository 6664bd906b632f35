# `make help` explains the targets. Python and Rust are all a fresh machine needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUNDLE ?=
BUNDLES := src/pygpukit/kernels/bundles
WHEEL_LIMIT := 6000000
PYTEST_ARGS ?= -n auto
# Tests of what runs on streams; they run a second time with the CPU device's work put off as long as is legal. What
# kernels of operators compute is the same then, and so is what these others look at; some choose their streams themselves.
# tests/conftest.py leaves out those that run programs in processes of their own.
DEFERRED := $(wildcard tests/runtime tests/array tests/gpu tests/scheduler) \
	$(addprefix --deselect tests/,gpu/test_elementwise.py gpu/test_casts.py gpu/test_type_pairs.py gpu/test_linear.py \
	gpu/test_wgmma.py gpu/test_matmul_routes.py runtime/test_kernel_cache.py \
	scheduler/test_process.py scheduler/test_requests.py)

RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name 'Cargo.toml')
EXTENSION := $(wildcard src/pygpukit/_pygpukit_rust*.so src/pygpukit/_pygpukit_rust*.pyd)

# Package downloads are retried, and pyo3 builds against the environment's interpreter.
export PIP_RETRIES := 10
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
# Hundreds of processes import the package and the tests: their compiled form is kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help env build demo test lint types rust-test deferred-test py-test test-consumers test-gpu test-sanitizer \
	test-eviction gpu-bundle bench wheel dist-test docs clean force

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The dependencies are read from pyproject.toml, so that the environment is complete before the first build.
REQUIREMENTS = $(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*p["dependencies"], *p["optional-dependencies"][sys.argv[1]], sep="\n")'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(REQUIREMENTS) dev > $(VENV)/dev.txt
	$(BIN)/python -m pip install --quiet --retries 10 -r $(VENV)/dev.txt
	@touch $@

$(VENV)/.built: $(VENV)/.installed $(RUST_SOURCES) $(if $(EXTENSION),,force)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --quiet
	@touch $@

env: $(VENV)/.installed ## Make the virtual environment in .venv

build: $(VENV)/.built ## Build the Rust extension into the environment

demo: build ## Run the guided demo on whichever device this machine has
	$(BIN)/pygpukit demo

# The extension is built beside the first checks, which leave processors idle. Tests run alone: they measure time.
test: ## Everything a change must pass: lint, types, Rust tests, Python tests (no GPU)
	@$(MAKE) -j2 build lint types
	@$(MAKE) rust-test
	@$(MAKE) deferred-test
	@$(MAKE) py-test

lint: env ## Check style: ruff, rustfmt, clippy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cargo fmt --all --check
	cargo clippy --locked --quiet --workspace --all-targets -- -D warnings

types: env ## Check types with mypy --strict
	$(BIN)/mypy

# The binding crate is tested from Python: its test binary would have to link libpython.
rust-test: ## Run the Rust tests
	cargo test --locked --quiet --workspace --exclude pygpukit-python

deferred-test: build ## Run the stream tests with work deferred, which shows missing waits
	$(if $(DEFERRED),PYGPUKIT_DEVICE=cpu PYGPUKIT_STREAMS=deferred:1 $(BIN)/python -m pytest $(PYTEST_ARGS) -q $(DEFERRED))

py-test: build ## Run the Python tests on the CPU device
	PYGPUKIT_DEVICE=cpu $(BIN)/python -m pytest $(PYTEST_ARGS)

# SciPy and scikit-learn take 160 MB, so they are no part of the environment that tests need.
test-consumers: build ## Run the libraries that are written for the array API standard on our arrays
	$(REQUIREMENTS) consumers > $(VENV)/consumers.txt
	$(BIN)/python -m pip install --quiet --retries 10 -r $(VENV)/consumers.txt
	PYGPUKIT_DEVICE=cpu $(BIN)/python -m pytest -q -n 0 tests/array_api/test_consumers.py

test-gpu: ## Run the CUDA tests with a Python that has the extension (PYTHON=...)
	PYTHONPATH=src $(PYTHON) -m pytest -m cuda tests

test-sanitizer: ## Run the CUDA tests under compute-sanitizer, every array an allocation of its own (PYTHON=...)
	$(PYTHON) tests/gpu/under_sanitizer.py

# The sanitizer's host backtraces hold Python's frames, and with them arrays that should be gone.
test-eviction: ## Run a random program over evicted arrays under compute-sanitizer (PYTHON=..., STRESS="--steps 300")
	compute-sanitizer --report-api-errors no --show-backtrace no --error-exitcode 9 \
		$(PYTHON) tests/gpu/eviction_stress.py $(STRESS)

gpu-bundle: build ## Compile all built-in kernels for sm_90a, without a GPU
	@mkdir -p $(BUNDLES)
	$(BIN)/pygpukit cache export $(BUNDLES)/sm_90a.zip --arch 90a

bench: ## Measure the core on this machine's GPU (PYTHON=...)
	PYTHONPATH=src $(PYTHON) benchmarks/core.py

# The wheel holds exactly the bundles asked for, whatever gpu-bundle left behind.
wheel: build ## Build a wheel; BUNDLE="80 86 89 90a 100 120" adds compiled kernels for these architectures
	rm -rf $(BUNDLES) dist
	$(if $(BUNDLE),mkdir -p $(BUNDLES); for arch in $(BUNDLE); do \
		$(BIN)/pygpukit cache export $(BUNDLES)/sm_$$arch.zip --arch $$arch || exit 1; done)
	$(BIN)/maturin build --release --quiet --out dist
	@for wheel in dist/*.whl; do size=$$(wc -c < $$wheel); echo "$$wheel: $$size bytes"; \
		if [ -z "$(BUNDLE)" ] && [ $$size -gt $(WHEEL_LIMIT) ]; then \
		echo "error: the wheel is over the limit of $(WHEEL_LIMIT) bytes" >&2; exit 1; fi; done

dist-test: wheel ## Build sdist and wheel, install each into an empty environment, and run a smoke test there
	$(BIN)/maturin sdist --out dist
	$(BIN)/python tests/dist/check.py dist/*.whl dist/*.tar.gz

docs: build ## Build the documentation into site/
	$(REQUIREMENTS) docs > $(VENV)/docs.txt
	$(BIN)/python -m pip install --quiet --retries 10 -r $(VENV)/docs.txt
	$(BIN)/mkdocs build --strict

clean: ## Remove everything the targets above made
	rm -rf $(VENV) target build dist site $(BUNDLES) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/pygpukit/_pygpukit_rust*.so src/pygpukit/_pygpukit_rust*.pyd
	find src tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
