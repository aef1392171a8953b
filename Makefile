# `make demo` and `make test` need Python 3.11 or newer and nothing else: both set up .venv for themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo docs recipes test test-fast check format clean browser slurm torchtitan chaos fuzz

# Stopped by Ctrl-C it ends with 3, or before training with 130, which is no failure: `make demo` again goes on.
demo: $(READY)
	@$(BIN)/trivium demo || case $$? in 3 | 130) ;; *) exit 1 ;; esac

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

# The small twin of every published recipe, trained to its end: a few minutes. The tests do the same.
recipes: $(READY)
	@$(BIN)/python examples/recipes/twin.py examples/recipes/*.toml --out twins
	@for config in twins/*/*.toml; do $(BIN)/trivium train $$config run.folder=twins/runs || exit 1; done

test: $(READY) browser slurm torchtitan
	@echo "== format and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== tests"
	@$(BIN)/pytest -n auto --dist worksteal

# What is quick: no end-to-end tests, no browser.
test-fast: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/pytest -n auto --dist worksteal -m "not slow" --hypothesis-profile fast

check: test

# Runs that are killed and told to stop at random moments, and what they leave in the end beside undisturbed ones; the
# tests do four kills. `make chaos KILLS=50 SEED=7 JOBS=2 SCENARIOS="jax copy"` does others, two scenarios at once.
chaos: $(READY)
	@$(BIN)/python -m tests.chaos.run --kills $(or $(KILLS),200) --seed $(or $(SEED),0) --jobs $(or $(JOBS),1) $(SCENARIOS)

# 2,000 changed inputs of every kind that is read; the tests read 60 of each. `make fuzz CASES=200 SEED=7` reads others.
# After them, examples of Hypothesis that no run before had.
fuzz: $(READY)
	@$(BIN)/python -m tests.fuzz.run --cases $(or $(CASES),2000) --seed $(or $(SEED),0)
	@$(BIN)/pytest -n auto --dist worksteal -m hypothesis --hypothesis-profile random

# The tests of pages need a real browser. Debian's chromium is installed where that is allowed; elsewhere these
# tests are skipped, unless TRIVIUM_NEEDS_BROWSER is set, with which they fail.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable $$TRIVIUM_CHROMIUM; do \
		command -v $$name >/dev/null && exit 0; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== chromium, for the tests of pages"; \
		apt-get update -qq && \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
		echo "== no chromium: the tests of pages are skipped. Install it, or name one in TRIVIUM_CHROMIUM."; \
	fi

# The script for clusters is tested on a real one, of one node. Debian's Slurm is installed where that is allowed;
# elsewhere the test is skipped, unless TRIVIUM_NEEDS_SLURM is set, with which it fails.
slurm:
	@if command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null; then \
		exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "== Slurm, for the test of the script for clusters"; \
		apt-get update -qq && \
			DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
				slurmctld slurmd slurm-client munge >/dev/null; \
	else \
		echo "== no Slurm: the test of the script for clusters is skipped. Install slurmctld, slurmd and munge."; \
	fi

# The adapter for torchtitan is tested with torchtitan 0.3, which asks for older packages than ours: it has a folder of
# its own beside .venv. Where pip cannot fetch it the tests are skipped, unless TRIVIUM_NEEDS_TORCHTITAN is set.
torchtitan: $(READY)
	@$(BIN)/python -m tests.support.titan_env

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
	rm -rf $(VENV) .venv-torchtitan .mypy_cache .pytest_cache .ruff_cache
