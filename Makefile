# Needs only python3 (3.11 or newer) and make; every target sets up what it needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench bench-long money chaos hostile evaluate real verify clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## a simulated pool on this machine: no key, and nothing leaves it
	@$(BIN)/focalroute demo

test: lint ## lint, types, tests, doctests, examples
	$(PYTEST)

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

bench: $(READY) ## speed and memory beside the peers and the floor, as tables (10 minutes; the peers are installed once)
	$(BIN)/python -m tests.benchmarks

bench-long: $(READY) ## the memory of 1,000,000 asks (half an hour)
	$(BIN)/python -m tests.benchmarks --long

money: $(READY) ## 10,000 asks in 4 processes under one budget, and 5,000 at a target cost (10 minutes)
	$(BIN)/python -m tests.benchmarks.budgets
	$(BIN)/python -m tests.benchmarks.pacing

chaos: $(READY) ## 20,000 asks with 30 % of calls faulted, and an outage of the best endpoint (10 minutes)
	$(BIN)/python -m tests.benchmarks.chaos
	$(BIN)/python -m tests.benchmarks.outage

hostile: $(READY) ## 100 processes killed under load, and 1,000,000 hostile inputs (10 minutes)
	$(BIN)/python -m tests.benchmarks.kills --kills 100
	$(BIN)/python -m tests.benchmarks.fuzz --inputs 1000000

evaluate: $(READY) ## replay the recorded answers in ../shared/data, where there are any
	@for log in ../shared/data/*.jsonl.gz; do \
		[ -e "$$log" ] || { echo "no recorded answers in ../shared/data"; continue; }; \
		$(BIN)/focalroute eval "$$log" --pool "$${log%.jsonl.gz}.pool.toml" || exit 1; \
	done

real: $(READY) ## build the third-party servers of tests/real into the cache (once, 5 to 10 minutes)
	$(BIN)/python tests/real/build.py

verify: export FOCALROUTE_REAL = 1
verify: real test evaluate money chaos hostile bench bench-long ## the long checks: real servers (they must be there), recorded answers, benchmark

clean: ## remove the environments and every cache of the checkout
	rm -rf .venv* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "focalroute needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up .venv (once, about a minute)"
	@$(PYTHON) -m venv --clear .venv \
		|| { echo "$(PYTHON) cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@
