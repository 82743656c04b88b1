# make demo    the main job on a small trained model, in less than a minute (sardonyx demo)
# make test    lint, types, layers and the test suite; what CI runs
# make test-all  the same with every axis in full (minutes), and the kernels' tests once more with baseline code
# make fuzz    an hour of all fuzzers on every instruction set; findings are kept in build/fuzz
# make check   lint, types and layers only

PYTHON ?= python3
JOBS ?= 2
SECONDS ?= 3600
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# One thread per test worker: the workers already fill the cores.
export OPENBLAS_NUM_THREADS ?= 1
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all fuzz check browser format clean

demo: $(VENV)/core
	$(BIN)/sardonyx demo build/demo

test: check browser
	$(BIN)/python -m pytest -q -n $(JOBS) --timeout 300

test-all: export SARDONYX_TEST_ALL = 1
test-all: test
	SARDONYX_BASELINE=1 $(BIN)/python -m pytest -q -n $(JOBS) --timeout 300 tests/providers/cpu

fuzz: $(VENV)/ready
	$(BIN)/python -m fuzz all --seconds $(SECONDS) --seed $(SEED) --workers $(JOBS) --keep build/fuzz

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Chromium, for the tests of reports, where it can be installed; they are skipped elsewhere.
browser:
	sh tests/report/install_browser.sh

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# onnxruntime is only compared with, so the demo runs without it too.
$(VENV)/core: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[cli]'
	$(PIP) install --editable '.[demo]' || echo "onnxruntime does not install here; the demo runs without the comparison"
	touch $@

$(VENV)/ready: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[test,dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
