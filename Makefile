# wellread: each target does all its own set-up on a machine with Python 3.11 and a package registry.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PICTURE = Marie Curie grew up in Warsaw and went to Paris to study physics. With her husband Pierre Curie she discovered \
	polonium and radium, and later hiked with Albert Einstein in the Alps.

.DEFAULT_GOAL := help
.PHONY: help demo test check docs picture notebooks bench format assets clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: assets ## Install, fetch, build two knowledge bases, link a sample text, draw attention with knowledge
	$(BIN)/wellread link --kb vital --file docs/sample.txt
	@mkdir -p demo
	$(BIN)/wellread link --kb vital --kb wordnet --file docs/sample.txt --format html --to demo/linked.html
	$(BIN)/wellread explain "The Academy of Fine Arts is located in Northern Maidan." --maps entity --map-weight 10 --to demo/explained.html
	@echo "Open demo/linked.html in a browser: hover or tab through the links to see their candidates."
	@echo "Open demo/explained.html: attention with and without the entity map."

test: $(VENV)/.dev assets ## Run all tests
	$(BIN)/python -m pytest -m "slow or not slow"

check: $(VENV)/.dev ## Run the linters and type checks, cheapest first
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/check_words.py
	$(BIN)/lint-imports
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

clean: ## Remove the files that the targets above create
	rm -rf $(VENV) demo site .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[spacy]"
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[serve,spacy,spark,dev,docs]"
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@
