# Every target does its own set-up: python3 (3.11 or newer), make and git are all it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OUT    ?= out
# One more than processors: some tests wait most of the time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
DOCKER ?= docker
HELM   ?= helm
IMAGE  ?= gpu-topology
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# Each start of a program would compile our code anew, and each worker rewrite all asserts.
unexport PYTHONDONTWRITEBYTECODE
# Ends a target with one line where a program is missing: $(call needs,program,what to set)
needs = @command -v $(firstword $(1)) >/dev/null || \
  { echo "error: $(firstword $(1)) is not here: install it, or name it: make $@ $(2)" >&2; exit 2; }
# The same where the program's daemon does not answer.
answers = $(call needs,$(1),$(2)); $(1) info >/dev/null 2>&1 || \
  { echo "error: $(firstword $(1)) does not answer ($(1) info says why): start its daemon, or name another program: make $@ $(2)" >&2; exit 2; }
E2E_WORKERS ?= 3 # a control plane each; most of the time is waiting

.DEFAULT_GOAL := help
.PHONY: help run dev check test test-long coverage test-versions closed-loop differential fuzz lint e2e e2e-dra chaos bench chart chart-package images plugin release reference docs docs-version screenshots axe lock lock-base clean

help:                           ## show the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/run.stamp          ## place 200 pods on a bundled 64-node cluster and show what happened
	$(BIN)/gpu-topology demo --out $(OUT)

dev: $(VENV)/dev.stamp          ## what tests and benchmarks need, into .venv
	@echo "ready: $(BIN)/python -m benchmarks --help"

check: $(VENV)/dev.stamp        ## format, lint, types, and the tests beside what has changed: before each commit
	$(BIN)/python -m tests.changed

PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder tests --ignore=tests/e2e

test: $(VENV)/dev.stamp         ## unit, property and service tests; six minutes on two processors
	$(PYTEST) -m "not long"

test-long: $(VENV)/dev.stamp    ## the closed loop, what needs Go, the images, and all else that takes long
	$(PYTEST) -m long

coverage: $(VENV)/dev.stamp     ## which lines every fourth test file runs; to trace them takes more than twice as long
	find tests/topology tests/scheduler_extender tests/benchmarks -name 'test_*.py' -not -path '*/web/*' | sort | awk 'NR % 4 == 1' | \
	  xargs $(BIN)/coverage run -m pytest -q -m "not long"
	$(BIN)/coverage report --sort=cover

# Tests that start each command and ask what it serves; typer, fastapi, kubernetes and NVML are all in it.
SMOKE := $(addprefix tests/scheduler_extender/cli/,test_cli.py test_check.py test_bad_input.py) \
  $(addprefix tests/scheduler_extender/,test_demo.py cli/test_check_files.py::test_a_reader_that_goes_away_is_no_answer) \
  tests/topology/agent/test_command.py \
  --deselect tests/topology/agent/test_command.py::test_bad_input_is_one_line

test-versions: $(VENV)/dev.stamp ## every command with the lowest versions that pyproject.toml allows, and with the newest
	for each in lowest-direct highest; do \
	  echo "$$each:"; \
	  $(BIN)/uv venv -q --clear --python $(BIN)/python $(OUT)/versions/$$each && \
	  export VIRTUAL_ENV=$(OUT)/versions/$$each && \
	  $(BIN)/uv pip install -q --resolution $$each --only-binary :all: -r pyproject.toml \
	    --extra agent --extra extender --extra tests --group build && \
	  $(BIN)/uv pip install -q --no-deps --no-build-isolation -e . && \
	  $(BIN)/uv pip check -q && \
	  $(OUT)/versions/$$each/bin/python -m pytest -q -n $(WORKERS) --dist loadfile -o filterwarnings=default $(SMOKE) || exit 1; \
	done

closed-loop: $(VENV)/dev.stamp  ## promises in virtual time, with every fault, ten times as long as in `make test-long`
	GPU_TOPOLOGY_CLOSED_LOOP_TIMES=10 $(BIN)/python -m pytest -q tests/benchmarks/promises/test_closed_loop.py tests/benchmarks/promises/test_groups_loop.py
	$(BIN)/python -m benchmarks promises --placements 100000 --json $(OUT)/promises.json
	$(BIN)/python -m benchmarks promises --kind DRA --placements 100000 --json $(OUT)/promises-dra.json

