# Every target makes the environment first, when it is missing or older than what it is made from.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
NEXT := .venv-next/.installed
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: demo demo-llm test test-all test-next check bench bench-check

demo: $(STAMP)  ## a small trained model learns a new voice; what came of it in runs/demo/summary.json
	$(BIN)/python -m recipes.voice_clone.demo

demo-llm: $(STAMP)  ## a tiny model learns a task from chats; figures in runs/demo-llm/summary.json
	$(BIN)/python -m recipes.llm_sft.demo

# Tests start several processes themselves: one thread each, or they take each other's cores.
test: $(STAMP)  ## everything but the slow proofs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-all: $(STAMP)  ## the slow proofs too: minutes each, up to 20 GB of memory
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow tests/data_prep
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow --ignore tests/data_prep  # each starts several processes
	$(MAKE) test-next

test-next: $(NEXT)  ## llm_sft on the newest transformers, accelerate and peft, in an environment without the voice packages
	OMP_NUM_THREADS=1 .venv-next/bin/python -m pytest -n 2 --dist loadfile tests/recipes/llm_sft tests/data_prep/test_text*.py tests/data_prep/test_export_audiofolder.py

check: $(STAMP)  ## lint, types, and the rules of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py

bench: $(STAMP) $(NEXT)  ## one file per claim; each prints its table
	set -e; for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python "$$file"; done
	$(BIN)/python benchmarks/_pages.py

bench-check: $(STAMP)  ## the ratios that are steady enough, against the committed ones: minutes, with nothing else running
	$(BIN)/python benchmarks/_regressions.py

# torch comes first and by itself: whichever build of that version is there (CPU or CUDA), nothing later may replace it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt pip setuptools
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --build-constraint constraints.txt -e '.[voice,faster-whisper,text,liger,ray,review,s3,serve,studio,test]'
	$(BIN)/python -m pip check
	touch $@

$(NEXT): pyproject.toml constraints-next.txt
	test -x .venv-next/bin/python || $(PYTHON) -m venv .venv-next
	.venv-next/bin/python -m pip install --quiet -c constraints-next.txt pip setuptools
	.venv-next/bin/python -m pip install --quiet -c constraints-next.txt torch
	.venv-next/bin/python -m pip install --quiet -c constraints-next.txt -e '.[text,test,bench]'
	.venv-next/bin/python -m pip check
	touch $@
