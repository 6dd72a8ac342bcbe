# Everything runs in a virtual environment of its own, made at the first `make` and kept up to date.
# Another Python gets its own: make test PYTHON=python3.12
PYTHON ?= python3.11
VENV := .venv$(patsubst -python3.11,,-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test lab bench lint clean

help:
	@echo "make demo    train on handwritten digits with two ranks, from a notebook"
	@echo "make test    run every test"
	@echo "make lab     open JupyterLab here"
	@echo "make bench   measure launches against what could be done by hand"
	@echo "make lint    check style and types"
	@echo "make clean   remove what these made"

demo: $(READY)
	$(BIN)/python notebooks/demo.py

# A GPU is for the tests of its own: the others count on a machine without one.
test: $(READY)
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest --ignore=tests/gpu
	$(BIN)/python -m pytest tests/gpu
	CUDA_VISIBLE_DEVICES= $(BIN)/python -m pytest --nbval notebooks

lab: $(READY)
	$(BIN)/jupyter lab --notebook-dir=notebooks

bench: $(READY)
	$(BIN)/python -m tests.bench

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict nbstate

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# torch goes first and alone: by its exact pin pip may take a CPU build that was put in its way
# (find-links), where a dependency's open range would bring several GB of CUDA.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,notebooks,bench]'
	touch $@
