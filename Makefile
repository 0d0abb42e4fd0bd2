# Two commands do everything: `make demo` and `make test`. `make` alone checks all that CI checks.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: all demo test lint format docs lock wheel clean

all: lint test

demo: .venv/.local  ## judge the built-in set with the embedded model and print the report
	$(BIN)/magistrate models pull
	$(BIN)/magistrate run quickstart --judge faithfulness --judge hallucination --name demo

test: .venv/.dev  ## run every test, on the embedded model too
	$(BIN)/magistrate models pull
	$(BIN)/python -m pytest

lint: .venv/.dev  ## format check, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.dev  ## write the pages that are generated from the code
	$(BIN)/python docs/generate.py

lock: .venv/.dev  ## pin anew what pyproject.toml allows
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--quiet --custom-compile-command "make lock" --extra local pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--quiet --custom-compile-command "make lock" --extra all --group dev -c requirements.lock pyproject.toml \
		-o requirements-dev.lock

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv

.venv/.local: .venv/bin/python requirements.lock pyproject.toml
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps -e .
	touch $@

.venv/.dev: .venv/bin/python requirements-dev.lock pyproject.toml
	$(PIP) install -r requirements-dev.lock
	$(PIP) install --no-deps -e .
	touch $@ .venv/.local
