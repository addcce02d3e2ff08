# `make demo` and `make test` are all a newcomer needs; both begin with `make install`, which is idempotent.
#   make demo ARGS="--seed 1 --output_dir runs/one"    flags for the recipe
#   make test ARGS="-k webshop"                        flags for pytest
#   PYTHON=/path/to/python3 make install               another interpreter

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow lint format clean

BIN := .venv/bin
ARGS ?=

help:
	@echo "make demo       train and evaluate the WebShop agent (ARGS= flags for recipes/ppo_webshop.py)"
	@echo "make test       the fast tests (ARGS= flags for pytest)"
	@echo "make test-slow  the tests that take more than a few seconds"
	@echo "make lint       ruff and mypy"
	@echo "make format     let ruff rewrite what it can"
	@echo "make install    .venv with the tested versions; the others call it"
	@echo "make clean      remove caches and build outputs (keeps .venv and runs/)"

install:
	@.ci/make-venv .venv

# Without this, `accelerate launch` leaves a process without a GPU one thread, however many cores there are.
demo: install
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-$$(getconf _NPROCESSORS_ONLN)} \
	    $(BIN)/accelerate launch recipes/ppo_webshop.py $(ARGS)

test: install
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-slow: install
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info envs/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find trl_agent envs recipes tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