differential: $(VENV)/dev.stamp ## the model beside Kubernetes' own managers: 100,000 admissions (needs Go; builds once)
	$(BIN)/python -m tests.differential --admissions 100000 --keep $(OUT)/differential

fuzz: $(VENV)/dev.stamp          ## texts and objects of strangers, changed at random, for ten minutes; prints the seeds
	$(BIN)/python -m tests.fuzz --seconds 600 --keep $(OUT)/fuzz

lint: $(VENV)/dev.stamp         ## ruff, mypy --strict, import contracts, declared packages, links of the site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry topology scheduler_extender
	$(BIN)/deptry benchmarks manifests tests --ignore DEP002,DEP004
	$(MAKE) --no-print-directory docs

e2e: $(VENV)/dev.stamp          ## against a real kube-apiserver and kube-scheduler (builds them once); kubelets too with GPU_TOPOLOGY_REAL_KUBELET=1, as root
	$(BIN)/python -m pytest -q -ra -n $(E2E_WORKERS) --dist loadfile tests/e2e

e2e-dra: $(VENV)/dev.stamp      ## the tests of DRA among them once more, on Kubernetes 1.36
	GPU_TOPOLOGY_DRA_RELEASE=1.36 $(BIN)/python -m pytest -q -ra -n $(E2E_WORKERS) --dist loadfile tests/e2e/test_dra*.py

chaos: $(VENV)/dev.stamp        ## replicas, API server and etcd killed at random; GPU_TOPOLOGY_CHAOS_SECONDS (900), GPU_TOPOLOGY_CHAOS_SEED
	GPU_TOPOLOGY_CHAOS_SECONDS=$${GPU_TOPOLOGY_CHAOS_SECONDS:-900} GPU_TOPOLOGY_CHAOS_KEEP=$(OUT)/chaos \
	  $(BIN)/python -m pytest -q -s tests/e2e/chaos/test_chaos.py

bench: $(VENV)/dev.stamp        ## filter and prioritize over HTTP beside the do-nothing route
	$(BIN)/python -m benchmarks latency --json $(OUT)/latency.json

chart: $(VENV)/dev.stamp         ## the templates of the Helm chart, from manifests/base
	$(BIN)/python -m manifests.generatechart

chart-package:                  ## the Helm chart as one file, of the project's version (needs Helm)
	$(call needs,$(HELM),HELM=/path/to/helm)
	$(HELM) lint --strict manifests/chart --set image.repository=gpu-topology
	$(HELM) package manifests/chart --version "$(VERSION)" --app-version "$(VERSION)" --destination $(OUT)

images:                         ## both images, IMAGE=registry/name; PUSH=1 pushes them, too (needs Docker)
	$(call answers,$(DOCKER),DOCKER=podman)
	$(DOCKER) build --target extender -t "$(IMAGE):$(VERSION)" .
	$(DOCKER) build --target agent -t "$(IMAGE)-agent:$(VERSION)" .
ifneq ($(filter-out 0 no false,$(PUSH)),)
	$(DOCKER) push "$(IMAGE):$(VERSION)"
	$(DOCKER) push "$(IMAGE)-agent:$(VERSION)"
endif

plugin: $(VENV)/dev.stamp        ## the kubectl plugin as one archive for this platform, with its manifest for krew; ADDRESS=https://… is where users will find it, PYTHONS="python3.11 python3.12" which Pythons run it
	$(BIN)/python -m manifests.buildplugin --output $(OUT)/plugin --address "$(ADDRESS)" $(PYTHONS:%=--python %)

# What the archives are dated. Without git, such as in an unpacked archive, set it.
release: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
release: $(VENV)/dev.stamp       ## what we publish, into OUT/release, the same bytes for the same commit: wheel, chart, kubectl plugin, bills of materials, SHA256SUMS; ADDRESS as for plugin (needs Helm)
	$(call needs,$(HELM),HELM=/path/to/helm)
	rm -rf $(OUT)/release
	$(BIN)/python -m manifests.buildplugin --output $(OUT)/release --address "$(ADDRESS)"
	rm $(OUT)/release/kubectl-gpu_topology # the archive has it
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation --no-index --wheel-dir $(OUT)/release .
	$(MAKE) --no-print-directory chart-package OUT=$(OUT)/release
	for each in agent extender; do \
	  $(BIN)/python -W ignore -m cyclonedx_py requirements requirements/$$each.txt --pyproject pyproject.toml \
	    --mc-type application --output-reproducible -o $(OUT)/release/$$each.cdx.json || exit 1; done
	$(BIN)/python -m manifests.releasefiles $(OUT)/release

