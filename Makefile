# Two commands do everything on a fresh machine: `make run` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.PHONY: run results docs test loadtest test-vllm test-kubernetes test-package release lint types layers lock kafka clean recording picture parquet tracing
.DEFAULT_GOAL := help

help:            ## what can be made
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

COMPILE_OPTIONS := --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
COMPILE := $(BIN)/uv pip compile $(COMPILE_OPTIONS)
# A command that Ctrl-C ended has said so itself: make ends by the same signal, without an error
# (it must have taken the signal before its child ends: hence the pause).
OR_END := || { code=$$?; [ $$code -eq 130 ] || exit $$code; kill -INT $$PPID; sleep 0.3; }

# Ctrl-C before Python is up waits until it is, instead of showing where in itself it was.
START := $(shell env --block-signal=INT true 2>/dev/null && echo env --block-signal=INT)

$(VENV)/.base: requirements.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with PYTHON=..." >&2; exit 2; }
	@$(START) $(PYTHON) deploy/environment.py $(VENV) && touch $@ $(OR_END)

$(VENV)/.dev: requirements-dev.lock $(VENV)/.base
	@$(START) $(PYTHON) deploy/environment.py --dev $(VENV) && touch $@ $(OR_END)

run: $(VENV)/.base            ## the whole loop on this machine; ARGS="--for 150 --speed 10"
	@$(START) $(BIN)/shoal up $(ARGS) $(OR_END)

parquet: $(VENV)/.base        ## pyarrow, with which traces in Parquet files are read
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements-parquet.lock

tracing: $(VENV)/.base        ## OpenTelemetry, with which traces are exported
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements-tracing.lock

recording: $(VENV)/.dev       ## docs/results/recording.md and the README's first screen, from a run of three minutes
	@$(BIN)/python -m loadtests.recording --readme README.md $(OR_END)

# Tests that start processes mostly wait; a file stays in one place, as its tests share what they start.
PROCESSES := -n 3 --dist loadfile tests/acceptance tests/integration tests/contract

# Processes that tests start need the compiled modules: else each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

# Before Python 3.11.8 a parse fails (SystemError, "AST constructor recursion depth mismatch") if garbage
# is collected during it whose end shows a traceback: marking columns in that parses too.
test test-vllm: export PYTHONNODEBUGRANGES := 1
test: $(VENV)/.dev            ## the whole test suite; ARGS="tests/unit/cli" for a part of it
ifeq ($(ARGS),)
	$(BIN)/pytest -n 2 --dist loadfile tests/unit tests/property
	$(BIN)/pytest $(PROCESSES)
else
	$(BIN)/pytest $(ARGS)
endif

loadtest: $(VENV)/.dev        ## replay a trace against a gateway; ARGS="--host URL --trace FILE --shoal-config shoal.yaml --headless"
	@PYTHONPATH=. exec $(BIN)/locust -f loadtests/replay/locustfile.py $(ARGS)

results: $(VENV)/.dev         ## docs/results and the README's figures, measured again; ARGS=NAME for one, ARGS=--list
	@$(BIN)/python -m loadtests.results $(ARGS) $(OR_END)

docs: $(VENV)/.dev       ## the documentation as a site, in build/site; results say if they are older than the code
	@$(BIN)/python -m loadtests.results --pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/.dev            ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/rooms.py --check
	$(BIN)/python deploy/language.py
	$(BIN)/python deploy/reason_codes.py --check
	$(BIN)/python deploy/configuration_reference.py --check
	$(BIN)/python deploy/reference_pages.py --check
	$(BIN)/python deploy/grafana/dashboards.py --check

picture: $(VENV)/.dev         ## docs/pictures/console.png, of a backtest of the demo
	SHOAL_TEST_PICTURES=docs/pictures $(BIN)/pytest tests/integration/console/test_recording_page.py -k readmes_picture

test-vllm: $(VENV)/.dev       ## the engine contract on a real vLLM for CPUs (built once, outside the clone)
	@environment="$$($(BIN)/python -m executors.engines.vllm.cpu_environment)" && \
	  SHOAL_TEST_VLLM="$$environment" $(BIN)/pytest $(or $(ARGS),tests/contract/engines)

test-package: $(VENV)/.dev     ## wheel and sdist; the wheel runs in an empty environment
	@SHOAL_TEST_PACKAGE=1 $(BIN)/pytest $(or $(ARGS),tests/package)

release: $(VENV)/.dev          ## wheel, sdist, SBOM and checksums; ARGS="--out DIR --repository URL --image TAG"
	@$(BIN)/python deploy/release.py $(or $(ARGS),--out build/release)

test-kubernetes: $(VENV)/.dev  ## the Kubernetes parts on a real control plane (built once with Go, outside the clone)
	@plane="$$($(BIN)/python -m tests.kubernetes.plane.build_plane)" || { code=$$?; \
	  [ $$code -eq 3 ] && { echo "$$plane"; exit 0; }; exit $$code; }; \
	  SHOAL_TEST_KUBERNETES="$$plane" $(BIN)/pytest $(or $(ARGS),tests/chart tests/kubernetes)

lock: $(VENV)/.dev            ## pin every dependency again, with hashes and without registry addresses
	echo 'setuptools>=80' | $(COMPILE) - -o requirements-build.lock
	echo 'pyarrow>=15' | $(COMPILE) - -o requirements-parquet.lock
	$(COMPILE) pyproject.toml -o requirements.lock
	printf '%s\n' 'opentelemetry-sdk>=1.30' 'opentelemetry-exporter-otlp-proto-http>=1.30' | \
	  $(COMPILE) -c requirements.lock - -o requirements-tracing.lock
	$(COMPILE) pyproject.toml --extra dev -c requirements.lock -o requirements-dev.lock
	cd executors/engines/vllm && $(abspath $(BIN))/uv pip compile $(COMPILE_OPTIONS) --no-annotate \
	  requirements.in --override overrides.txt -o requirements.lock

kafka:           ## a real Apache Kafka on loopback, in the foreground until Ctrl-C
	@exec deploy/kafka/run.sh $(ARGS)

clean:           ## remove what was built
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
