# make demo       the whole way on this machine: text, tokenizer, corpus, a trained and evaluated model, a report
# make test       all tests but the slow ones (make test-slow) and those for a GPU (make test-gpu)
# make check      lint, format and types, then the tests
# make format     mend what lint and format can mend by themselves
# make venv       set up .venv and nothing more; TORCH=cuda takes PyTorch's build for NVIDIA GPUs
# make clean      remove .venv and everything else that was made here
#
# PYTHON is the interpreter that .venv is made with, any from 3.11 on: make demo PYTHON=python3.12

PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

# Which build of PyTorch, cpu or cuda. A .venv that is there keeps the one it was made with, unless told otherwise.
INSTALLED := $(shell cat .venv/torch 2>/dev/null)
TORCH ?= $(or $(INSTALLED),cpu)
ifeq ($(filter cpu cuda,$(TORCH)),)
$(error TORCH is "$(TORCH)"; expected cpu or cuda)
endif
ifneq ($(TORCH),$(INSTALLED))
.PHONY: .venv/ready
endif

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
FAIL = { echo "hornbook: $(1)" >&2; exit 1; }
REACHABLE := import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=5)

.PHONY: help demo test test-slow test-gpu check lint format venv clean

help:
	@sed -n 's/^# make/make/p' Makefile

demo: .venv/ready
	$(BIN)/hornbook demo

test: .venv/ready-dev
	$(BIN)/python -m pytest

test-slow: .venv/ready-dev
	$(BIN)/python -m pytest -m "slow and not gpu"

test-gpu: .venv/ready-dev
	$(BIN)/python -m pytest -m gpu

check: lint test

lint: .venv/ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

venv: .venv/ready

# On Linux, PyPI's torch brings gigabytes of CUDA libraries. PyTorch's own index has a build without them; its version is
# $(TORCH_VERSION)+cpu, which pip prefers to the plain one. Where that index cannot be reached, PyPI's has to do.
.venv/ready: pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || $(call FAIL,there is no $(PYTHON): install Python 3.11 or newer; or name one: make PYTHON=...)
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || $(call FAIL,$(PYTHON) is older than 3.11: name a newer one: make PYTHON=...)
	@"$(PYTHON)" -c "import ensurepip; import venv" 2>/dev/null || $(call FAIL,$(PYTHON) has no venv module: apt install python3-venv)
	@rm -f .venv/ready .venv/ready-dev
	"$(PYTHON)" -m venv $(if $(filter $(TORCH),$(INSTALLED)),,--clear) .venv
	@echo $(TORCH) > .venv/torch
	@echo "installing PyTorch $(TORCH_VERSION) for $(TORCH); this can take some minutes"
	@$(PIP) torch==$(TORCH_VERSION) $(if $(filter cpu,$(TORCH)), \
	  $$($(BIN)/python -c '$(REACHABLE)' $(TORCH_CPU_INDEX) 2>/dev/null && echo --extra-index-url $(TORCH_CPU_INDEX)))
	$(PIP) --editable .
	@touch $@

.venv/ready-dev: .venv/ready
	$(PIP) --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +
