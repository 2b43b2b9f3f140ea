# Every target sets up what it needs in .venv; Python 3.11+ and pip are enough. `make demo` installs what the
# package itself and its robot need, the others also tools and all optional packages.
PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo-ready
TEST := .venv/.test-ready
LOADERS := $(CURDIR)/.venv-loaders
# It goes with the torch of constraints.txt.
VISION := torchvision==0.28.0
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
# A comma of a call separates its arguments.
ROBOT := hooksweep,report
, := ,
CODE := mocoda experiments tests examples docs/site_hooks.py

.PHONY: demo test approve test-long test-cuda test-loaders notebook lint docs check clean

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

# What is written, read by LeRobot and robomimic themselves, each in an environment of its own below .venv-loaders: 460 MB,
# and a network. pip would bring them other versions of torch, 5 GB each; their loaders run with the torch of .venv, and
# with those of their other dependencies that loading needs.
test-loaders: $(LOADERS)/lerobot-v2.1/.ready $(LOADERS)/lerobot-v3.0/.ready $(LOADERS)/robomimic/.ready
	LEROBOT_2_PYTHON=$(LOADERS)/lerobot-v2.1/bin/python LEROBOT_3_PYTHON=$(LOADERS)/lerobot-v3.0/bin/python \
	ROBOMIMIC_PYTHON=$(LOADERS)/robomimic/bin/python $(BIN)/python -m pytest tests/data -k own_loader

# Runs the example notebook, and saves what it shows.
notebook: $(TEST)
	SAVE_NOTEBOOK=1 $(BIN)/python -m pytest tests/docs/test_notebook.py

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
	rm -rf .venv .venv-loaders build dist site *.egg-info

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

# An environment that sees what .venv has, with packages but not what they depend on, and then with some of that.
define loader
	rm -rf $(@D)
	$(BIN)/python -m venv $(@D)
	$(BIN)/python -c '$(SITE)' > $$($(@D)/bin/python -c '$(SITE)')/shared.pth
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(1)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(2)
	touch $@
endef

$(LOADERS)/lerobot-v2.1/.ready: $(TEST)
	$(call loader,lerobot==0.3.3 $(VISION),"datasets>=3$(,)<=3.6" "huggingface-hub>=0.34$(,)<0.36" jsonlines "av<16")

$(LOADERS)/lerobot-v3.0/.ready: $(TEST)
	$(call loader,lerobot==0.4.4 $(VISION),"datasets>=4$(,)<5" "huggingface-hub>=0.34$(,)<0.36" jsonlines "av<16" accelerate)

$(LOADERS)/robomimic/.ready: $(TEST)
	$(call loader,robomimic==0.3.0,psutil tqdm termcolor)
