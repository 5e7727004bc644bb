# The two commands are `make train` and `make test`; everything else serves them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: train test test-all lint format notebooks clean

train: $(VENV)/.installed
	$(BIN)/grpo-jax train $(ARGS)

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev
	$(PYTEST) $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Executes the notebooks and writes what they show beside them; ARGS names some of notebooks/*.py.
notebooks: $(VENV)/.installed-dev
	$(BIN)/python -m notebooks.render $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

# The stamps record what the environment was built from: it is brought up to date when these files change, and only then.
$(VENV)/.installed: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-dev: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@ $(VENV)/.installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 13) else \
	  f"grpo_jax needs Python 3.11 or 3.12, but $(PYTHON) is {v[0]}.{v[1]}: run `make PYTHON=python3.11 $(MAKECMDGOALS)`")'
	$(PYTHON) -m venv $(VENV)
