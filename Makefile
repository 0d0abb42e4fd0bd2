# Two commands do everything: `make demo` and `make test`. `make` alone is format check, lint, types and tests.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# Tests run beside each other, one process for each core; each may load a model (1 GB), so there are four at most.
PYTEST := $(BIN)/python -X faulthandler -m pytest -n logical --maxprocesses 4 --dist worksteal
PEERS := .venv-peers
TRAIN := .venv-train
WATCH := .venv-watch
RELEASE := .venv-release
WATCH_PIP := $(WATCH)/bin/python -m pip --disable-pip-version-check --no-input
TRAIN_PIP := $(TRAIN)/bin/python -m pip --disable-pip-version-check --no-input
RELEASE_PIP := $(RELEASE)/bin/python -m pip --disable-pip-version-check --no-input
PEERS_PIP := $(PEERS)/bin/python -m pip --disable-pip-version-check --no-input
ADAPTERS := opik phoenix deepeval ragas inspect mlflow argilla label_studio ray
CLIENTS := sdk openinference_openai openinference_langchain traceloop_openai openai_v2 openai_v2_events phoenix_server mlflow_server
LLAMA_CPP := llama-cpp-python>=0.3.36,<0.4

.PHONY: all demo demo-watch test test-all test-train test-adapters test-clients lint format docs bench bench-peers chaos detector lock release release-check smoke clean
.DELETE_ON_ERROR:
# Else every process of every test would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE

all: lint test

demo: .venv/.local  ## judge the built-in set by meaning, by wording and with the embedded model, on one screen
	$(BIN)/magistrate demo --pull
	@echo "see it in a browser: $(BIN)/magistrate serve --open last"

demo-watch: $(WATCH)/.watch  ## watch a small RAG application for half a minute, until an alert fires
	$(WATCH)/bin/python -m examples.watch.demo

# Tests that take long are marked `full`; `make test` runs a few of these, others each half day (tests/tiers.py).
test: .venv/.dev .venv/.browser  ## run the tests that a person waits for: some eight minutes on two cores
	$(BIN)/magistrate models pull
	$(BIN)/magistrate models pull smollm2-135m-judge
	$(PYTEST) -m "today or not full"

test-all: .venv/.dev .venv/.browser $(WATCH)/.watch  ## run every test, those of training (with torch), of the adapters and of real clients too
	$(BIN)/magistrate models pull
	$(BIN)/magistrate models pull smollm2-135m-judge
	$(PYTEST)
	@$(MAKE) --no-print-directory test-train test-adapters test-clients

test-train: $(TRAIN)/.train  ## run the tests of training, which need torch
	$(TRAIN)/bin/python -m pytest tests/train

test-adapters: $(ADAPTERS:%=.venv-adapters/%/.made)  ## run the tests of the adapters, each beside its framework
	@for name in $(ADAPTERS); do .venv-adapters/$$name/bin/python -m pytest tests/adapters/test_$$name.py || exit 1; done

test-clients: .venv/.dev $(CLIENTS:%=.venv-clients/%/.made)  ## let real clients send their spans, and ask a real Phoenix and a real MLflow, each in an environment of its own
	$(BIN)/python -m pytest tests/clients/test_clients.py tests/clients/test_phoenix_server.py tests/clients/test_mlflow_server.py

lint: .venv/.dev  ## format check, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.dev  ## write the parts of pages that are generated, and build the site (STRICT=1 needs Chromium)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m docs.site $(if $(STRICT),--strict)

bench: .venv/.local  ## measure speed and memory beside whatever peers are installed
	$(BIN)/magistrate models pull
	$(BIN)/python -m benchmarks.speed

bench-peers: $(PEERS)/.peers  ## install the engines that `make bench` measures beside ours
	@$(PEERS)/bin/python -c 'import llama_cpp' 2>/dev/null || { \
		echo "compiling llama.cpp: ten minutes or more on two cores"; $(PEERS_PIP) install '$(LLAMA_CPP)'; } || \
		echo "bench-peers: llama.cpp is left out, for the reason above (it needs a C++ compiler and CMake)" >&2
	@echo "the peers are in $(PEERS); now: make bench"

