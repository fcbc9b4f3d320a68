# Every target first sets up a virtual environment in .venv. Choose the interpreter with `make test PYTHON=python3.12`.
# Only `make clean` removes anything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What a target needs is an extra of the package: `dev` for lint and the core's tests, `dev-all` for every test, `all` for the
# demo. An environment that has everything serves them all.
EVERYTHING := $(VENV)/.ready-dev-all
LIGHT := $(or $(wildcard $(EVERYTHING)),$(VENV)/.ready-dev)
DEMO := $(or $(wildcard $(EVERYTHING)),$(VENV)/.ready-all)

# Two test workers with one thread each are faster than one with two, and runs repeat bit for bit at one thread only.
export OMP_NUM_THREADS := 1
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
CORE := tests/hierarchy tests/formats tests/files tests/losses tests/decisions tests/metrics tests/linear tests/test_package.py

.DELETE_ON_ERROR:
.PHONY: demo test test-long test-lowest check coverage fuzz sanitize lint bench docs results clean help

help:
	@echo "make demo       drawn photos, a model and its page in hace-demo/, in two minutes of processor time"
	@echo "make check      formatting, style, spelling, types and the fast tests of the core, in two minutes"
	@echo "make test       every test but the long ones, and the examples in docstrings, in eight minutes"
	@echo "make test-long  for nights: real data, every kill and corruption, and the fuzzers at length"
	@echo "make test-lowest  the core's tests with the lowest supported versions, in .venv-lowest (several GB)"
	@echo "make coverage   the share of lines that the fast tests run"
	@echo "make lint       formatting, style, spelling and types"
	@echo "make docs       build the documentation into site/"
	@echo "make results    rewrite the tables, numbers and figure in README and docs from the results in evidence/"
	@echo "make fuzz       the fuzzers alone, 50 times as long as in make test"
	@echo "make sanitize   the compiled kernel under the address and undefined-behaviour sanitizers"
	@echo "make bench      all benchmarks, one after another"
	@echo "make clean      remove everything the other targets made"

# A change to the kernel's source needs a new build. The old build is removed first, so that it cannot survive a build
# that fails. The extra to install is the end of the target: dev, dev-all or all.
$(VENV)/.ready-%: pyproject.toml constraints.txt tools/torchvision_guard.py $(wildcard src/hace/losses/kernels/*.c src/hace/losses/kernels/*.h)
	@echo "Setting up $(VENV): pip fetches torch and other packages and is silent for a few minutes."
	$(PYTHON) -m venv $(VENV)
	rm -f src/hace/losses/kernels/*.so
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	$(BIN)/python tools/torchvision_guard.py
	@touch $@

demo: $(DEMO)
	$(BIN)/hace demo

test: $(EVERYTHING)
	$(PYTEST)

test-long: fuzz
	$(PYTEST) -m long
	$(BIN)/python tests/torture.py --kills 100

# Old torch wheels come with CUDA: the environment takes several GB. Tests of what needs no experiment run there.
LOWEST := .venv-lowest
test-lowest: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
		-e ".[data,metrics,report,sklearn,train]" hypothesis mpmath pytest pytest-timeout pytest-xdist
	$(LOWEST)/bin/python tools/torchvision_guard.py
	$(LOWEST)/bin/python -m pytest -n 2 -q -m "not slow" tests/hierarchy tests/losses tests/decisions tests/metrics tests/linear

check: lint
	$(PYTEST) -q -m "not slow" $(CORE)

# Coverage of the fast tests; `coverage report --show-missing` lists the gaps.
coverage: $(EVERYTHING)
	$(PYTEST) -q -m "not slow" --cov --cov-report=
	@$(BIN)/coverage report --format=total

# New inputs every time; a failure names its seed.
fuzz: $(EVERYTHING)
	HACE_FUZZ=$${HACE_FUZZ:-50} HACE_FUZZ_SEED=$${HACE_FUZZ_SEED:-$$(date +%s)} $(PYTEST) tests/fuzz --timeout 0

# The kernel under the address and undefined-behaviour sanitizers, which must be loaded before Python.
SANITIZED := $(CURDIR)/build/sanitized
sanitize: $(EVERYTHING)
	mkdir -p $(SANITIZED)
	$(CC) -shared -fPIC -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -pthread \
		-I$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_paths()['include'])") \
		src/hace/losses/kernels/*.c -o $(SANITIZED)/_kernels.so -lm
	LD_PRELOAD=$$($(CC) -print-file-name=libasan.so):$$($(CC) -print-file-name=libubsan.so) ASAN_OPTIONS=detect_leaks=0 \
		HACE_KERNEL_FILE=$(SANITIZED)/_kernels.so $(BIN)/python -m tests.sanitize

lint: $(LIGHT)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pyright

bench: $(EVERYTHING)
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

# With --quiet, mkdocs would not count its warnings, and --strict could not fail.
docs: $(EVERYTHING)
	$(BIN)/python docs/check_arguments.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in site/index.html"

results: $(EVERYTHING)
	$(BIN)/python evidence/from_scratch_page.py
	$(BIN)/python evidence/summary.py
	$(BIN)/python evidence/write.py
	$(BIN)/python evidence/draw.py

clean:
	rm -rf $(VENV) $(LOWEST) hace-demo site build src/hace.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks .coverage
	find src -name '*.so' -delete
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
