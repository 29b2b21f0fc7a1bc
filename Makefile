# Two commands do everything on a fresh clone: `make demo` and `make test`.
#
# Works as root and as a user, from a folder of any name, as often as you like.
# PYTHON=/path/to/python picks the interpreter, VENV=folder the environment.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
DEMO_OUT ?= demo-out
# real recordings for the demo; it makes its own where this folder is not there
DEMO_DATA ?= ../shared/data

.PHONY: help demo test lint types unit docs linkcheck bench bench-quick bench-check bench-page fuzz test-adapters clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo           install, ingest recordings, train on them (the first thing to run)'
	@echo 'make test           install, lint, types, doctests, tests, documentation'
	@echo 'make docs           build the documentation into docs/_build/html'
	@echo 'make bench          run every benchmark, write the page; make bench-NAME runs benchmarks/NAME.py'
	@echo 'make bench-quick    the same in minutes; make bench-check fails where a ratio got worse'
	@echo 'make fuzz           longer random testing than make test does'
	@echo 'make test-adapters  test fastai, tsai and Lightning in an environment of their own'
	@echo 'make clean          remove environments, caches and built pages'

# --- environments ---------------------------------------------------------------------------

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "chunkstore needs Python 3.11 or newer: install it ('apt-get install python3 python3-venv' on Debian 12 and later), or say where it is: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "chunkstore needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip --version >/dev/null || { rm -rf $(VENV); echo "'$(PYTHON) -m venv' does not work here: on Debian and Ubuntu run 'apt-get install python3-venv' (as root), then try again"; exit 1; }

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing chunkstore and what the demo needs (a few minutes the first time) ...'
	@$(PIP) -e '.[all]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'installing chunkstore and what its tests need (a few minutes the first time) ...'
	@$(PIP) -e '.[test,docs]'
	@touch $@ $(VENV)/.demo

# --- the two commands -----------------------------------------------------------------------

demo: $(VENV)/.demo
	$(BIN)/python -m chunkstore.cli demo --out $(DEMO_OUT) --data $(DEMO_DATA) --overwrite

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(VENV)/.test
	$(BIN)/python -m mypy

unit: $(VENV)/.test
	$(BIN)/python -m pytest

# --- documentation --------------------------------------------------------------------------

docs: $(VENV)/.test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo 'open docs/_build/html/index.html'

linkcheck: $(VENV)/.test
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

# --- longer work ----------------------------------------------------------------------------

# Peers that cannot be installed become stated gaps of the tables.
bench: $(VENV)/.test
	-$(BIN)/python -m benchmarks.setup
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/.test
	$(BIN)/python -m benchmarks --quick

bench-check: $(VENV)/.test
	$(BIN)/python -m benchmarks.check

bench-page: $(VENV)/.test
	$(BIN)/python -m benchmarks.page

bench-%: $(VENV)/.test
	$(BIN)/python -m benchmarks.$*

fuzz: $(VENV)/.test
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -m 'not cluster' tests

# fastai, tsai and Lightning need a torch of their own and several gigabytes; warnings are theirs.
$(VENV)-adapters/.installed: pyproject.toml requirements-adapters.txt | $(BIN)/python
	@echo 'installing fastai, tsai and Lightning with their torch (several gigabytes, the first time only) ...'
	@test -x $(VENV)-adapters/bin/python || $(PYTHON) -m venv $(VENV)-adapters
	@$(VENV)-adapters/bin/python -m pip install -q --disable-pip-version-check -r requirements-adapters.txt -e '.[audio]'
	@touch $@

test-adapters: $(VENV)-adapters/.installed
	$(VENV)-adapters/bin/python -m pytest -W ignore tests/adapters

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build $(DEMO_OUT)
