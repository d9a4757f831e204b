# One command each; everything works from a clean clone with Python 3.11 or newer and nothing else installed.
#   make demo    a prediction in process and through gRPC
#   make test    what CI runs: checks and tests

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Only for the tests that compare with torch or export with it; `make setup TORCH=` leaves it out, they skip then.
TORCH ?= torch==2.13.0 onnxscript
PYTEST ?= -m "not slow"
MODULE_LINES := 500
RUN := $(BIN)/python -m

# The public measurements, where a checkout has them beside it. Tests that need rows skip without.
ifndef PERFCAST_DATA
ifneq ($(wildcard ../shared/data/README.md),)
export PERFCAST_DATA := $(abspath ../shared/data)
endif
endif
# Spinning OpenMP threads cost XGBoost a factor on shared cores.
export OMP_WAIT_POLICY ?= passive

.PHONY: help
help: ## what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer on PATH; install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps: a second run installs nothing unless pyproject.toml changed.
$(VENV)/.installed-app: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(RUN) pip install -qq --editable '.[cli,server]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) ..."
	@$(RUN) pip install -qq --editable '.[cli,server,train,dev]' $(TORCH)
	@touch $@ $(VENV)/.installed-app

.PHONY: setup
setup: $(VENV)/.installed-dev ## virtual environment with everything that tests need

.PHONY: demo
demo: $(VENV)/.installed-app ## a prediction for a ResNet-50, in process and through gRPC
	@PATH="$(abspath $(BIN)):$$PATH" examples/demo.sh

.PHONY: test
test: check pytest ## checks and tests, as CI runs them

.PHONY: pytest
pytest: setup ## tests alone; PYTEST='-m slow' runs the exports with torch
	$(RUN) pytest $(PYTEST)

.PHONY: check
check: lint types layers size stubs spelling ## everything that needs no test

.PHONY: lint
lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: format
format: setup ## rewrites files in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: types
types: setup ## mypy, strict
	$(BIN)/mypy -p predictor

.PHONY: layers
layers: setup ## import contracts
	$(BIN)/lint-imports

.PHONY: size
size: ## no module above 500 lines
	@git ls-files --cached --others --exclude-standard '*.py' ':!predictor/v1' | while read -r file; do \
	  if test -f "$$file"; then echo "$$(wc -l < "$$file") $$file"; fi; done | \
	  awk '$$1 > $(MODULE_LINES) {print $$2 ": " $$1 " lines; split it, the limit is $(MODULE_LINES)"; bad = 1} END {exit bad}'

.PHONY: stubs
stubs: setup ## committed gRPC stubs are those of the protos
	$(BIN)/python proto/generate.py --check

.PHONY: spelling
spelling: setup ## codespell over tracked text
	@git ls-files -z ':!*.onnx' ':!*.ubj' ':!*.ubj.z' ':!predictor/v1' ':!LICENSE' ':!predictor/features' ':!predictor/models' ':!predictor/hardware/data/carbon.json' | \
	  xargs -0 $(BIN)/codespell --ignore-words-list=mape,nd,te,trian,sise

.PHONY: proto
proto: setup ## regenerates predictor/v1 from proto/
	$(BIN)/python proto/generate.py

.PHONY: bench
bench: setup ## measures the budgets and writes docs/benchmarks/
	for script in $$(grep -l '__main__' benchmarks/*.py); do $(BIN)/python $$script --write; done

.PHONY: train
train: setup ## builds the corpus from PERFCAST_DATA and trains the default bundle
	$(BIN)/perfcast corpus build
	$(BIN)/perfcast train

.PHONY: evaluate
evaluate: setup ## accuracy on held-out measurements
	$(BIN)/perfcast evaluate
