# Everything runs in an environment of its own, $(VENV), which is made from nothing on first use.
PYTHON ?= python3
VENV ?= .venv
LOWEST ?= .venv-lowest
# More options for the command at hand, e.g. make eval ARGS="--limit 20", make test ARGS="-k grid -x".
ARGS ?=

BENCHMARKS := editing executors finetune image_metrics judges negbench report

BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help eval test test-slow test-lowest test-device check format bench bench-true bench-gpu docs clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, VENV=DIR the environment, ARGS=\"...\" adds options."

# PIP_USER=0: a user-wide "user = true" in pip's configuration would make installing into an environment fail.
$(RUNTIME): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	PIP_USER=0 $(BIN)/python -m pip install --disable-pip-version-check --no-input 'pip>=22' -e .
	@touch $@

$(STAMP): $(RUNTIME)
	PIP_USER=0 $(BIN)/python -m pip install --disable-pip-version-check --no-input -e '.[dev]'
	@touch $@

eval: $(RUNTIME) ## the main job: two editors on the embedded miniature world, with the paper's table
	$(BIN)/nein eval --editor ip2p,magicbrush --limit 240 $(ARGS)

# PYTHONDONTWRITEBYTECODE=: else each of the many processes compiles the code, and rewrites the assertions, anew.
test: $(STAMP) ## the test suite: offline, on the CPU, minutes
	PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(STAMP) ## the tests that take minutes each
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m slow $(ARGS)

test-lowest: ## the test suite with the lowest versions that pyproject.toml allows, in an environment of its own
	$(PYTHON) -m venv $(LOWEST)
	PIP_USER=0 $(LOWEST)/bin/python -m pip install --disable-pip-version-check --no-input uv
	$(LOWEST)/bin/uv pip install --compile-bytecode --python $(LOWEST)/bin/python --resolution lowest-direct -e '.[dev]'
	HF_HUB_OFFLINE=1 $(LOWEST)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-device: $(STAMP) ## every kind of model on this machine's accelerator (CUDA, ROCm, MPS) against its CPU
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m device $(ARGS)

check: $(STAMP) ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python docs/site/sources.py
	cd build/sources && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml

format: $(STAMP) ## put the code into the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## the benchmarks, one after the other
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python -m "benchmarks.$$script" $(ARGS) || exit 1; done

bench-true: $(STAMP) ## true-size models with random weights beside diffusers and transformers; tens of minutes
	$(BIN)/python -m benchmarks.true_size --layers 2 $(ARGS)

bench-gpu: $(STAMP) ## the same on the GPU that is there, whole, with batch sizes found automatically
	$(BIN)/python -m benchmarks.true_size --device cuda --images 8 --steps 20 --batch-size auto $(ARGS)

docs: $(STAMP) ## the documentation as pages: build/site/index.html, which opens from disk
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --strict $(ARGS)

clean: ## remove caches and builds; keeps the environment and results
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -print | xargs rm -rf
