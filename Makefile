# make demo: set up, then train the built-in scene on whatever device there is.   make test: everything that can go red.
# make docs: the documentation as a site that opens without a network.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto

.PHONY: demo test test-cluster check docs install clean

demo: $(VENV)/.installed
	$(BIN)/raymine demo

test: $(VENV)/.installed-dev
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Lost processes, several hosts, clusters: minutes, and not part of `make test`.
test-cluster: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[ray]'
	$(BIN)/python -m pytest -m cluster

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_house.py

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -q -W --keep-going -d build/docs/.doctrees docs build/docs
	@echo "The documentation is built. Open $(CURDIR)/build/docs/index.html in a browser."

install: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[video]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