SIZE ?= small
detector: $(TRAIN)/.train .venv/.dev  ## train what ships anew (SIZE=small|large|judge, DATA=FOLDER), measure it (SETS=FOLDER); hours
	$(TRAIN)/bin/python -m benchmarks.detector.make_$(SIZE) $(DATA)
	MAGISTRATE_DATA_DIR=$(SETS) $(TRAIN)/bin/python -m benchmarks.detector.measure --size $(SIZE)

chaos: .venv/.dev  ## break everything that can break, and write what became of it to docs/reliability.md
	$(BIN)/python benchmarks/chaos.py --write
	$(BIN)/python benchmarks/chaos_watch.py --write

lock: .venv/.dev  ## pin anew what pyproject.toml allows
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--quiet --custom-compile-command "make lock" --extra local --extra server pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
		--quiet --custom-compile-command "make lock" --extra all --group dev -c requirements.lock pyproject.toml \
		-o requirements-dev.lock

release: docs $(RELEASE)/.release  ## build a release and check it, and say what is left to do by hand
	$(RELEASE)/bin/python release/make.py

release-check: docs $(RELEASE)/.release  ## build and check as `make release` does, also where nothing is to be released yet
	$(RELEASE)/bin/python release/make.py --check

smoke: $(RELEASE)/.release  ## try the wheel in dist/ on every supported Python that is on this machine
	$(RELEASE)/bin/python release/smoke.py dist/magistrate-*.whl

clean:
	rm -rf .venv .venv-peers .venv-train .venv-watch .venv-release .venv-adapters .venv-clients build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps below are made last, so that what was interrupted is done again.

.venv/.made $(PEERS)/.made $(TRAIN)/.made $(WATCH)/.made $(RELEASE)/.made:
	@command -v $(PYTHON) >/dev/null || { \
		echo "there is no $(PYTHON); install Python 3.11 or newer, or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 15) and \
		"Python 3.11 to 3.14 is needed and $(PYTHON) is %d.%d; name another one: make PYTHON=python3.12" % v[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(@D)
	@touch $@

.venv/.local: requirements.lock pyproject.toml | .venv/.made
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps -e .
	@touch $@

.venv/.dev: requirements-dev.lock pyproject.toml | .venv/.made
	$(PIP) install -r requirements-dev.lock
	$(PIP) install --no-deps -e .
	@touch $@ .venv/.local

# Torch has an environment of its own too: nothing else may come to need it.
$(TRAIN)/.train: requirements-dev.lock requirements-train.txt pyproject.toml | $(TRAIN)/.made
	$(TRAIN_PIP) install -r requirements-dev.lock
	$(TRAIN_PIP) install -r requirements-train.txt
	$(TRAIN_PIP) install --no-deps -e .
	@touch $@

# The application that is watched, and what watches it; `make demo` needs none of that.
$(WATCH)/.watch: requirements-watch.txt pyproject.toml | $(WATCH)/.made
	$(WATCH_PIP) install -r requirements-watch.txt -e '.[server,otlp]'
	@touch $@

$(RELEASE)/.release: requirements-release.txt | $(RELEASE)/.made
	$(RELEASE_PIP) install -r requirements-release.txt
	@touch $@

# Each framework has an environment of its own: what one pins, another may not bear.
.venv-adapters/%/.made: requirements-adapters/%.txt pyproject.toml | .venv/.dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python -r $< -e '.[openai]'
	@touch $@

# So has each client that sends spans, and the servers of Phoenix and of MLflow; Magistrate is in none of them.
.venv-clients/%/.made: requirements-clients/%.txt | .venv/.dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --quiet --python $(@D)/bin/python -r $<
	@touch $@

# The browser that reads the reports in the tests: that of the machine, else Debian's, else the one of playwright.
.venv/.browser: | .venv/.dev
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		apt-get install -y -qq --no-install-recommends chromium; then exit 0; fi; \
	$(BIN)/playwright install --with-deps chromium || $(BIN)/playwright install chromium
	@touch $@

# The peers have an environment of their own, so that nothing of ours comes to depend on them. torch comes first
# and alone, so that the build of it that pip finds (or that is there already) stays.
$(PEERS)/.peers: requirements-peers.txt requirements.lock pyproject.toml | $(PEERS)/.made
	$(PEERS_PIP) install "$$(grep '^torch' requirements-peers.txt)"
	$(PEERS_PIP) install -r requirements.lock
	$(PEERS_PIP) install -r requirements-peers.txt
	$(PEERS_PIP) install --no-deps -e .
	@touch $@
