# The interface of the project: every target sets up what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8080
SEEDS ?= 20
PROFILE ?= steady
FACTOR ?= 0.2
SECONDS ?= 60
PROCESSES ?= 1
NATIVE := $(wildcard actors/*.pyx actors/*.pxd actors/*.pxi actors/*.h tests/durability/*.c)

.PHONY: help install run test test-benchmarks test-durability torture check bench bench-queries endurance
.PHONY: bench-large bench-boards bench-sizes bench-replay
.PHONY: bench-full bench-structures overload loadtest lock clean

help:
	@echo "make run      set up, start a node on 127.0.0.1:$(PORT) with two sample boards"
	@echo "make test     set up, run the tests"
	@echo "make test-benchmarks  run every benchmark, tiny"
	@echo "make test-durability  what make test samples, whole: crash, cut and damage at every point"
	@echo "make torture  the same for SEEDS=$(SEEDS) other runs"
	@echo "make check    set up, lint, type-check, check import directions and ray_cluster.yaml"
	@echo "make install  set up $(VENV) with the ranknode command in it"
	@echo "make bench    side by side with Redis and a small service before it; ten minutes"
	@echo "make bench-full  the same, with batches on ten million logged events besides"
	@echo "make bench-structures  time the structures"
	@echo "make bench-large  a board of 25 million members; ten minutes, 8 GB of memory and disk"
	@echo "make bench-boards  two hundred boards on a node that has fifty in memory"
	@echo "make bench-sizes  a rank and an event on boards of 10 thousand to 10 million members"
	@echo "make bench-replay  bringing a board up from a snapshot and from its log"
	@echo "make bench-queries  time queries, histories and erasing on large boards; some minutes"
	@echo "make endurance  ten million events over a hundred simulated days, with plots"
	@echo "make overload  three times a node's capacity: what it answers, refuses, holds"
	@echo "make loadtest  the traffic of PROFILE=$(PROFILE), at FACTOR=$(FACTOR), for SECONDS=$(SECONDS);"
	@echo "              PROFILE is steady, boundary, retry-storm or hot-board"
	@echo "make lock     renew requirements.lock and requirements-dev.lock"
	@echo "make clean    remove everything that was made"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "ranknode needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "python3-venv is missing: apt-get install python3-venv"; exit 1; }
	@test -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
		|| { echo "Python.h is missing: apt-get install python3-dev"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.requirements: requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.built: $(VENV)/.requirements pyproject.toml setup.py tools/build_backend.py $(NATIVE)
	$(BIN)/python -m pip install --no-deps --editable .
	@touch $@

$(VENV)/.dev-requirements: requirements-dev.lock $(VENV)/.built
	$(BIN)/python -m pip install --require-hashes -r requirements-dev.lock
	@touch $@

install: $(VENV)/.built

run: $(VENV)/.built
	$(BIN)/ranknode serve --data var/demo --port $(PORT) --samples

# What starts no node is told apart, since two of these tests at once disturb nobody.
IN_PROCESS := tests/actors tests/persistence

test: $(VENV)/.dev-requirements
	$(BIN)/python -m pytest -n 2 -m "not durability" $(IN_PROCESS)
	$(BIN)/python -m pytest -m "not durability and not benchmark" $(IN_PROCESS:%=--ignore %)

test-benchmarks: $(VENV)/.dev-requirements
	$(BIN)/python -m pytest -m benchmark tests/loadtest

test-durability: $(VENV)/.dev-requirements
	$(BIN)/python -m pytest -m durability tests/durability

torture: $(VENV)/.dev-requirements
	TORTURE_SEEDS=$(SEEDS) $(BIN)/python -m pytest -m durability tests/durability

check: $(VENV)/.dev-requirements
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_cluster.py ray_cluster.yaml

bench: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench

bench-full: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench --logged 10000000

bench-structures: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench_structures

bench-large: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench_boards large

bench-boards: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench_boards many

bench-sizes: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench_boards sizes

bench-replay: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench_boards replay

bench-queries: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.bench_queries

endurance: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.endurance

overload: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.overload

loadtest: $(VENV)/.dev-requirements
	$(BIN)/python -m loadtest.run_profile --profile $(PROFILE) --factor $(FACTOR) \
		--seconds $(SECONDS) --processes $(PROCESSES)

lock: | $(BIN)/python
	$(BIN)/python -m pip install uv
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-emit-index-url \
		--no-annotate --upgrade -o requirements.lock pyproject.toml
	$(BIN)/uv pip compile --universal --generate-hashes --no-header --no-emit-index-url \
		--no-annotate --upgrade --extra dev -c requirements.lock -o requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) build *.egg-info var loadtest/results actors/*.c actors/*.so tests/durability/*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
