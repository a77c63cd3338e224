# `make help` lists the commands. Each one sets up `.venv` first when it is missing or out of date.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Tests start hundreds of processes: without compiled modules each of them compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The whole tool box in one virtual environment: the package (editable) with every extra, and the tools of developers.
$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[all,dev,docs]"
	@touch $(READY)

.PHONY: setup
setup: $(READY) ## Create .venv and install the package with all extras and tools

.PHONY: demo
demo: $(READY) ## Run the main job: live orders, a Spark pipeline, results to look up (ARGS="--rows 20000 --seconds 30")
	$(BIN)/python examples/demo.py $(ARGS)

# Three processes for two processors: tests often wait. What fails there must pass alone: on a crowded machine a test
# can run out of time.
.PHONY: test
test: $(READY) ## Run the test suite; a test that fails runs once more, alone
	$(BIN)/python -m pytest -q -m "not slow and not interop and not ui" -n 3 --dist loadfile || \
	  $(BIN)/python -m pytest -m "not slow and not interop and not ui" --last-failed --last-failed-no-failures none

.PHONY: test-slow
test-slow: $(READY) ## Run the long tests that `make test` leaves out, with MINUTES (5) of mixed load
	MINUTES=$(or $(MINUTES),5) $(BIN)/python -m pytest -q -m "slow and not interop and not ui" -n 2 --dist loadfile

.PHONY: test-properties
test-properties: $(READY) ## Run the property tests on examples that were never drawn before
	$(BIN)/python -m pytest -q -m "not slow and not interop and not ui" -n 2 --dist loadfile \
	  --hypothesis-profile=search $$(git grep -l "^from hypothesis" tests | grep /test_)

.PHONY: test-spark-versions
test-spark-versions: $(READY) ## Run tests/spark on PySpark 4.0 to 4.3, and write what works on each into docs/spark.md (ARGS="4.1 --probe", ARGS=--slow)
	$(BIN)/python -m tests.spark.versions $(ARGS)

.PHONY: test-matrix
test-matrix: $(READY) ## Run the tests with every interpreter found, with the lowest and the newest dependencies
	$(BIN)/python -m tests.matrix $(ARGS)

.PHONY: test-ui
test-ui: $(READY) ## Drive all pages of the web console in headless Chromium (PICTURES=1 renews docs/images)
	$(if $(PICTURES),FLUSS_UI_PICTURES=1 )$(BIN)/python -m pytest -q -rs -m "not slow" tests/ui $(ARGS)

.PHONY: lint
lint: $(READY) ## Check style, types and workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --quiet --offline --no-progress .github

.PHONY: docs
docs: $(READY) ## Build the documentation site into build/site, strictly and without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: wheel
wheel: $(READY) ## Build wheel and sdist, check them, and use the wheel in empty environments
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.wheel dist

.PHONY: format
format: $(READY) ## Format the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: spark-bridge
spark-bridge: $(READY) ## Compile src/spark-bridge into the jar of the package (needs javac 17)
	$(BIN)/python scripts/build_spark_bridge.py

.PHONY: generate
generate: $(READY) ## Regenerate the stubs, the blocking classes, the protocol messages and the tables of the docs
	$(BIN)/python scripts/generate_blocking.py
	$(BIN)/python scripts/generate_stubs.py
	$(BIN)/python scripts/generate_protocol.py
	$(BIN)/python scripts/generate_docs.py

.PHONY: coverage
coverage: $(READY) ## Measure the coverage of the format packages
	$(BIN)/python -m pytest -q tests/metadata tests/rows tests/records tests/protocol \
	  --cov=fluss.metadata --cov=fluss.rows --cov=fluss.records --cov=fluss.protocol \
	  --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=97

.PHONY: bench
bench: $(READY) ## Measure the client against the official one, the server against raw limits, and tiering
	$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-quick
bench-quick: $(READY) ## The same in about a minute, without tiering
	$(BIN)/python -m benchmarks --quick $(ARGS)

.PHONY: bench-server
bench-server: $(READY) ## Measure the server against the real Java one (needs Maven and Java)
	$(BIN)/python -m benchmarks server $(ARGS)

.PHONY: bench-spark
bench-spark: $(READY) ## Measure reads, writes, micro-batches and tiering on Spark against Parquet
	$(BIN)/python -m benchmarks spark $(ARGS)

