# make demo   sets up .venv and runs the main job      make check  linters and types
# make test   sets up .venv and passes the tests       make clean  removes .venv and demo runs
# make quick  one case of every test function of a FOLDER, before a commit: make quick FOLDER=tests/nn;
#             without the tests that are marked processes, which start Python anew
# make fuzz   the tests of properties on new examples, SEED=1 repeats those of a seed; 1,000 damaged
#             files; and every row of every configuration
# make docs   executes the notebooks, then make site
# make site   builds the site in build/docs/html with the notebooks' stored outputs and checks its
#             links; warnings are errors
# make avx2   the tests of convolutions as on a CPU without AVX-512, where oneDNN has other code
# make audit  looks up known vulnerabilities of the pinned versions
# make wheel  builds sdist and wheel in dist/, and uses the wheel in an empty environment
# make release  wheel, sdist and site, wheel and sdist used in empty environments of OLDEST and NEWEST
#             Python, and the notes of the tag from the changelog, in build/release
# make ends   make test with the lowest Python and torch that are declared, in build/OLDEST, then with the
#             newest packages and NEWEST Python
# make image  builds the Docker image, where docker runs
# make layers  trains layers with the oldest torch that they support, or with TORCH=2.5.1
# make kernels  interprets and compiles the Triton kernels; needs pip install triton (1 GB)
# make rehearse  every engine and the tests of GPUs on simulated CUDA devices; takes ten minutes
# make gpu    the benchmark of the GPU, with PYTHON's packages if there is no .venv
PYTHON ?= python3
# OpenBLAS, by which scipy searches prototypes, takes a thread a core in every process: those of two
# processes wait for each other, and a second becomes a minute
export OPENBLAS_NUM_THREADS := 1
VENV := .venv
BIN := $(VENV)/bin
PINS := --constraint constraints.txt
# a process per core, up to 4: each takes most of a gigabyte
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

# whole runs and texts: checking types at every call would take two to three times as long; the tests
# of the parts do it, and tests/federated/test_annotated_runs.py in a run of every method
UNTYPED := tests/house tests/cli tests/remote tests/methods tests/flatland tests/hyperfed tests/fedhull \
	tests/flynn tests/benchmarks \
	$(addprefix tests/federated/,batched engines processes secure test_lies.py \
		contract/test_server_states.py rounds/test_ridge_head.py rounds/test_speculation.py scores/test_metrics.py) \
	$(addprefix tests/manifolds/test_,at_once.py transforms.py valueless.py) \
	$(addprefix tests/hierarchies/test_,method.py node_table.py slot_layout.py) tests/knowledge/test_method.py \
	$(addprefix tests/run/test_,loading.py other_data.py round_trip.py secret_files.py sweeps.py trained.py) \
	tests/data/contract/test_client_slices.py tests/report/test_browser.py tests/report/test_html_report.py \
	$(addprefix tests/testing/test_,fresh_process.py audit.py noisy_audit.py node_audit.py) \
	$(addprefix tests/nn/functional/test_,convolution_memory.py recomputed.py) \
	$(foreach room,core data hierarchies knowledge manifolds nn run,$(wildcard $(addprefix tests/$(room)/test_*_,compile.py derivatives.py door.py)))
TYPED := $(addprefix --ignore=,$(UNTYPED)) \
	--jaxtyping-packages=fedbolic,flatland,hyperfed,fedhull,flynn,beartype.beartype
# the files whose tests train convolutions: oneDNN picks the code of those by instruction set
CONVOLUTIONS := $(addprefix tests/nn/functional/test_,convolution.py convolution_memory.py recomputed.py) \
	tests/nn/layers/test_image_convolution.py \
	$(addprefix tests/nn/network/test_,backbone.py hyperbolic_resnet.py own_network.py repeatable.py resnet.py) \
	tests/hyperfed/test_method.py tests/optim/test_layouts.py tests/run/test_reproducible.py
SLOWEST := --durations=30
# a test that hangs ends its process, which prints the stacks of all threads, and the run goes on
HANGING := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
TORCH := 2.4.1
OLDEST := python3.11
NEWEST := python3.14
LOWEST := $(shell sed -n 's/^ *"\(torch\)>=\(.*\)",/\1==\2.*/p' pyproject.toml)
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' fedbolic/__init__.py)
SEED := $(or $(SEED),$(shell date +%s))
FUZZ := -m hypothesis --hypothesis-profile=fuzz --hypothesis-seed=$(SEED)

