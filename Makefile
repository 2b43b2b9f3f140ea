# Every target sets up what it needs in .venv; Python 3.11+ and pip are enough. `make demo` installs what the
# package itself and its robot need, the others also tools and all optional packages.
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo-ready
TEST := .venv/.test-ready
# A comma of a call separates its arguments.
ROBOT := hooksweep,report
CODE := mocoda experiments tests examples docs/site_hooks.py

.PHONY: demo test approve test-long test-cuda lint docs check clean

demo: $(DEMO)
	$(BIN)/mocoda demo

# Tests use one thread each, and a file's share what they set up, so two files at a time take half the time.
test: $(TEST)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

# Takes the error messages as they are now over into tests/messages.json; read the diff before you commit it.
approve: $(TEST)
	rm -f tests/messages.json && echo "{}" > tests/messages.json
	APPROVE=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-long: $(TEST)
	$(BIN)/python -m pytest -m long --timeout 900

test-cuda: $(TEST)
	$(BIN)/python -m pytest -m cuda

lint: $(TEST)
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

# Builds the site in site/ without a network; --quiet would let warnings pass that --strict stops at. The variable silences
# an advertisement by the theme's authors.
docs: $(TEST)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

check: lint docs test

clean:
	rm -rf .venv build dist site *.egg-info

define install
	$(PYTHON) -c 'import sys; sys.exit("mocoda needs Python 3.11 or newer; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e "$(1)"
endef

$(DEMO): pyproject.toml constraints.txt
	$(call install,.[$(ROBOT)])
	touch $@

$(TEST): pyproject.toml constraints.txt
	$(call install,.[dev])
	touch $(DEMO) $@
