# Each target installs what it needs into .venv once. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)

.PHONY: help demo test lint docs coverage browser screenshots clean
.DELETE_ON_ERROR:

help:
	@echo "make demo         install, index about 10,000 emoji, run eight example queries and write a gallery"
	@echo "make test         all checks: lint, documentation, tests"
	@echo "make lint         ruff (rules and format), mypy and import-linter"
	@echo "make docs         build the documentation into site/"
	@echo "make coverage     run the tests and report their coverage"
	@echo "make screenshots  take the screenshots in docs/ again, after make demo"
	@echo "make clean        remove the virtual environment, caches and site/ (not demo/)"
	@echo
	@echo "Needs Python 3.11 or newer. To choose one: make test PYTHON=python3.12"

demo: .venv/.installed-demo
	$(BIN)/genius demo
	@echo
	@echo "The command genius is in $(BIN). Before you type it: source $(BIN)/activate"

# The tests use tiny tensors: one thread is fastest and gives the same last digits on every machine. Two test files run
# side by side.
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder
test: browser
	@$(MAKE) --no-print-directory -j 2 lint docs
	$(PYTEST) $(SIDE_BY_SIDE)

coverage: browser
	$(PYTEST) $(SIDE_BY_SIDE) --cov --cov-report=term

lint: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: .venv/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The page is tested in a real browser. Without one, these tests are skipped.
browser: .venv/.installed-dev
	@PYTHONPATH=tests/support $(BIN)/python -c 'import browser, sys; sys.exit(not browser.found())' && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium, to test the page with."; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium; } \
	    >/dev/null 2>&1 && exit 0; \
	fi; \
	echo "There is no browser to test the page with. To get one: apt install chromium, or .venv/bin/playwright install chromium"

# The screenshots in docs/, taken with the index of the demo.
screenshots: .venv/.installed-dev
	$(BIN)/python docs/screenshots.py demo/emoji.genius

# One stamp file for each set of extras in pyproject.toml. For development, torch is installed first, so that no other
# package picks its version; the demo needs none.
.venv/.installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "GENIUS needs Python 3.11 or newer, and $(PYTHON) is older or missing." >&2; \
	  echo "Install one and name it, for example: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { \
	  echo "The virtual environment .venv could not be made. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into .venv. The first time this takes a few minutes."
	$(if $(filter dev,$*),$(PIP_INSTALL) $(TORCH))
	$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage build dist site
	find genius tests examples -name __pycache__ -type d -exec rm -rf {} +
