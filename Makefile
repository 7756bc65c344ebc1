# Uses the active virtual environment, or makes .venv.
VENV := $(if $(VIRTUAL_ENV),$(VIRTUAL_ENV),.venv)
BIN := $(VENV)/bin
READY := $(VENV)/.fedjax_nc-ready
METHOD ?= fedetf
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: run test slow check setup docs bench
run: $(READY)  ## train METHOD on the default dataset
	$(BIN)/python experiments/run.py --method="$(METHOD)"

test: $(READY)  ## the default tests
	$(PYTEST)

slow: $(READY)  ## whole commands, kill and resume, real CIFAR-10
	$(PYTEST) -m slow

check: $(READY)  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(READY)  ## docs/methods.md from the methods' docstrings, docs/layers.svg from the import table
	$(BIN)/python -m fedjax_nc.cli.manual > docs/methods.md
	$(BIN)/python docs/layers.py

bench: $(READY)  ## seconds per round of the fixed workload
	$(BIN)/python benchmarks/throughput.py

setup: $(READY)  ## install into the environment

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)
