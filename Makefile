# UniScale-Streams. `make help` lists the targets.
#
# Python 3.11 is all that is needed beforehand: every tool lives in .venv, at the versions of requirements/lock.txt.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3 || command -v python)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements/torch.txt requirements/lock.txt
TORCH_INDEX := https://download.pytorch.org/whl/cpu
PACKAGES := schemas agents streams experiments bench

# Further words for a command: make demo ARGS="--questions 20"
ARGS ?=

# Bytecode is written, also where the environment says not to: without it, two thirds of the time that a process takes
# to start are spent on compiling what it imports, and a deployment is eight processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help env demo test-fast test test-kafka test-long lint size sbom test-page test-clients docs bench-learner bench-stream bench-gateway bench-latency clean

help: ## Show the targets
	@grep -hE '^[a-z.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

env: $(STAMP) ## Make or renew the environment in .venv
.venv: $(STAMP)

$(STAMP): $(LOCK) requirements/environment.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" bash requirements/environment.sh

demo: $(STAMP) ## Stream 480 questions through the whole loop on this machine; writes out/demo/
	@$(BIN)/python -m streams demo $(ARGS)

lint: $(STAMP) ## Check style, formatting, types and directions of import
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

size: $(STAMP) ## Print how large the code is
	@$(BIN)/python -m tests.size --walk

# The tiers, each with its aim on two cores: test-fast 90 s, test 8 min, test-kafka and test-long as long as they need.
# A test says by its marks where it belongs (pyproject.toml); CONTRIBUTING.md says what to run when.

# One thread a library: with two, a busy neighbour on one core makes the other spin.
test-fast test test-kafka test-long: export OMP_NUM_THREADS = 1

# Three processes on two cores: the last begins with what computes, the others with what needs a broker and mostly waits
# (tests/conftest.py).
SIDE_BY_SIDE := -n 3 --dist loadgroup --no-loadscope-reorder

test-fast: $(STAMP) ## The first answer, in 90 s: the packages alone, without torch, vLLM, a broker or a network
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --light -m "not (slow or thorough or seconds or torch or broker or kafka or data)" \
		tests/schemas tests/agents tests/streams tests/simulate tests/test_*.py $(ARGS)

test: lint ## Environment, lint, and every test but the slow ones, on the embedded broker
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --broker embedded -m "not (slow or thorough)" $(ARGS)

# KAFKA_HOME names it, or it lies in ../shared/kafka beside the checkout.
test-kafka: $(STAMP) ## What needs Apache Kafka or public data, and the broker's tests again on Apache Kafka
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --broker kafka -m "(broker or kafka or data or thorough) and not embedded and not slow" $(ARGS)

test-long: lint ## Every test, soaks and kills included
	$(BIN)/python -m pytest --hypothesis-profile long $(ARGS)

test-page: $(STAMP) ## Drive the page in Chromium; installs requirements/page.txt first
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --require-hashes -r requirements/page.txt
	$(BIN)/python -m pytest tests/integration/test_page.py tests/streams/gateway/test_page_load.py tests/streams/gateway/test_page_attempts.py \
		tests/streams/demo/test_report_in_browser.py $(ARGS)

test-clients: $(STAMP) ## Ask the gateway with Node's client, LangChain, LiteLLM and agent frameworks; installs them first
	@if command -v npm > /dev/null; then cd tests/streams/gateway/node && npm ci --no-audit --no-fund --loglevel=error; fi
	@$(BIN)/python -m tests.support.client_environments
	$(BIN)/python -m pytest tests/streams/gateway/test_node.py tests/streams/gateway/clients $(ARGS)

docs: out/docs/env/.installed ## Build the documentation as a site, links and anchors checked; writes out/docs/site/
	@rm -rf out/docs/pages && mkdir out/docs/pages
	@git ls-files --cached --others --exclude-standard '*.md' docs | xargs cp --parents -t out/docs/pages
	@NO_MKDOCS_2_WARNING=1 out/docs/env/bin/mkdocs build && echo out/docs/site/index.html

# An environment of its own, so that .venv stays as small as it is.
out/docs/env/.installed: requirements/docs.txt
	@mkdir -p out/docs && rm -rf out/docs/env && $(PYTHON) -m venv out/docs/env
	@out/docs/env/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --require-hashes --only-binary=:all: -r $<
	@touch $@

bench-learner: $(VENV)/.peers ## Measure the learner; writes out/bench/learner.json
	@$(BIN)/python -m bench learner $(ARGS)

# Without them the learner is measured all the same; the row of a peer then says what is missing.
$(VENV)/.peers: $(STAMP) requirements/learner-peers.txt
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --require-hashes --only-binary=:all: \
		-r requirements/learner-peers.txt && touch $@ || echo "error: requirements/learner-peers.txt could not be installed; going on"

bench-stream: $(STAMP) ## Measure the streams on every broker; writes out/bench/stream.json
	@$(BIN)/python -m bench streams $(ARGS)

bench-gateway: $(STAMP) ## Measure the gateway beside LiteLLM; writes out/bench/gateway.json
	@$(BIN)/python -m bench gateway $(ARGS)

bench-latency: $(STAMP) ## Measure where the time of live queries goes; writes out/bench/latency.json
	@$(BIN)/python -m bench latency $(ARGS)

sbom: $(STAMP) ## List what the product is made of, with hashes (CycloneDX); writes out/sbom.json
	@mkdir -p out
	@$(BIN)/python -m tests.sbom > out/sbom.json

clean: ## Remove the environment, caches and out/
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
