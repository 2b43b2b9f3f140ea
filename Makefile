# `make demo` and `make test` set up everything they need in .venv; Python 3.11+ and pip are enough.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-long test-cuda lint docs check clean

demo: $(READY)
	$(BIN)/mocoda demo

test: $(READY)
	$(BIN)/python -m pytest

test-long: $(READY)
	$(BIN)/python -m pytest -m long --timeout 900

test-cuda: $(READY)
	$(BIN)/python -m pytest -m cuda

lint: $(READY)
	$(BIN)/ruff check mocoda tests examples docs/site_hooks.py
	$(BIN)/ruff format --check mocoda tests examples docs/site_hooks.py
	$(BIN)/mypy

# The site, in site/; nothing is fetched. The theme's makers advertise another program unless told not to.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint test

clean:
	rm -rf .venv build dist site *.egg-info

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("mocoda needs Python 3.11 or newer; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)