.PHONY: bench-front
bench-front: $(READY) ## Measure fluss.connect() against the full client, and its SQL against Parquet
	$(BIN)/python -m benchmarks front $(ARGS)

.PHONY: bench-scale
bench-scale: $(READY) ## Measure how costs grow: rows, columns, buckets, tables, clients, data (a quarter of an hour)
	$(BIN)/python -m benchmarks.scale $(ARGS)

.PHONY: interop
interop: $(READY) ## Prove compatibility with the official clients and the real server (needs Maven and Java)
	$(BIN)/python -m tests.interop.matrix $(ARGS)

.PHONY: itcases
itcases: $(READY) ## Run the Java client's own integration cases on our server (UPSTREAM=checkout with compiled tests)
	$(BIN)/python -m tests.interop.itcases $(UPSTREAM) $(ARGS)

.PHONY: interop-migrate
interop-migrate: $(READY) ## Move 50 tables of many small batches to the real server while they are written to (ARGS="--rows 30000")
	$(BIN)/python -m tests.interop.migration $(ARGS)

.PHONY: s3
s3: $(READY) ## Build a real S3 server into .cache (needs Go) and test remote segments and lakes on it
	$(BIN)/python -m tests.s3.server
	$(BIN)/python -m pytest -q -rs tests/s3 $(ARGS)

.PHONY: crash
crash: $(READY) ## Kill the server N times at random moments and check what is left
	$(BIN)/python -m tests.crash --rounds $(or $(N),200)

.PHONY: crash-groups
crash-groups: $(READY) ## Kill, stop and restart members of a group N times and check what they handled (ARGS="--seed 7")
	$(BIN)/python -m tests.crash.groups --kills $(or $(N),500) $(ARGS)

.PHONY: crash-spark
crash-spark: $(READY) ## Kill Spark drivers N times per output mode while they stream, and check what they wrote (SEED=8)
	KILLS=$(or $(N),50) $(BIN)/python -m pytest -q -m slow tests/spark/test_kills.py -k random_moments $(ARGS)

.PHONY: crash-lost
crash-lost: $(READY) ## Lose the machine N times, restore its backup and check what is there (ARGS="--store s3" after `make s3`)
	$(BIN)/python -m tests.crash.lost --rounds $(or $(N),100) $(ARGS)

.PHONY: fuzz
fuzz: $(READY) ## Read N batches and frames with changed content and valid checksums (ARGS="--seed 7 --start 5000")
	$(BIN)/python -m tests.fuzz --cases $(or $(N),1000000) $(ARGS)

.PHONY: simulate
simulate: $(READY) ## Simulate server, clients, network and disk with faults (SEED=7 ROUNDS=1000 SECONDS=120)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --rounds $(or $(ROUNDS),1000) \
	  $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS))

.PHONY: simulate-groups
simulate-groups: $(READY) ## Simulate members of a group that are killed, stopped and cut off, with clocks of their own (SEED=0 COUNT=100)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.groups --seed $(or $(SEED),0) --count $(or $(COUNT),100)

.PHONY: histories
histories: $(READY) ## Check histories of concurrent clients under faults for linearizability (SEED=0 COUNT=1000)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.histories --seed $(or $(SEED),0) --count $(or $(COUNT),1000)

.PHONY: faults
faults: $(READY) ## Let every single operation of the server's disk fail once, and check what is left (ARGS="--full-disk")
	$(BIN)/python -m tests.faults $(ARGS)

.PHONY: mutants
mutants: $(READY) ## Plant bugs into copies of the source, one at a time: the tests named for each must fail (ARGS="-k lease")
	$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: fuzz-server
fuzz-server: $(READY) ## Send N changed frames to a running server, and read what it accepted
	$(BIN)/python -m tests.fuzz.live --frames $(or $(N),100000) $(ARGS)

.PHONY: budgets
budgets: $(READY) ## Check memory, handles and loop iterations at full size, then MINUTES (60) of mixed load
	MINUTES=$(or $(MINUTES),60) $(BIN)/python -m pytest -q -s tests/abuse/test_budgets.py tests/abuse/test_loop_stalls.py

.PHONY: clean
clean: ## Remove caches and the virtual environment
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
