# One door to everything a maintainer does here. `make` alone lists the targets.
#
# The environment is `.venv`, made by the Python that PYTHON names. It is built anew only when requirements.lock
# changes (or when PYTHON is another version), and every target that needs it makes it first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCK   := requirements.lock

# Two workers, since two cores are what the smallest machine we care for has; whole files, so that a file's fixtures
# are built once. Both can be set on the command line: make test WORKERS=8
WORKERS ?= 2
PYTEST  := $(BIN)/python -m pytest
PIP     := $(BIN)/python -m pip --disable-pip-version-check -qq

# The interpreter is part of the stamp's name: a venv of 3.11 must not pass for one of 3.13.
PY_TAG  := $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
LOCKED  := $(VENV)/.locked-$(PY_TAG)
READY   := $(VENV)/.ready-$(PY_TAG)

# `make -j` must not run the linters and the tests into each other.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help env demo test test-short test-alone test-crash test-sim test-long lint format bench install-systemd coverage lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(READY) ## make the environment in .venv, if the lock file changed

$(LOCKED): $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; say which with: make PYTHON=/path/to/python3 …" >&2; exit 1; }
	@echo "making $(VENV) with Python $(PY_TAG) (about a minute, once)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is needed (Debian: python3-venv)" >&2; exit 1; }
	@# The build backend first and by its pin: nothing below may fetch another one for itself.
	@$(PIP) install "$$(grep '^setuptools==' $(LOCK))"
	@$(PIP) install --no-deps --no-build-isolation --use-pep517 -r $(LOCK)
	@touch $@

# Seconds, not a minute: only the entry point and the version number are written.
$(READY): $(LOCKED) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## watch the daemon at work; ends on Ctrl-C or after DEMO_S seconds
	@$(BIN)/python -m scheduler_daemon.demo

test: $(READY) lint test-short test-alone ## what must pass before a commit: lint and the short suite

test-short: $(READY)
	$(PYTEST) -m "not long and not alone" -n $(WORKERS) --dist loadfile

# Exit code 5 says that no test carries the mark; that is not a failure of this half.
test-alone: $(READY)
	$(PYTEST) -m "alone and not long" || [ $$? -eq 5 ]

test-crash: $(READY) ## every crash point and disk fault, the long ones included
	$(PYTEST) tests/crash -n $(WORKERS) --timeout 3600

test-sim: $(READY) ## the whole daemon on a virtual clock, many seeds
	$(PYTEST) tests/simulation -n $(WORKERS) --timeout 3600

test-long: $(READY) ## every test that is marked long, in all tiers
	$(PYTEST) -m long --timeout 3600

lint: $(READY) ## ruff and basedpyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

format: $(READY) ## let ruff lay out the source
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install-systemd: ## as root: the daemon under /opt with its units; enables and starts nothing
	@PYTHON=$(PYTHON) deploy/systemd/install.sh

bench: $(READY) ## the benchmarks, one JSON line a case; CASES and BENCH_OPTIONS choose
	$(BIN)/python -m tests.benchmarks $(BENCH_OPTIONS) $(CASES)

coverage: $(READY) ## the short suite under coverage, with what it missed
	$(BIN)/python -m coverage run -m pytest -m "not long and not alone"
	$(BIN)/python -m coverage report --show-missing --skip-covered

lock: ## write requirements.lock anew from pyproject.toml (run with the oldest Python)
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install --quiet "$$(sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml)" -e '.[test,lint]'
	@sed -n '/^#/p' $(LOCK) > $(LOCK).new
	@.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip >> $(LOCK).new
	@mv $(LOCK).new $(LOCK) && rm -rf .venv-lock

clean: ## remove the environment, caches and what builds leave
	rm -rf $(VENV) .venv-lock build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage .coverage.*
	find scheduler_daemon rpc_client tests -name __pycache__ -type d -prune -exec rm -rf {} +
