# The targets make `.venv` and use it. PYTHON is what they make it with.
PYTHON ?= python3
BIN := .venv/bin
PROMPT ?= a red circle moving right on a black background
FAST := -m "not slow"
PYTEST := $(BIN)/pytest -q --numprocesses 2 --dist worksteal
# What `check` has run in the same call, `test` does not run again.
REST := $(if $(filter check,$(MAKECMDGOALS)),-m slow)
FIRST ?= 0
ENGINES ?= 1

.PHONY: demo test crash simulate chaos faults check fix bench bench-loop bench-batch bench-store bench-quality falsifier clean help

demo: .venv/installed  ## make one clip, with progress, from nothing; call it again after a kill and it goes on
	$(BIN)/engine generate "$(PROMPT)" --seed 7 --preview-every 5 --out out/demo.mp4

test: .venv/installed  ## all tests
	$(PYTEST) $(REST)

crash: .venv/installed  ## a kill at every operation of the store, and every power cut: minutes
	$(BIN)/python -m tests.crash

check: .venv/installed  ## format, lint, arrows, types, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy
	$(PYTEST) $(FAST)

fix: .venv/installed  ## what to run before check
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed  ## overhead, durable steps, recovery, responsiveness, blobs, folded states
	$(BIN)/python -m ops.bench

bench-loop: .venv/installed  ## a durable job beside the call of diffusers' pipeline, at steps of 5, 50 and 500 ms
	$(BIN)/python -m ops.bench loop

bench-batch: .venv/installed  ## steps of 1, 2, 4 and 8 jobs in one forward, beside what the module itself gains, at three sizes
	$(BIN)/python -m ops.bench batch

bench-store: .venv/installed .venv-peers/installed  ## the store and the engine beside DBOS and eventsourcing, and which goals are met
	$(BIN)/python -m ops.bench.store

bench-quality: SEEDS ?= 1
bench-quality: .venv/installed  ## the judge over all prompts, SEEDS clips of each (20 minutes a seed on one core)
	$(BIN)/python -m training.shapes.evaluate --seeds $(SEEDS)

falsifier: .venv/installed  ## whether scheduling by the step earns its keep, in virtual time; QUICK=1 one trace, REAL=1 real engines
	$(BIN)/python -m ops.bench.falsifier $(if $(REAL),real,simulate) $(if $(QUICK),--quick)

simulate: SEEDS ?= 10000
simulate: .venv/installed  ## SEEDS worlds in which everything goes wrong, from FIRST on, with ENGINES on the one store
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) --engines $(ENGINES)

chaos: SECONDS ?= 70
chaos: .venv/installed  ## real engines, workers and databases, killed, frozen and cut off at random: five minutes
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(FIRST)

faults: .venv/installed  ## one thing that goes wrong in one place, idle and loaded, with what was seen of it: eight minutes
	$(BIN)/python -m tests.faults

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

clean:  ## remove all that was made, data too
	rm -rf .venv .venv-peers build out data *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv-peers/installed: constraints-peers.txt
	test -d .venv-peers || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --requirement constraints-peers.txt
	touch $@
