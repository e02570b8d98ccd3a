# Everything a developer runs. On a machine with Python (3.10 to 3.13) and make, each target works by itself.

PYTHON ?= python3
# Reads the index that pip is set up for; development is pinned in constraints.txt.
PIP_OPTIONS ?=
VENV := .venv
BIN := $(VENV)/bin
MATRIX := 2.9.1 2.13.0 2.15.0
# Two test processes: the suite waits for C++ compilers most of the time.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-browser bench bench-quick test-matrix lint types format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_OPTIONS) --quiet --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	touch $@

demo: $(VENV)/.installed  ## compile a small transformer, and look at what happened
	$(BIN)/python -m thunder_fx.demo

test: $(VENV)/.installed  ## the tests, but for the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow and not browser'

test-slow: $(VENV)/.installed  ## the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) -m slow

test-browser: $(VENV)/.installed  ## the report's page in a real browser
	@command -v chromium >/dev/null || { echo "needs Chromium: apt-get install chromium"; exit 1; }
	$(BIN)/python -m pytest -m browser

bench: $(VENV)/.installed  ## thunder_fx beside thunder.dynamo, torch.compile and eager; half an hour
	$(BIN)/python benchmarks/run.py

bench-quick: $(VENV)/.installed  ## the same in 5 minutes
	$(BIN)/python benchmarks/run.py --quick

# Each torch in an environment of its own, several GB each; one after the other, and all even if one fails.
test-matrix:  ## the tests on each supported torch: 2.9.1, 2.13.0 and the newest
	@failed=; for version in $(MATRIX); do \
	  $(MAKE) --no-print-directory test-on-$$version || failed="$$failed $$version"; done; \
	if [ -n "$$failed" ]; then echo "the matrix failed on torch$$failed"; exit 1; fi; \
	echo "the matrix passed on torch $(MATRIX)"

test-on-%: .venv-torch-%/.installed
	.venv-torch-$*/bin/python -m pytest -n $(WORKERS) -m 'not slow and not browser' -p no:cacheprovider

# The rest of what constraints.txt pins holds here too.
.venv-torch-%/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	sed 's/^torch==.*/torch==$*/' constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/python -m pip install $(PIP_OPTIONS) --quiet --disable-pip-version-check \
	  -c .venv-torch-$*/constraints.txt -e '.[test]'
	touch $@
.PRECIOUS: .venv-torch-%/.installed

lint: $(VENV)/.installed  ## style
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed  ## types
	$(BIN)/mypy

format: $(VENV)/.installed  ## put style right where a program can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## take away what the targets above made
	rm -rf $(VENV) .venv-torch-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
