# make demo       the whole way on this machine: text, tokenizer, corpus, a trained and evaluated model, a report
# make test       all tests but the slow ones (make test-slow) and those for a GPU (make test-gpu)
# make test-slow  these, in one process for some hours, then tests of properties with ten times as many examples
# make test-portable   tests of numbers and operators as on other processors: older instructions, no operators, one core
# make reliability   kills, power failures and damage, thousands of them, with a table: hours; run it again to go on
# make check      lint, format and types, then the tests
# make format     mend what lint and format can mend by themselves
# make venv       set up .venv and nothing more; TORCH=cuda takes PyTorch's build for NVIDIA GPUs, from TORCH_CUDA_INDEX
# make native     compile the native operators for CPUs, in the user's cache; a part of make demo and make venv
# make release    dist/: source distribution and wheel, each tested in a new environment without a compiler
# make docs       build/site/index.html, a site of README.md and docs/ with search and an API reference; a broken link is an error
# make lock       update requirements.lock, the exact versions that the tests run with
# make clean      remove .venv and everything else that was made here
#
# PYTHON is the interpreter that .venv is made with, any from 3.11 on: make demo PYTHON=python3.12

PYTHON ?= python3
TORCH_VERSION ?= 2.13.0
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# empty: PyPI's build, for CUDA 13; https://download.pytorch.org/whl/cu126 has one for older drivers and cards
TORCH_CUDA_INDEX ?=

# Which build of PyTorch, cpu or cuda. A .venv that is there keeps the one it was made with, unless told otherwise.
INSTALLED := $(shell cat .venv/torch 2>/dev/null)
TORCH ?= $(or $(INSTALLED),cpu)
ifeq ($(filter cpu cuda,$(TORCH)),)
$(error TORCH is "$(TORCH)"; expected cpu or cuda)
endif
ifneq ($(TORCH),$(INSTALLED))
.PHONY: .venv/base
endif

BIN := .venv/bin
CPP := src/hornbook/ops/native/csrc/*
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Python compiles what is imported, once; pip would compile all, for half of its time. Some containers forbid the former.
INSTALL := $(PIP) install --quiet $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)
FAIL = { echo "hornbook: $(1)" >&2; exit 1; }

.PHONY: help demo test test-slow test-gpu test-portable reliability check lint format docs venv native release lock clean

help:
	@sed -n 's/^# make/make/p' Makefile

demo: native
	$(BIN)/hornbook demo

# A file's tests stay in one process, where they share what its fixtures have trained. In the order of their names, since
# files with few long tests would otherwise come last and leave all processes but one idle.
test: .venv/ready-dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test-slow: .venv/ready-dev
	$(BIN)/python -m pytest -m "slow and not gpu"
	$(BIN)/python -m pytest -m "hypothesis and not slow and not gpu" --hypothesis-profile thorough

test-gpu: .venv/ready-dev
	$(BIN)/python -m pytest -m gpu

test-portable: .venv/ready-dev
	$(BIN)/python tools/portable_tests.py

reliability: .venv/ready-dev
	OMP_NUM_THREADS=1 $(BIN)/python tools/reliability --jobs 2

check: lint test

lint: .venv/ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/mypy

format: .venv/ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site 8000"

venv: native

# Where there is no compiler, hornbook does without them, and says so.
native: .venv/ready
	@$(BIN)/python tools/build_native.py

release: .venv/ready-dev
	$(BIN)/python tools/release.py

# On Linux, PyPI's torch brings gigabytes of CUDA libraries. PyTorch's own index has a build without them. pip itself
# is asked whether it reaches that index, since it may know a proxy or a certificate that nothing else here knows.
.venv/base:
	@command -v "$(PYTHON)" >/dev/null || $(call FAIL,there is no $(PYTHON): install Python 3.11 or newer; or name one: make PYTHON=...)
	@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || $(call FAIL,$(PYTHON) is older than 3.11: name a newer one: make PYTHON=...)
	@"$(PYTHON)" -c "import ensurepip; import venv" 2>/dev/null || $(call FAIL,$(PYTHON) has no venv module: apt install python3-venv)
	@rm -f .venv/base .venv/ready .venv/ready-dev
	"$(PYTHON)" -m venv $(if $(filter $(TORCH),$(INSTALLED)),,--clear) .venv
	@echo $(TORCH) > .venv/torch
	@echo "installing PyTorch $(TORCH_VERSION) for $(TORCH); this can take some minutes"
ifeq ($(TORCH),cpu)
	@if answer=$$($(PIP) index versions torch --index-url $(TORCH_CPU_INDEX) --retries 1 --timeout 5 2>&1); then \
	  $(INSTALL) --no-deps --index-url $(TORCH_CPU_INDEX) --retries 1 torch==$(TORCH_VERSION); \
	else \
	  echo "$$answer" >&2; \
	  echo "hornbook: pip found no torch at $(TORCH_CPU_INDEX), for the reason above; PyPI's build follows, on Linux with gigabytes of CUDA libraries" >&2; \
	  $(INSTALL) torch==$(TORCH_VERSION); \
	fi
else
	@$(INSTALL) $(if $(TORCH_CUDA_INDEX),--index-url $(TORCH_CUDA_INDEX) )torch==$(TORCH_VERSION)
endif
	@touch $@

.venv/ready: .venv/base pyproject.toml
	$(INSTALL) --editable .
	@touch $@

# Warnings are errors in the tests, so they run with the versions of requirements.lock, not with the newest. PyTorch is
# not in it: its builds for CPUs and for GPUs are different files with different hashes.
.venv/ready-dev: .venv/base pyproject.toml requirements.lock
	$(INSTALL) --require-hashes --requirement requirements.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch .venv/ready $@

# What PyTorch's CPU build requires is read from the installed one; the override keeps PyPI's build out.
TORCH_REQUIRES := import importlib.metadata as m; names = [r for r in m.requires("torch") if "extra ==" not in r]; \
  any("nvidia" in n for n in names) and exit("hornbook: make lock needs the CPU build of PyTorch for Linux in .venv, but this one requires CUDA"); \
  print(*names, sep="\n")

lock: .venv/base
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && \
	"$(PYTHON)" -m venv "$$scratch" && "$$scratch/bin/python" -m pip --disable-pip-version-check install --quiet uv && \
	$(BIN)/python -c '$(TORCH_REQUIRES)' > "$$scratch/torch.txt" && \
	echo 'torch; sys_platform == "never"' > "$$scratch/override.txt" && \
	"$$scratch/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --extra dev --override "$$scratch/override.txt" --no-emit-package torch --custom-compile-command "make lock" \
	  --output-file requirements.lock pyproject.toml "$$scratch/torch.txt"

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +
