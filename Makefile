# Two commands matter: `make up` runs Counterflow on this machine, `make test` tests it.
# Needed: Python >= 3.11 and make. Everything else is installed into .venv.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v $$p; break; }; done)
MODEL ?= tiny
PART ?=
JOBS ?= 2
PYTEST_ARGS ?=
TRIALS ?= 20
SEED ?= 1

.PHONY: help up down status screenshots test demo check format bench chaos docs clean venv install install-dev

help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

screenshots: install-dev ## pictures of a running demo, into docs/img/
	@$(PY) -m scripts.screenshots $(SHOT_ARGS)

up: install ## install, migrate, seed the demo, run everything; Ctrl-C stops it
	@exec $(PY) -m webapp.supervisor $(UP_ARGS)

down: ## stop what `make up` runs
	@[ ! -x $(PY) ] || $(PY) -m webapp.supervisor stop

status: ## say whether it runs, and where
	@$(PY) -m webapp.supervisor status

test: install-dev ## run the test suite, in two processes (JOBS=0: in this one)
	@$(PY) -m pytest -n $(JOBS) --no-loadscope-reorder $(PYTEST_ARGS)

demo: install ## two jobs headless, from submit to report: one whose data goes wrong, one whose machines come and go (PART=main, PART=market: that one; MODEL=smollm2)
	@exec $(PY) manage.py demo --model $(MODEL) $(addprefix --part ,$(PART))

check: install-dev ## style, types, import arrows, migrations, generated files up to date
	@$(PY) -m scripts.check

format: install-dev ## put the code into its form
	@$(VENV)/bin/ruff check --fix --quiet . ; $(VENV)/bin/ruff format .

docs: install-dev ## write the generated files anew (docs/openapi.yaml, docs/states.md)
	@$(PY) -m scripts.check --write

bench: install-dev ## every benchmark, results under var/bench/
	@mkdir -p var/bench
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(PY) $$file || exit 1; done

bench-%: install-dev ## one benchmark, as `make bench-ingest`
	@mkdir -p var/bench
	@$(PY) benchmarks/bench_$(subst -,_,$*).py $(BENCH_ARGS)

chaos: install-dev ## seeded faults on a whole installation (TRIALS=20 SEED=1), result in var/bench/chaos.json
	@$(PY) benchmarks/chaos.py --trials $(TRIALS) --seed $(SEED) $(CHAOS_ARGS)

install: $(VENV)/installed ## what running needs
install-dev: $(VENV)/installed-dev ## what testing needs, too

# A stamp holds the hash of the requirement files, so that a fresh clone with an old .venv installs what changed.
$(VENV)/installed: FORCE | $(VENV)/bin/python
	@$(PY) scripts/install.py requirements.txt $@

$(VENV)/installed-dev: FORCE | $(VENV)/bin/python
	@$(PY) scripts/install.py requirements-dev.txt $@

$(VENV)/bin/python:
	@p="$(PYTHON)"; \
	if [ -z "$$p" ]; then \
		echo "Counterflow needs Python 3.11 or newer with the venv module (on Debian: apt install python3-venv)." >&2; \
		exit 1; \
	fi; \
	echo "Creating $(VENV) with $$p"; \
	$$p -m venv $(VENV)

.PHONY: FORCE
FORCE:

clean: down ## remove var/, caches and .venv
	@rm -rf var $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
