# Needs only python3 (3.11 or newer) and make; every target sets up what it needs.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Two threads on matrices as small as the tests' take more time than one. A file's tests share a process, and so what
# they start and train. (Not groups: pytest 9.2 tells xdist nothing of them.) Tests wait for each other's servers and
# processes a good part of their time: one process more than there are cores uses it.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist loadfile --no-loadscope-reorder

# Compiled modules are kept, whatever the shell says: else each of the tests' processes compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test tests lint mypy others docs package bench bench-long money chaos soak hostile fleet evaluate labels paper real tiny-pool pythons slow verify clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## a simulated pool on this machine: no key, and nothing leaves it
	@$(BIN)/focalroute demo

test: lint tests ## lint, types, tests, doctests, examples

tests: $(READY) ## of those, the tests, doctests and examples
	$(PYTEST)

lint: $(READY) ## ruff, mypy, pyright and the language of pages and docstrings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(MAKE) -j2 mypy others

mypy:
	$(BIN)/mypy --strict

others:
	$(BIN)/pyright -p tests/typed --pythonpath $(BIN)/python
	$(BIN)/python -m tests.language
	$(BIN)/codespell README.md SECURITY.md docs focalroute examples

docs: $(READY) ## the docs as a site, in build/site; it can be read from the disk
	@$(BIN)/python docs/build.py

package: $(READY) ## wheel and sdist as a user gets them: empty environments, extras, lowest versions (5 minutes, network)
	$(BIN)/python -m tests.packaging

bench: $(READY) ## speed and memory beside the peers and the floor, as tables (10 minutes; the peers are installed once)
	$(BIN)/python -m tests.benchmarks

bench-long: $(READY) ## the memory of 1,000,000 asks (half an hour)
	$(BIN)/python -m tests.benchmarks --long

money: $(READY) ## 10,000 asks in 4 processes under one budget, 5,000 at a target cost, and calls that break off (15 minutes)
	$(BIN)/python -m tests.benchmarks.budgets
	$(BIN)/python -m tests.benchmarks.pacing
	$(BIN)/python -m tests.benchmarks.broken_calls --limit 0.02
	$(BIN)/python -m tests.benchmarks.adversary

soak: $(READY) ## a server asked for minutes with 30 % of calls faulted: memory, files and threads over time (8 minutes)
	$(BIN)/python -m tests.benchmarks.soak --minutes 8

chaos: $(READY) ## 20,000 asks with 30 % of calls faulted, and an outage of the best endpoint (10 minutes)
	$(BIN)/python -m tests.benchmarks.chaos
	$(BIN)/python -m tests.benchmarks.hangs
	$(BIN)/python -m tests.benchmarks.outage

hostile: $(READY) ## 100 processes killed under load, 1,000,000 hostile inputs, and how long bodies hold a server up (10 minutes)
	$(BIN)/python -m tests.server.heartbeat
	$(BIN)/python -m tests.benchmarks.kills --kills 100
	$(BIN)/python -m tests.benchmarks.fuzz --inputs 1000000

fleet: $(READY) ## 8 workers on one Redis, 20,000 asks, a learner killed and Redis restarted (20 minutes; needs redis-server)
	$(BIN)/python -m tests.benchmarks.fleet

evaluate: $(READY) ## replay the recorded answers in ../shared/data, where there are any, and some draws of their endpoints
	@for log in ../shared/data/*.jsonl.gz; do \
		[ -e "$$log" ] || { echo "no recorded answers in ../shared/data"; continue; }; \
		$(BIN)/focalroute eval "$$log" --pool "$${log%.jsonl.gz}.pool.toml" || exit 1; \
	done
	$(BIN)/python -m tests.benchmarks.draws

labels: $(READY) ## what labels are worth, from none to every one, on the recorded answers in ../shared/data (half an hour)
	$(BIN)/python -m tests.benchmarks.labels

paper: $(READY) ## every experiment of the two works but that on vLLM (docs/results/papers.md; some three hours; what is there in .paper is not run again)
	@for name in table1 fig2 fig3 fig4 sweeps tables2_3 fig6 appendix_g; do \
		$(BIN)/python -m examples.paper.$$name --keep .paper || exit 1; \
	done
	@for name in tables7_8 elicitation table6 der; do $(BIN)/python -m examples.paper.$$name || exit 1; done

real: $(READY) ## build the third-party servers of tests/real into the cache (once, 5 to 10 minutes); make test uses what is there
	$(BIN)/python tests/real/build.py llama-server litellm
	$(BIN)/python tests/real/build.py vllm || echo "no vLLM to be had (it takes 3.4 GB): its tests skip"

tiny-pool: $(READY) real ## five small language models, trained and served on this machine: the whole loop (15 minutes)
	@$(BIN)/python -c 'from torch.optim import Muon' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet -e '.[train]' 'torch>=2.9'
	rm -rf build/tiny-pool
	OMP_NUM_THREADS=1 $(BIN)/python -m examples.tiny_pool

slow: $(READY) ## the tests that `make test` leaves out: clusters, outages, statistics on long runs
	$(PYTEST) -m slow

pythons: $(READY) ## the tests of what serves, under every other CPython on this machine
	.ci/run --pythons

verify: export FOCALROUTE_REAL = 1
verify: real test pythons slow package evaluate money chaos soak hostile fleet tiny-pool bench bench-long ## all that .ci/run has no time for: real servers (they must be there), slow tests, packages, recorded answers, benchmark

clean: ## remove the environments and every cache of the checkout
	rm -rf .venv* .paper .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "focalroute needs Python 3.11 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setting up .venv (once, about a minute)"
	@$(PYTHON) -m venv --clear .venv \
		|| { echo "$(PYTHON) cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv # which takes 6 s of CPU where pip takes 140
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $@