.PHONY: demo test quick ends image avx2 fuzz check docs site notebooks audit wheel release layers rehearse gpu kernels install clean
.DELETE_ON_ERROR:

demo: install
	$(BIN)/fedbolic sweep --config configs/demo.yaml --jobs 2 --overwrite
	$(BIN)/fedbolic sweep --config configs/demo_hierarchies.yaml --jobs 2 --overwrite
	@$(BIN)/fedbolic report runs/demo runs/demo_hierarchies --html runs/demo.html

test: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	failed=0; $(PYTEST) $(SLOWEST) $(HANGING) $(TYPED) || failed=1; $(PYTEST) $(SLOWEST) $(HANGING) $(UNTYPED) || failed=1; exit $$failed

quick: install
	$(PYTEST) --one-case $(or $(FOLDER),tests)

ends:
	failed=0; $(MAKE) test PYTHON=$(OLDEST) VENV=build/$(notdir $(OLDEST)) PINS='$(LOWEST)' || failed=1; \
	$(MAKE) test PYTHON=$(NEWEST) VENV=build/$(notdir $(NEWEST)) PINS= || failed=1; exit $$failed

image:
	docker build --tag fedbolic:$(VERSION) .

avx2: install
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(PYTEST) $(HANGING) $(CONVOLUTIONS)

fuzz: install
	@echo "to repeat: make fuzz SEED=$(SEED)"
	$(PYTEST) $(TYPED) $(FUZZ) tests
	$(PYTEST) $(FUZZ) $(UNTYPED)
	$(PYTEST) --slow tests/house/test_readers.py tests/house/test_configs.py

check: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

docs: notebooks
	$(MAKE) site

notebooks: $(VENV)/docs
	$(BIN)/python docs/execute_notebooks.py

site: $(VENV)/docs
	$(BIN)/python -m sphinx -W --keep-going -d build/docs/doctrees docs build/docs/html
	$(BIN)/python docs/check_links.py build/docs/html

audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	build/audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

# the wheel is built from the sdist, so a file that the sdist lacks is missed here
wheel: install
	rm -rf build/front_end dist
	$(PYTHON) -m venv build/front_end
	build/front_end/bin/pip install --quiet build
	build/front_end/bin/python -m build --outdir dist .
	$(BIN)/python -m pytest --wheel dist tests/house/test_wheel.py

# $(call used,PYTHON,FILE): FILE with what runs need, in an empty environment, trains and reports
define used
$(1) -m venv build/release/$(notdir $(1))
build/release/$(notdir $(1))/bin/pip install --quiet --constraint constraints.txt "$$(ls $(2))[run]"
cd build/release && $(notdir $(1))/bin/fedbolic run --config fedavg/quick --method.rounds 1 --overwrite
endef

release: wheel site
	rm -rf build/release
	mkdir build/release
	tar -C build/docs -czf build/release/site.tar.gz html
	awk '/^## /{on = $$2 == "$(VERSION)"} on' CHANGELOG.md > build/release/notes.md
	test -s build/release/notes.md
	$(call used,$(OLDEST),dist/*.whl)
	$(call used,$(NEWEST),dist/*.tar.gz)

# in an environment with nothing else, not even the other dependencies of the package
layers:
	rm -rf build/layers
	$(PYTHON) -m venv build/layers
	build/layers/bin/pip install --quiet torch==$(TORCH) numpy jaxtyping
	build/layers/bin/pip install --quiet --no-deps .
	build/layers/bin/python tests/layers_alone.py

rehearse: install
	$(PYTEST) --slow tests/house/test_rehearsal.py tests/house/test_budgets.py

gpu:
	@mkdir -p runs
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.gpu --out runs/gpu.json

kernels: install
	TRITON_INTERPRET=1 $(BIN)/python -m pytest --kernels -m kernels tests/kernels
	$(BIN)/python -m benchmarks.kernels
	TRITON_INTERPRET=1 $(BIN)/python -m tests.kernels.error_tables
	$(BIN)/python -m tests.launches

install: $(VENV)/installed

# torch goes first: a later package would otherwise pull in another build of it
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(PINS) torch
	$(BIN)/pip install --quiet $(PINS) --editable '.[run,plots,graphs,hull,secure,fly,dp,accounting,dev]'
	touch $@

$(VENV)/docs: $(VENV)/installed
	$(BIN)/pip install --quiet $(PINS) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist runs/demo.html runs/demo runs/demo_hierarchies
