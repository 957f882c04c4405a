PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is kept whatever the surroundings say: without it every process compiles everything anew.
export PYTHONDONTWRITEBYTECODE :=
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
	$(BIN)/pytest tests -n 2 --dist worksteal --timeout 300

DEMO := .trace2evolve/demo
SUITES := support tau2-retail tau2-airline tau2-telecom

demo: install
	@rm -rf $(DEMO)
	@echo "1. The do-nothing agent on every suite: what it passes, a task does not ask for."
	@$(BIN)/pytest suites --t2e-agent nop --t2e-run-folder=$(DEMO)/nop --no-header --tb=no -rN || test $$? -eq 1
	@echo
	@echo "2. The oracle, which performs the gold actions: what it fails, the benchmark cannot ask for."
	@$(BIN)/pytest suites --t2e-agent oracle --t2e-run-folder=$(DEMO)/oracle --no-header --tb=no -rN
	@for suite in $(SUITES); do \
	  echo; echo "3. The gate: nop against oracle on $$suite."; \
	  $(BIN)/trace2evolve compare $(DEMO)/nop/$$suite $(DEMO)/oracle/$$suite || exit 1; \
	done
	@echo
	@echo "Evidence: $(DEMO). Next: pytest --candidate v6 --t2e-replay RESULTS --t2e-baseline RESULTS"

clean:
	rm -rf $(VENV) .trace2evolve .pytest_cache .mypy_cache .ruff_cache
