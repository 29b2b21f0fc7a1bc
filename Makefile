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

.PHONY: help demo test lint types unit docs linkcheck bench bench-quick bench-check bench-page fuzz test-adapters \
  test-oldest test-313 dist-check clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo           install, ingest recordings, train on them (the first thing to run)'
	@echo 'make test           install, lint, types, doctests, tests, documentation'
	@echo 'make docs           build the documentation into docs/_build/html; make linkcheck checks its links'
	@echo 'make bench          run every benchmark, write the page; make bench-NAME runs benchmarks/NAME.py'
	@echo 'make bench-quick    the same with less data; make bench-check fails where a ratio got worse'
	@echo 'make fuzz           longer random testing than make test does'
	@echo 'make test-adapters  test fastai, tsai and Lightning in an environment of their own'
	@echo 'make test-oldest    the suite on the oldest supported versions; make test-313 on Python 3.13 and the newest'
	@echo 'make dist-check     build wheel and sdist, check them, test them outside the tree'
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

# Files and headings need no network; whether outside addresses answer does.
linkcheck: $(VENV)/.test
	$(BIN)/python tools/check_links.py
	$(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck || { echo 'addresses that did not answer (without a network, all of them) are in docs/_build/linkcheck/output.txt'; exit 1; }

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

# Guided by coverage where atheris can be installed, at random elsewhere. `make test` fuzzes for seconds.
FUZZ_SECONDS ?= 300
fuzz: $(VENV)/.test
	@$(PIP) atheris 2>/dev/null || echo 'atheris has no wheel for this Python: mutating at random, without coverage'
	$(BIN)/python -m fuzz.run --seconds $(FUZZ_SECONDS) --corpus fuzz/corpus
	CHUNKSTORE_FUZZ=1000000 $(BIN)/python -m pytest -q tests/ingest/avro/test_fuzz.py

# --- other versions --------------------------------------------------------------------------

# What both leave out, since no version of a library changes it, or since it takes long: WHOLE=1 leaves out nothing.
TESTS ?= tests
OTHER := -q -p no:cacheprovider -W default
ifndef WHOLE
OTHER += -m 'not slow and not cluster' $(addprefix --ignore=tests/,docs benchmarks fuzz adapters test_makefile.py \
  test_security.py test_warnings_say_what_to_do.py ingest/test_demo.py)
LEFT_OUT := echo 'left out: pages of the documentation, the demo, tests of benchmarks, of this Makefile and of our own source \
  text, random inputs, and what is marked slow or cluster (kills of real processes). No version changes these, or they \
  take minutes; WHOLE=1 runs them too'
else
LEFT_OUT := :
endif

# The suite on the oldest versions that are supported. TESTS='tests/chunkstore' runs a part of it.
$(VENV)-oldest/.installed: pyproject.toml constraints-oldest.txt constraints.txt | $(BIN)/python
	@echo 'installing the oldest supported versions (a few minutes the first time) ...'
	@test -x $(VENV)-oldest/bin/python || $(PYTHON) -m venv $(VENV)-oldest
	@$(VENV)-oldest/bin/python -m pip install -q --disable-pip-version-check -c constraints-oldest.txt -c constraints.txt -e '.[test]'
	@touch $@

test-oldest: $(VENV)-oldest/.installed
	@$(LEFT_OUT)
	$(VENV)-oldest/bin/python -m pytest $(OTHER) $(TESTS)

# The suite on the newest supported Python and the newest versions that there are; without torch, whose tests skip.
PYTHON313 ?= $(shell for p in python3.13 $$HOME/.pyenv/versions/3.13*/bin/python; do \
  $$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' >/dev/null 2>&1 && { echo $$p; break; }; done)
$(VENV)-313/.installed: pyproject.toml requirements-313.txt
	@echo 'installing the newest versions for Python 3.13 (a few minutes the first time) ...'
	@test -x $(VENV)-313/bin/python || $(PYTHON313) -m venv $(VENV)-313
	@$(VENV)-313/bin/python -m pip install -q --disable-pip-version-check -U -r requirements-313.txt -e '.[audio,audio-extra,cloud,pcodec,report,dashboard]'
	@touch $@

test-313:
ifeq ($(PYTHON313),)
	@echo 'there is no Python 3.13 here, so nothing was tested on it; PYTHON313=/path/to/python3.13 names one'
else
	@$(MAKE) --no-print-directory $(VENV)-313/.installed
	@$(LEFT_OUT)
	$(VENV)-313/bin/python -m pytest $(OTHER) $(TESTS)
endif

# Wheel and sdist: built, checked, installed outside the tree and tested there.
dist-check: $(VENV)/.test
	@$(PIP) build twine
	$(BIN)/python tools/check_dist.py

# fastai, tsai and Lightning need a torch of their own and several gigabytes; warnings are theirs.
$(VENV)-adapters/.installed: pyproject.toml requirements-adapters.txt | $(BIN)/python
	@echo 'installing fastai, tsai and Lightning with their torch (several gigabytes, the first time only) ...'
	@test -x $(VENV)-adapters/bin/python || $(PYTHON) -m venv $(VENV)-adapters
	@$(VENV)-adapters/bin/python -m pip install -q --disable-pip-version-check -r requirements-adapters.txt -e '.[audio]'
	@touch $@

test-adapters: $(VENV)-adapters/.installed
	$(VENV)-adapters/bin/python -m pytest -W ignore tests/adapters

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-313 $(VENV)-adapters dist .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build $(DEMO_OUT)
