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

.PHONY: sound model test lint types check clean

sound: $(VENV)/.core
	@$(BIN)/diffsound generate "$(TEXT)" --output-dir "$(OUT)" --spectrogram

# The bundled model again, from recordings: hours. A stopped one goes on where it was.
model: $(VENV)/.dev
	@test -n "$(DATA)" || { echo "say where the recordings are: make model DATA=folder" >&2; exit 2; }
	$(BIN)/python tools/make_model.py "$(DATA)" --work "$(WORK)"

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

check: lint types test

# torch goes first and pinned: a looser requirement would bring gigabytes of GPU libraries.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) install -c constraints.txt -e ".[dev,train,eval,ui,serve,onnx]"
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
