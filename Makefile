# Two commands: `make reproduce` and `make test`. Both build .venv when its inputs changed and then work offline.
SHELL := /bin/bash
PYTHON ?= python3
SCALE ?= quick
VENV := .venv
BIN := $(abspath $(VENV))/bin

export STACKELBERG_CACHE ?= $(CURDIR)/.cache
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# One thread per process, one process per core: two threads on tiny models cost twice the CPU for a tenth of the time.
export OMP_NUM_THREADS ?= 1
# Large forward passes on Linux keep their memory instead of returning it to the kernel page by page.
export MALLOC_MMAP_THRESHOLD_ ?= 4294967296
export MALLOC_TRIM_THRESHOLD_ ?= 4294967296
export PATH := $(BIN):$(PATH)

.PHONY: help reproduce batch test check lab clean
help:            ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.installed: constraints.txt settings.ini setup.py
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed, this is " + sys.version.split()[0]'
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

reproduce: $(VENV)/.installed  ## the tiny pool, its games, the first results (SCALE=smoke|quick|full)
	stackelberg reproduce --scale $(SCALE)

batch: $(VENV)/.installed      ## a grid of games (GRID=nbs/experiments/grids/smoke.toml)
	@test -n "$(GRID)" || { echo 'make batch GRID=FILE: give a grid, as in nbs/experiments/grids' >&2; exit 2; }
	stackelberg batch $(GRID)

test: $(VENV)/.installed       ## every notebook, then pytest
	nbdev_test --n_workers 2 --timing
	pytest -q tests

check: $(VENV)/.installed      ## notebooks clean, package exported, README written
	pytest -q tests/test_notebooks.py

lab: $(VENV)/.installed        ## read and edit the notebooks
	jupyter lab nbs

clean:           ## forget environment, cache and runs
	rm -rf $(VENV) .cache runs
