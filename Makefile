# Two commands do everything on a fresh machine with Python 3.11+, git and make:
#   make sound TEXT="a dog barks"     make test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
TEXT   ?= a dog barks
OUT    ?= out
WORK   ?= runs/model
# One process per core; the tests use one thread each.
PYTEST_ARGS ?= -n auto

.PHONY: sound model paper test golden attack lint types check audit hashed-install sbom dist docs clean

sound: $(VENV)/.core
	@$(BIN)/diffsound generate "$(TEXT)" --output-dir "$(OUT)" --spectrogram

# The bundled model again, from recordings: hours. A stopped one goes on where it was.
model: $(VENV)/.dev
	@test -n "$(DATA)" || { echo "say where the recordings are: make model DATA=folder" >&2; exit 2; }
	$(BIN)/python tools/make_model.py "$(DATA)" --work "$(WORK)"

# The paper's tables and figures from recordings, into docs/paper-results.md: about twelve hours. Run it
# again after a stop. PAPER="--scale short" for far less training, PAPER=--plan to see the steps.
paper: $(VENV)/.dev
	@test -n "$(DATA)" || { echo "say where the recordings are: make paper DATA=folder" >&2; exit 2; }
	$(BIN)/python tools/repeat_paper.py "$(DATA)" $(PAPER)

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

# The golden set again, after a change that is meant to change sounds; the changelog says why.
golden: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python tests/end_to_end/test_golden.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test

# The attack suite at length, with EXAMPLES for each fuzzer and a kill for every 200 of them for each
# command; then docs/reliability.md.
EXAMPLES ?= 10000
attack: $(VENV)/.dev
	rm -f attack.jsonl
	DIFFSOUND_ATTACK=$(EXAMPLES) DIFFSOUND_TALLY=attack.jsonl OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest tests/attack $(PYTEST_ARGS)
	$(BIN)/python tools/reliability.py attack.jsonl

# Asks a vulnerability database on the network, so it is not part of `check`. A package that cannot
# be looked up fails it too.
audit: $(VENV)/.core
	$(PIP) install pip-audit
	$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip --strict

# The install with checksums that SECURITY.md describes, in an environment that is thrown away.
hashed-install:
	rm -rf build/hashed && python3.11 -m venv build/hashed
	build/hashed/bin/pip install --quiet --require-hashes -r hashes.txt
	build/hashed/bin/pip install --quiet --no-deps --no-build-isolation .
	build/hashed/bin/diffsound --version
	rm -rf build/hashed

sbom: $(VENV)/.dev
	$(BIN)/python tools/dependencies.py --sbom > sbom.json

# A wheel and a source archive in dist/, as an index would accept them.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

# The documentation as a site, in site/.
docs: $(VENV)/.dev
	$(BIN)/python tools/build_site.py

# torch goes first and pinned: a looser requirement would bring gigabytes of GPU libraries.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install -c constraints.txt -e ".[dev,train,eval,ear,ui,serve,onnx,cluster]"
	@touch $@

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
