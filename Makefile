# Everything a user or a contributor runs. The environment lives in .venv and is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
NATIVE := $(wildcard src/stator/*/csrc/*.c src/stator/*/csrc/*.h)

# $(call environment,NAME): an environment inside of .venv for more libraries, which sees all that .venv holds
define environment
$(PYTHON) -m venv --system-site-packages $(VENV)/$(1)
echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" > \
	"$$($(VENV)/$(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
endef

.PHONY: demo test test-dynamic test-slow test-gpu test-cpython test-ecosystem lint bench-training bench-dynamic bench-cpu bench-gpu bench-wide sweep-transformers sweep-timm docs clean

demo: $(VENV)/.models  ## compile a real transformer and a real vision model, and compare with eager
	$(BIN)/python benchmarks/demo.py

test: lint $(VENV)/.dev $(VENV)/.models  ## lint, types and the tests, 6 to 10 minutes on 2 cores
	$(BIN)/python -m pytest -m "not slow and not gpu" --numprocesses auto --maxprocesses 16 --dist worksteal

test-dynamic: $(VENV)/.dev $(VENV)/.models  ## the quick tests with symbols for all sizes; goes on where a stopped run stopped
	$(BIN)/python -m pytest -m "not slow and not gpu" --dynamic --numprocesses auto --maxprocesses 16 --dist worksteal \
		--outcomes=build/dynamic/outcomes.jsonl --kept=tests/kept_dynamic.json

test-slow: $(VENV)/.dev $(VENV)/.models  ## the long suites: OpInfo sweep, real-size models, sanitizers
	$(BIN)/python -m pytest -m "slow and not gpu" --timeout 3600

test-gpu: $(VENV)/.dev $(VENV)/.models  ## what needs a CUDA GPU, about 8 minutes; REPORT=file.json keeps failures by cause
	REPORT="$(REPORT)" $(BIN)/python -m pytest tests/gpu -m gpu --numprocesses 8 --tb=short

test-cpython: $(VENV)/.install  ## CPython's own tests of the language through stator.compile; CPYTHON_LIB=folder if they are elsewhere
	CPYTHON_LIB="$(CPYTHON_LIB)" $(BIN)/python tests/cpython/run_suite.py $(MODULES)

test-ecosystem: $(VENV)/.dev $(VENV)/.models  ## the examples of docs/ecosystem.md, in an environment of their own
	$(call environment,ecosystem)
	$(VENV)/ecosystem/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		accelerate lightning diffusers peft torchao torch_geometric
	$(VENV)/ecosystem/bin/python -m pytest -p no:cacheprovider tests/test_ecosystem_document.py

lint: $(VENV)/.dev  ## style, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-training: $(VENV)/.models  ## training steps of twenty models beside torch.compile, and their peak memory
	$(BIN)/python -m benchmarks.run_training
	$(BIN)/python -m benchmarks.memory

bench-dynamic: $(VENV)/.models  ## programs whose sizes change from call to call
	$(BIN)/python -m benchmarks.dynamic

bench-cpu: $(VENV)/.models  ## 36 models on CPUs beside eager, torch.compile and ONNX Runtime; goes on where an earlier run stopped
	$(call environment,onnx)
	$(VENV)/onnx/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt onnx onnxruntime
	$(VENV)/onnx/bin/python -m benchmarks.cpu --missing $(CPU_ROWS)

bench-gpu: $(VENV)/.models  ## models on a CUDA GPU beside eager and torch.compile; goes on where an earlier run stopped
	$(BIN)/python -m benchmarks.gpu --peer --missing

bench-wide: $(VENV)/.models  ## models of eight more libraries beside eager's time; goes on where an earlier run stopped
	$(call environment,wide)
	$(VENV)/wide/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		diffusers torch_geometric monai kornia gpytorch torchdiffeq x-transformers segmentation-models-pytorch
	$(VENV)/wide/bin/python -m benchmarks.sweeps.run wide --columns speed speed_train --missing
	$(VENV)/wide/bin/python -m benchmarks.sweeps.table

sweep-transformers: $(VENV)/.models  ## every architecture of transformers, small: fails where one does worse than kept
	$(BIN)/python -m benchmarks.sweeps.run transformers --check

sweep-timm: $(VENV)/.models  ## every family of timm: fails where one does worse than the kept results
	$(BIN)/python -m benchmarks.sweeps.run timm --check

# torch comes first and by exact version: see constraints.txt. The isolated build needs no torch.
$(VENV)/.install: pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt) numpy
	$(PIP) --editable .
	touch $@

# torchvision's wheel asks for a build of torch with an accelerator; timm only needs its Python part
$(VENV)/.models: $(VENV)/.install
	$(PIP) transformers safetensors huggingface_hub pyyaml pillow
	$(PIP) --no-deps torchvision timm
	touch $@

$(VENV)/.dev: $(VENV)/.install
	$(PIP) pytest pytest-timeout pytest-xdist hypothesis expecttest scipy ruff mypy triton
	touch $@

docs: $(VENV)/.dev  ## the tour of docs/, made from a real dump, and the tables of operators
	$(BIN)/python docs/make_tour.py
	$(BIN)/python docs/make_operators.py

clean:
	rm -rf $(VENV) build src/*.egg-info
	find . -name '*.so' -path './src/*' -delete
