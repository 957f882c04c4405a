PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install test check demo clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev --editable ".[all]"
	@touch $(STAMP)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest tests -n 2 --timeout 300

demo: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh demo.sh

clean:
	rm -rf $(VENV) .trace2evolve .pytest_cache .mypy_cache .ruff_cache
