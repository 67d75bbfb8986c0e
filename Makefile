# Needs make and Python 3.11 or newer; everything else goes into .venv, at the versions of constraints.txt.
#
#   make demo    install, then `attsvm study bags`
#   make test    install, then the tests of at most two processor seconds each
#   make slow    the other tests
#   make test-all  both
#   make quick   those of make test that run a line changed since the last make quick
#   make lint    ruff and pyright
#   make packaging  wheel and sdist, installed for every Python of this machine and tested outside the tree
#   make release  what a release uploads, tested from its own files, into build/release; uploads nothing
#   make bench   attsvm.solve beside every other solver, half an hour; writes benchmarks/RESULTS.md
#   make docs    the pages, into docs/_build/html
#   make site    pages, gallery, notebooks, playground and reports as one folder of static files, build/site
#   make clean   remove what the targets above made, .venv included

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python
# Byte code is written where a module is first imported; compiling the whole environment would take a minute.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile --constraint constraints.txt
# Extras name attsvm-paper and attsvm-pretrained: pip finds them in the tree only where it is asked for them by path.
PROJECTS := pretrained/pyproject.toml paper/pyproject.toml
PARTS := --editable ./pretrained --editable ./paper

# Every worker of the suite is one process with one thread; otherwise the BLAS, OpenMP and numba pools
# of N workers fight over N cores and the suite takes several times as long.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
# Workers, and the hundreds of interpreters that tests start, read byte code instead of parsing the package each time.
KEEP_BYTE_CODE := PYTHONDONTWRITEBYTECODE=
# A file stays on one worker, so a fixture that a file shares is built once; e2e, the longest, comes first.
PYTEST_FLAGS := -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: demo test slow test-all quick lint packaging release bench docs site clean

demo: $(VENV)/.core
	$(BIN)/attsvm study bags

test: SELECTION := -m "not slow"
slow: SELECTION := -m slow
# Machine code is made on the core that pip leaves idle.
test slow test-all: $(VENV)/.core
	@$(MAKE) --no-print-directory -j 2 $(VENV)/.dev $(VENV)/.kernels
	$(ONE_THREAD) $(KEEP_BYTE_CODE) $(BIN)/python -m pytest $(PYTEST_FLAGS) $(SELECTION) $(ARGS)

# testmon keeps in .testmondata which lines a test runs in its own process; -m alone would switch its selection off.
quick: $(VENV)/.dev
	$(ONE_THREAD) $(KEEP_BYTE_CODE) $(BIN)/python -m pytest -p no:xdist --testmon-forceselect -m "not slow" $(ARGS)

lint: $(VENV)/.dev
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/pyright || status=1; \
	exit $$status

packaging: $(VENV)/.dev
	$(BIN)/python tests/clean_install.py $(ARGS)

release: $(VENV)/.release
	PYTHONPATH=tests $(BIN)/python release/build_release.py $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/attsvm bench $(ARGS)

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

site: $(VENV)/.docs
	$(BIN)/python release/build_site.py $(ARGS)

clean:
	rm -rf $(VENV) build docs/_build docs/auto_examples docs/generated docs/notebooks .pytest_cache .ruff_cache .hypothesis .testmondata*

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing attsvm into $(VENV) (a few minutes, once)"
	@$(PIP) --editable '.[cli]'
	@touch $(VENV)/.package $@

$(VENV)/.dev: $(VENV)/.core $(PROJECTS)
	@echo "Installing the tools of the tests into $(VENV) (once)"
	@$(PIP) --editable '.[test,lint]' $(PARTS)
	@touch $@

# Machine code of the kernels, made once by two processes; the workers of the suite would each make all of it. The path is
# named, since pip may be installing extras, and with them the link to the package, at the same time.
$(VENV)/.kernels: $(VENV)/.package $(shell grep -rl --include='*.py' '^@kernel' src)
	-@PYTHONPATH=$(CURDIR)/src $(BIN)/python -m attsvm.compile
	@touch $@

# What the kernels need: the package, and PyTorch for those of training.
$(VENV)/.package: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) --editable '.[torch]'
	@touch $@

$(VENV)/.bench: $(VENV)/.core $(PROJECTS)
	@echo "Installing the solvers to compare with into $(VENV) (once)"
	@$(PIP) --editable '.[bench]' --editable ./pretrained
	@touch $@

$(VENV)/.release: $(VENV)/.dev
	@echo "Installing the tools of a release into $(VENV) (once)"
	@$(PIP) --editable '.[release]'
	@touch $@

$(VENV)/.docs: $(VENV)/.core $(PROJECTS)
	@echo "Installing the tools of the docs into $(VENV) (once)"
	@$(PIP) --editable '.[docs]' $(PARTS)
	@touch $@

# What a whole check needs, in one run of pip instead of three.
$(VENV)/.all: pyproject.toml $(PROJECTS) constraints.txt | $(BIN)/python
	@$(PIP) --editable '.[cli,test,lint,docs]' $(PARTS)
	@touch $(VENV)/.core $(VENV)/.dev $(VENV)/.docs $@

# A name on PATH may be a shim that runs nothing, so each candidate has to answer for itself.
$(BIN)/python:
	@for python in $(PYTHONS); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Creating $(VENV) with $$($$python --version)"; \
	        $$python -m venv --clear $(VENV) && exit 0; \
	        rm -rf $(VENV); \
	        echo "$$python could not create $(VENV): its venv module is missing (Debian: apt-get install python3-venv)." >&2; \
	        exit 1; \
	    fi; \
	done; \
	echo "attsvm needs Python 3.11 or newer and found none on PATH; install one, or name it: make PYTHON=/path/to/python3" >&2; \
	exit 1
