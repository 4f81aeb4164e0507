# Two commands do everything on a fresh machine: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.PHONY: run test lint types layers lock kafka clean
.DEFAULT_GOAL := help

help:            ## what can be made
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.base: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable . 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements-dev.lock
	@touch $@

run: $(VENV)/.base            ## the whole loop on this machine; ARGS="--for 150 --speed 10"
	@exec $(BIN)/shoal up $(ARGS)

test: $(VENV)/.dev            ## the whole test suite
	$(BIN)/pytest $(ARGS)

lint: $(VENV)/.dev            ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: $(VENV)/.dev            ## pin every dependency again, with hashes and without registry addresses
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -o requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra dev -c requirements.lock --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url -o requirements-dev.lock

kafka:           ## a real Apache Kafka on loopback, in the foreground until Ctrl-C
	@exec deploy/kafka/run.sh $(ARGS)

clean:           ## remove what was built
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
