# Everything a developer or a curious visitor needs; `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal -q -rs

.DEFAULT_GOAL := help
.PHONY: help install demo test lint unit slow simulation planner-check predicted bench fmt docs layers clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(STAMP) ## make .venv with everything for development

# torch first, and a build for processors where pip finds one: resolved with the rest it may bring several gigabytes of
# CUDA. Point PIP_EXTRA_INDEX_URL at PyTorch's index of CPU builds if yours has none.
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1/p' constraints.txt)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install '$(TORCH)+cpu' 2>/dev/null || $(PIP) install '$(TORCH)'
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -c "import torch; \
	print('This is a CUDA build of torch; a build for processors is much smaller, see the Makefile.' * bool(torch.version.cuda), end='')"
	@touch $@

demo: $(STAMP) ## train on four agents on this machine, kill one, go on (two minutes)
	$(BIN)/asteroid demo

test: lint unit ## all that CI runs: linters, types, import rules, tests

lint: $(STAMP)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP)
	@$(BIN)/python -c "from asteroid_core.brokers import find_mosquitto as f; \
	print('mosquitto: ' + (f() or 'not installed, the tests that need it are skipped (apt install mosquitto)'))"
	$(PYTEST) -m "not slow" tests

slow: $(STAMP) ## longer tests: the paper's models, hundreds of random plans, a stall of ten seconds
	ASTEROID_STALL=10 $(BIN)/pytest -q -rP --timeout 1800 tests/integration/test_stall.py
	ASTEROID_EXAMPLES=300 $(BIN)/pytest -q -rs --timeout 1800 -m slow tests
	ASTEROID_EXAMPLES=300 ASTEROID_PLANS=20000 $(BIN)/pytest -q --timeout 1800 tests/equality/test_equality_property.py \
	tests/property/test_schedule.py

SCHEDULES ?= 5000
SEED ?= 0
simulation: $(STAMP) ## random schedules of failures in virtual time: make simulation SCHEDULES=5000 SEED=0 (a quarter of an hour)
	$(BIN)/python -m tests.simulation --schedules $(SCHEDULES) --from $(SEED)

planner-check: $(STAMP) ## planners against an exhaustive search on 2000 random small clusters (a quarter of an hour)
	$(BIN)/python -m bench.planner_check --instances 2000

predicted: $(STAMP) ## predicted beside measured rounds on emulated clusters (root, two hours)
	$(BIN)/python -m bench.predicted

bench: $(STAMP) ## the benchmarks of bench/, one after the other
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/link.py
	$(BIN)/python bench/supervisor.py
	$(BIN)/python bench/comparison.py
	$(BIN)/python -m bench.planning_time

fmt: $(STAMP) ## format and sort
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/ruff format --quiet .

SIMULATE := $(BIN)/asteroid simulate --quiet --batch 32
docs: $(STAMP) ## write docs/topics.md and broker_config/acl from the topic table, and the pictures of docs/planning.md
	$(BIN)/asteroid topics --docs docs/topics.md
	$(BIN)/python -m asteroid_core.wire.acl > broker_config/acl
	$(SIMULATE) -m resnet-50 -e B --mbit 1000 --planner asteroid --svg docs/pictures/hybrid.svg > /dev/null
	$(SIMULATE) -m resnet-50 -e B --mbit 1000 --planner dapple --svg docs/pictures/dapple.svg > /dev/null
	$(SIMULATE) -m bert-small -e A --mbit 100 --planner asteroid --svg docs/pictures/slow-links.svg > /dev/null

layers: $(STAMP) ## export the paper's models again and write their layer profiles into the catalog
	$(BIN)/python -m asteroid_coordinator.catalog.models --write

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
