# Everything happens in .venv, which the first target that needs it sets up; only Python 3.11 and
# make have to be there. A second call finds the stamp newer than pyproject.toml and starts at once.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo-installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
DEMO_ARGS ?=

.PHONY: help setup demo test check coverage slow nightly fuzz simulate bench docs clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo    set up .venv and play the demo (DEMO_ARGS="--seconds 20" for a short one)'
	@echo 'make setup   set up .venv with the development tools'
	@echo 'make test    the same, check the code, run the tests'
	@echo 'make check   the same without the tests: ruff, mypy'
	@echo 'make coverage  the tests with coverage, which takes half as long again'
	@echo 'make slow    the longer tests: conformance on every path, more random models'
	@echo 'make nightly the longer tests, and property tests and fuzzing with new examples (SEED=123 repeats a night)'
	@echo 'make fuzz    100,000 mutated models and requests'
	@echo 'make simulate  10,000 seeds of simulated threads, devices and faults'
	@echo 'make bench   print the tables of benchmarks/'
	@echo 'make docs    build the documentation site in build/site, and check its links'
	@echo 'make clean   remove .venv and what tools left behind'

demo: $(DEMO)
	@$(BIN)/nnasync demo $(DEMO_ARGS)

setup: $(DEV)

test: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/check
	@PATH="$(abspath $(BIN)):$$PATH" scripts/test

check: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/check

coverage: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/test --cov --cov-report=term

slow: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/test -m slow --timeout 3600

nightly: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/nightly

fuzz: $(DEV)
	@$(BIN)/python -m tests.fuzz.fuzz_models --runs 100000
	@$(BIN)/python -m tests.fuzz.fuzz_protocol --runs 100000
	@$(BIN)/python -m tests.fuzz.fuzz_grpc --runs 100000

simulate: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/simulate

bench: $(DEV)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/bench

docs: $(DOCS)
	@PATH="$(abspath $(BIN)):$$PATH" scripts/docs

clean:
	rm -rf $(VENV) build dist htmlcov .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis

# pip of Python 3.11 knows no dependency groups, hence the newer one.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'nnasync needs Python 3.11 or newer: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@echo "Setting up $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo 'no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)' >&2; exit 1; }

$(DEMO): pyproject.toml | $(BIN)/python
	@echo 'Installing nnasync and what the demo needs'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo 'Installing nnasync and the development tools'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[demo,live,serve,asgi,otel,experiments,trio,engines]' --group dev
	@touch $(DEMO) $@

$(DOCS): pyproject.toml | $(BIN)/python
	@echo 'Installing nnasync and what builds the documentation'
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[demo,asgi,otel,experiments]' --group docs
	@touch $@