reference: $(VENV)/dev.stamp     ## the generated parts of docs/reference, from the code
	$(BIN)/python -m manifests.reference

# The builder of the site has an environment of its own: its theme has 14,000 icons, and the archive of
# the kubectl plugin is made from a copy of VENV.
SITE := .cache/site

$(SITE)/stamp: requirements/docs.txt $(VENV)/bin/python
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

# It warns of its own successor, in colours.
docs docs-version: export NO_MKDOCS_2_WARNING := 1
docs docs-version: export REPOSITORY := $(REPOSITORY)
docs docs-version: export EDIT := $(EDIT)
docs-version: BRANCH ?= gh-pages
docs-version: export PATH := $(abspath $(SITE)/bin):$(PATH) # mike calls mkdocs

docs: $(SITE)/stamp                ## the site of docs/, into OUT/site; REPOSITORY=https://… links to it and to EDIT=edit/main/ of each page
	$(SITE)/bin/python -m mkdocs build --site-dir "$(abspath $(OUT))/site"
	@echo "look at it: $(PYTHON) -m http.server --bind 127.0.0.1 --directory $(OUT)/site"

docs-version: $(SITE)/stamp      ## a commit in the branch BRANCH with the site of this version, beside those of other versions
	$(SITE)/bin/mike --quiet deploy --branch "$(BRANCH)" --update-aliases "$(VERSION)" latest
	$(SITE)/bin/mike --quiet set-default --branch "$(BRANCH)" latest

screenshots: $(VENV)/dev.stamp   ## the map's pages, the report and the terminal, light and dark, wide and narrow (needs Chromium)
	$(BIN)/python -m tests.documents.terminals $(OUT)/screenshots
	$(BIN)/python -m tests.scheduler_extender.web.screenshots $(OUT)/screenshots

axe: .cache/axe/package/axe.min.js ## axe-core, which judges in `make test` how the pages can be read (needs npm and Chromium)

.cache/axe/package/axe.min.js:
	mkdir -p .cache/axe
	npm pack --silent --pack-destination .cache/axe axe-core@4.14.1
	tar -xzf .cache/axe/axe-core-4.14.1.tgz -C .cache/axe
	@touch $@

LOCKED = $(BIN)/uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --no-header -q

lock: $(VENV)/dev.stamp         ## resolve the dependencies again (hashes only, no addresses)
	$(LOCKED) --extra dev --group build --upgrade -o requirements/dev.txt
	$(LOCKED) --extra agent --extra extender -c requirements/dev.txt -o requirements/run.txt
	for each in agent extender plugin; do \
	  $(LOCKED) --extra $$each -c requirements/dev.txt -o requirements/$$each.txt || exit 1; done
	for each in build docs; do \
	  $(BIN)/uv pip compile --group $$each --universal --generate-hashes --no-emit-index-url --no-header -q \
	    -c requirements/dev.txt -o requirements/$$each.txt || exit 1; done

BASE = $(shell sed -n 's/^ARG PYTHON=\([^@]*\).*/\1/p' Dockerfile)

lock-base:                      ## pin the images' base in the Dockerfile: the digest that its tag has now (needs Docker and its registry)
	$(call answers,$(DOCKER),DOCKER=podman)
	$(DOCKER) pull --quiet $(BASE)
	@digest=$$($(DOCKER) image inspect --format '{{index .RepoDigests 0}}' $(BASE) | sed 's/.*@//') && \
	  case "$$digest" in sha256:*) sed -i.old "s|^ARG PYTHON=.*|ARG PYTHON=$(BASE)@$$digest|" Dockerfile && rm Dockerfile.old ;; \
	    *) echo "error: $(DOCKER) knows no digest of $(BASE)" >&2; exit 2 ;; esac
	@grep '^ARG PYTHON=' Dockerfile

clean:                          ## remove what the targets made
	rm -rf $(VENV) $(OUT) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gpu-topology needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12 …" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The builder is locked too, so that the editable install needs no build isolation. rfc3987-syntax, which
# cyclonedx-bom brings, goes: with it, and kubernetes-validate, each start of a program that imports
# kubernetes compiles 38 grammars of URIs, which takes two seconds. No schema of ours has that format.
$(VENV)/%.stamp: requirements/%.txt requirements/build.txt pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/$*.txt -r requirements/build.txt
	$(BIN)/python -m pip uninstall -qq -y rfc3987-syntax
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
