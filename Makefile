PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is kept: without it every process compiles everything anew. pip leaves it
# to whoever imports a module first (--no-compile): most of what is installed never is, and it took a minute.
export PYTHONDONTWRITEBYTECODE :=
STAMP := $(VENV)/.installed

.PHONY: bench browser docs install test test-fast test-libraries check demo demo-model dist clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --group dev --editable ".[all]"
	@touch $(STAMP)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/rooms.py

# Tests write and sync thousands of small files. A disk in memory saves a third of such a test's time: it is taken
# where there is one with room that lets programs run. What passed leaves nothing there.
ROOM = $(shell cd /dev/shm 2>/dev/null && [ "$$(df -Pk . | awk 'NR == 2 { print $$4 }')" -gt 4000000 ] \
  && probe=$$(mktemp -p .) && { chmod +x $$probe && $$probe && echo /dev/shm; rm -f $$probe; })

test: check
	$(if $(ROOM),TMPDIR=$(ROOM)) $(BIN)/pytest tests -n 2 --dist worksteal --timeout 300 \
	  -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1

# Agents of other frameworks, logs made with the real SDKs, and the real llama.cpp. These packages have an environment of their own:
# they bring a pytest plugin that takes longer to load than all others together.
LIBRARIES := build/libraries
LIBRARY_TESTS := tests/agents/test_frameworks.py tests/models/test_llama_cpp.py tests/importing/test_sdk_logs.py tests/hotel_story tests/improve/test_gepa.py

$(LIBRARIES)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LIBRARIES)
	$(LIBRARIES)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(LIBRARIES)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt \
	  --group dev --group agents --group logs --group engines --editable ".[gepa]"
	@touch $@

test-libraries: $(LIBRARIES)/.installed
	$(if $(ROOM),TMPDIR=$(ROOM)) $(LIBRARIES)/bin/pytest $(LIBRARY_TESTS) -n 2 --timeout 300 -q \
	  -p no:langsmith_plugin

# Debian's Chromium, and what drives it, for the tests of the report page. It needs root and a network.
browser: install
	command -v chromium > /dev/null || apt-get install -qq -y --no-install-recommends chromium > /dev/null
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group browser

# What calls, comparisons and sessions cost, next to a bare client: minutes on two cores.
bench: install
	$(BIN)/python benchmarks/live.py
	$(BIN)/python benchmarks/compare.py --tasks 114 --trials 8
	$(BIN)/python benchmarks/session.py

# The rooms whose tests start no session, server or training.
FAST := records scoring gate evidence project engine models agents judges formats unit

test-fast: install
	$(BIN)/pytest $(addprefix tests/,$(FAST)) -n 2 --dist worksteal --timeout 300 -q

# The demo needs the base install only, without torch, which takes seconds instead of minutes. It has an environment
# of its own, so that `make test` still installs everything into the other one.
LIGHT := build/demo

$(LIGHT)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt --editable .
	@touch $@

demo: $(LIGHT)/.installed
	@$(LIGHT)/bin/python docs/demo.py

# A candidate with the embedded model, live: minutes on two cores. Answers are sampled, so now and then the verdict
# differs from the expected one, and the demo fails.
demo-model: install
	@$(BIN)/python docs/demo.py --model

# The documentation site in build/docs/site, by tools in an environment of their own. Broken links are errors.
docs: build/docs/.installed
	rm -rf build/docs/pages
	$(PYTHON) docs/site.py build/docs/pages
	build/docs/env/bin/zensical build --strict

build/docs/.installed: pyproject.toml
	$(PYTHON) -m venv build/docs/env
	build/docs/env/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	build/docs/env/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --group docs
	@touch $@

# The wheel and the sdist, built and checked by tools in an environment of their own.
dist:
	rm -rf dist build
	$(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet build twine
	build/tools/bin/python -m build --outdir dist .
	build/tools/bin/twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist .trace2evolve .pytest_cache .mypy_cache .ruff_cache
