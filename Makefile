# Every target does its own set-up: a virtual environment in .venv, then its work. Choose the interpreter with
# `make test PYTHON=python3.12`. Only `make clean` removes anything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Two test workers with one thread each beat one with two, and one thread is what makes runs repeat bit by bit.
export OMP_NUM_THREADS := 1

.DELETE_ON_ERROR:
.PHONY: demo test check fuzz lint bench docs mutations clean help

help:
	@echo "make demo   the main job in small: a fair comparison of 14 methods, with a report, into hace-demo/"
	@echo "make test   all tests: slow ones and the examples in the docstrings included"
	@echo "make check  lint, types and the fast tests, in about two minutes"
	@echo "make fuzz   the fuzzers alone, 50 times as long as in make test"
	@echo "make lint   formatting, style and types"
	@echo "make mutations  break the code line by line and see that the tests notice, in about an hour"
	@echo "make docs   the documentation, into site/"
	@echo "make bench  all benchmarks, one after another"
	@echo "make clean  remove what the others made"

# The kernel's source is listed because a change to it needs a new build; the old one goes first, lest it outlive a
# build that fails.
$(READY): pyproject.toml constraints.txt src/hace/_torchvision_guard.py $(wildcard src/hace/losses/kernels/*.c src/hace/losses/kernels/*.h)
	$(PYTHON) -m venv $(VENV)
	rm -f src/hace/losses/kernels/*.so
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/python src/hace/_torchvision_guard.py
	@touch $@

demo: $(READY)
	$(BIN)/hace demo

test: $(READY)
	$(BIN)/python -m pytest

check: lint
	$(BIN)/python -m pytest -q -m "not slow"

mutations: $(READY)
	$(BIN)/python -m tests.mutations.run

# Other inputs every time: a failure names its seed.
fuzz: $(READY)
	HACE_FUZZ=$${HACE_FUZZ:-50} HACE_FUZZ_SEED=$${HACE_FUZZ_SEED:-$$(date +%s)} $(BIN)/python -m pytest tests/fuzz --timeout 0

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: $(READY)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: $(READY)
	$(BIN)/python docs/check_arguments.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

clean:
	rm -rf $(VENV) hace-demo site build src/hace.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks
	find src -name '*.so' -delete
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
