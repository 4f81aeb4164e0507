# Two commands do everything on a fresh machine: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.PHONY: run test loadtest test-vllm lint types layers lock kafka clean
.DEFAULT_GOAL := help

help:            ## what can be made
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

COMPILE_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
COMPILE := $(BIN)/uv pip compile $(COMPILE_OPTIONS)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

$(VENV)/.base: requirements.lock requirements-build.lock pyproject.toml
	@echo "making $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements-build.lock -r requirements.lock
	@$(PIP) --no-build-isolation --editable .
	@echo "compiling kernels (once): processes load them from disk"
	@$(BIN)/shoal plan --config streams/data/demo.yaml --no-explain --json >/dev/null
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.base
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $@

run: $(VENV)/.base            ## the whole loop on this machine; ARGS="--for 150 --speed 10"
	@exec $(BIN)/shoal up $(ARGS)

test: $(VENV)/.dev            ## the whole test suite
	$(BIN)/pytest $(ARGS)

loadtest: $(VENV)/.dev        ## replay a trace against a gateway; ARGS="--host URL --trace FILE --shoal-config shoal.yaml --headless"
	@PYTHONPATH=. exec $(BIN)/locust -f loadtests/replay/locustfile.py $(ARGS)

lint: $(VENV)/.dev            ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-vllm: $(VENV)/.dev       ## the engine contract on a real vLLM for CPUs (built once, outside the clone)
	@environment="$$($(BIN)/python -m executors.engines.vllm.environment)" && \
	  SHOAL_TEST_VLLM="$$environment" $(BIN)/pytest $(or $(ARGS),tests/contract/engines)

lock: $(VENV)/.dev            ## pin every dependency again, with hashes and without registry addresses
	echo 'setuptools>=80' | $(COMPILE) - -o requirements-build.lock
	$(COMPILE) pyproject.toml -o requirements.lock
	$(COMPILE) pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	cd executors/engines/vllm && $(abspath $(BIN))/uv pip compile $(COMPILE_OPTIONS) --no-annotate \
	  requirements.in --override overrides.txt -o requirements.lock

kafka:           ## a real Apache Kafka on loopback, in the foreground until Ctrl-C
	@exec deploy/kafka/run.sh $(ARGS)

clean:           ## remove what was built
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
