# Uses the active virtual environment, or makes .venv.
VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
PYTHON ?= python3
READY := $(VENV)/.fedjax_nc-ready
METHOD ?= fedetf
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# Tests start many processes. Where Python may not keep its bytecode, as in some containers, each of
# them compiles all of jax from source: five seconds instead of two.
unexport PYTHONDONTWRITEBYTECODE
# every layer of the package, in a minute on two cores
FAST := layers losses datasets partition augment executors run bad_input

.PHONY: run test fast slow check setup docs bench
run: $(READY)  ## train METHOD on the default dataset
	$(BIN)/python experiments/run.py --method="$(METHOD)"

test: $(READY)  ## the default tests
	$(PYTEST)

fast: $(READY)  ## a selection of them that touches every layer
	$(PYTEST) $(FAST:%=tests/test_%.py)

slow: $(READY)  ## whole commands, kill and resume, real CIFAR-10
	$(PYTEST) -n 4 -o addopts="-q --strict-markers" -m slow --durations=25  # shapes are checked by the others

check: $(READY)  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(READY)  ## docs/methods.md from docstrings, layers.svg from the import table, fidelity.md from trajectories
	$(BIN)/python -m fedjax_nc.cli.manual > docs/methods.md
	$(BIN)/python docs/layers.py
	$(BIN)/python docs/fidelity.py

bench: $(READY)  ## seconds per round of the fixed workload
	$(BIN)/python benchmarks/throughput.py

setup: $(READY)  ## install into the environment

$(READY): pyproject.toml constraints.txt constraints-3.13.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	pins=$$($(BIN)/python -c 'import sys; print("constraints-%d.%d.txt" % sys.version_info[:2])'); \
	test -f $$pins || pins=constraints.txt; \
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c $$pins -e ".[dev]"
	touch $(READY)
