# `make demo` and `make test` need Python 3.11 or newer and nothing else: both set up .venv for themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check format clean

demo: $(READY)
	@echo "== made-up text as token files: examples/data"
	@$(BIN)/python examples/make_data.py
	@echo "== the plan of examples/small.toml"
	@$(BIN)/trivium plan examples/small.toml
	@echo "== what stands in the first row of step 20"
	@$(BIN)/trivium inspect examples/small.toml --step 20 --row 0

test: $(READY)
	@echo "== format and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== tests"
	@$(BIN)/pytest -n auto

check: test

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# torch comes first and by its exact version: resolved together with others, a newer build with gigabytes of
# GPU libraries may be chosen instead.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "== setting up $(VENV) (once, and again when the dependencies change)"
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
