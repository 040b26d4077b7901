# wellread: each target does all its own set-up on a machine with Python 3.11 and a package registry.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PICTURE = Marie Curie grew up in Warsaw and went to Paris to study physics. With her husband Pierre Curie she discovered \
	polonium and radium, and later hiked with Albert Einstein in the Alps.

.DEFAULT_GOAL := help
.PHONY: help demo explain base test check docs picture notebooks bench format assets dist publish clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | awk -F'\t' '{printf "  make %-9s %s\n", $$1, $$2}'

demo: assets $(VENV)/.spacy ## Install, fetch, build two knowledge bases, link a sample text (without torch)
	$(BIN)/wellread link --kb vital --file docs/sample.txt
	@mkdir -p demo
	$(BIN)/wellread link --kb vital --kb wordnet --file docs/sample.txt --format html --to demo/linked.html
	@echo "Open demo/linked.html in a browser: hover or tab through the links to see their candidates."
	@echo "make explain draws attention with knowledge; it installs torch."

explain: assets $(VENV)/.train ## Draw attention with and without knowledge (installs torch)
	@mkdir -p demo
	$(BIN)/wellread explain "The Academy of Fine Arts is located in Northern Maidan." --maps entity --map-weight 10 --to demo/explained.html
	@echo "Open demo/explained.html: attention with and without the entity map."

base: ## Install only the base, from scratch, in build/base, and link a sentence there
	rm -rf build/base
	$(PYTHON) -m venv build/base
	build/base/bin/pip install -qq --disable-pip-version-check -c constraints.txt .
	du -sm build/base
	build/base/bin/wellread fetch minilm vital
	build/base/bin/wellread kb build vital --if-missing
	build/base/bin/wellread link --kb vital "Marie Curie was born in Warsaw."

test: $(VENV)/.dev assets ## Run all tests
	$(BIN)/python -m pytest -m "slow or not slow"

check: $(VENV)/.dev ## Run the linters and type checks, cheapest first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/check_words.py
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/mypy

docs: $(VENV)/.docs ## Build the documentation into site/, without network; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "See it: $(BIN)/python -m http.server --directory site"

picture: assets ## Draw docs/linked.svg, the linked text of README
	$(BIN)/wellread link --kb vital --format json "$(PICTURE)" | $(BIN)/python -m wellread.plots.text_svg > docs/linked.svg

notebooks: $(VENV)/.dev assets ## Run the notebooks whose code has changed, and store their outputs
	$(BIN)/python tools/run_notebooks.py --stale

bench: $(VENV)/.dev assets ## Run the benchmarks (figures of record: docs/log.md)
	$(BIN)/pip install -qq -c constraints.txt flashtext ahocorasick-rs
	$(BIN)/python -m benchmarks

format: $(VENV)/.dev ## Format the code and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

assets: $(VENV)/.installed ## Fetch the default assets, build the packaged knowledge bases, encode the vital articles
	$(BIN)/wellread fetch
	$(BIN)/wellread kb build wordnet --if-missing
	$(BIN)/wellread kb build vital --if-missing
	$(BIN)/wellread index build --kb vital

dist: $(VENV)/.dev ## Build wheel and sdist into dist/, install each into an empty environment, and use it
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	PYTHON=$(PYTHON) tools/check_dist.sh

publish: dist ## Upload dist/ to the package index (TWINE_USERNAME, TWINE_PASSWORD, TWINE_REPOSITORY_URL)
	$(BIN)/pip install -qq -c constraints.txt twine
	$(BIN)/python -m twine upload dist/*

clean: ## Remove the files that the targets above create
	rm -rf $(VENV) build demo dist site .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.spacy $(VENV)/.train $(VENV)/.docs: $(VENV)/.%: $(VENV)/.installed
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	@touch $@
