# What a reader types. Every target sets up what it needs (tools/setup.sh) and does nothing twice.
#   make demo      build, install into .venv, train on two local workers
#   make wheel     build/dist/gradring-*.whl, for `pip install` elsewhere; installed into .venv as well
#   make test      linters, C++ tests (ASan+UBSan, TSan; arithmetic also as shipped), wheel, PyTorch's backend tests, Python tests
#   make conformance   PyTorch's own tests of a torch.distributed backend, on ours: all three sets (make test: two, with every test)
#   make soak      a thousand seeds of each simulation with faults (SEEDS=...)
#   make test-slow Python tests that take minutes or many GiB (servers killed at 50 points, very large messages), and tests of modes over every transport
#   make scale     collectives of 64 to 4,096 ranks and their start-up, simulated, into bench/results
#   make bench     gradring bench (BENCH="all_reduce --json")
#   make bench-compare   beside every peer, into bench/results (BENCH_COMPARE="collectives --quick")
#   make format    rewrite sources in the house's format
#   make fuzz      run each fuzz target for FUZZ_SECONDS (needs clang)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.PHONY: demo test lint test-cpp test-asan test-tsan test-python test-slow wheel wheel-and-tests conformance soak scale bench bench-compare format \
        fuzz clean setup setup-demo

# Of which OMP_NUM_THREADS says nothing here, as nproc thinks.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
SEEDS ?= 1000
FUZZ_SECONDS ?= 60
CUDA_ARCHITECTURES ?=
BENCH ?= all_reduce
BENCH_COMPARE ?=
CONFORMANCE ?=
PYTEST_ARGS ?=

BIN := .venv/bin
CMAKE := $(BIN)/cmake
export PATH := $(CURDIR)/$(BIN):$(PATH)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
CPP_SOURCES = $(shell find csrc tests bench -name '*.cc' -o -name '*.h' -o -name '*.cu' | sort)

demo: setup-demo wheel
	$(BIN)/gradring demo

# One GPU architecture is enough to test with. A wheel made by `make wheel` has all, whatever was built here before.
test: CUDA_ARCHITECTURES = 90-real
# Every test of the third set is in one of these.
test: CONFORMANCE = --gates gloo mpi --jobs 3
test: lint test-cpp test-asan test-tsan conformance test-python

setup:
	@tools/setup.sh test

setup-demo:
	@tools/setup.sh demo

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	$(BIN)/mypy

# In the wheel's own build folder: what is tested is what is shipped, and nothing is compiled twice.
test-cpp: setup wheel-and-tests
	$(BIN)/ctest --test-dir build/wheel-* --output-on-failure --no-tests=error --parallel $(JOBS)

test-asan: setup
	$(CMAKE) --workflow --preset asan

test-tsan: setup
	$(CMAKE) --workflow --preset tsan

# Two more than cores: much of the time ranks wait for each other, or for a deadline. In the order of tests/python/conftest.py.
test-python: setup wheel
	$(BIN)/pytest --numprocesses $$(( $(JOBS) + 2 )) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# The build folder under build/ is kept, so a second wheel compiles only what changed.
# With it those tests that depend on how the compiler optimises, and the benches; the sanitizers' builds have all tests
# (`cmake --workflow --preset release`: all of them as the wheel is compiled).
WITH_TESTS ?= OFF
WITH_BENCH ?= OFF
wheel-and-tests: WITH_TESTS = ARITHMETIC
wheel-and-tests: WITH_BENCH = ON
wheel wheel-and-tests: setup-demo
	@rm -rf build/dist
	$(BIN)/pip wheel . --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --wheel-dir build/dist --config-settings=cmake.define.GRADRING_WERROR=ON \
	  --config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)" \
	  --config-settings=cmake.define.GRADRING_TESTS=$(WITH_TESTS) \
	  --config-settings=cmake.define.GRADRING_BENCH=$(WITH_BENCH)
	@$(BIN)/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/dist/gradring-*.whl

conformance: setup wheel
	@$(BIN)/pip install --quiet --disable-pip-version-check expecttest==0.3.0
	$(BIN)/python tests/conformance/run.py $(CONFORMANCE)

# What `make test` makes over one transport each is made over both here.
test-slow: setup wheel
	$(BIN)/pytest -m slow --numprocesses $(JOBS) --timeout 1800 $(PYTEST_ARGS)
	$(BIN)/pytest --every-transport --numprocesses $$(( $(JOBS) + 2 )) --dist loadfile --no-loadscope-reorder \
	  $(PYTEST_ARGS) tests/python/modes tests/python/pytorch/modes tests/python/gpu

soak: setup
	$(CMAKE) --preset release
	$(CMAKE) --build --preset release --target gradring_soak gradring_ps_soak
	build/release/tests/sim/gradring_soak --seeds $(SEEDS)
	build/release/tests/sim/gradring_ps_soak --seeds $(SEEDS)

scale: setup
	$(CMAKE) --preset release
	$(CMAKE) --build --preset release --target gradring_scale
	build/release/tests/sim/gradring_scale --json bench/results/scale.json
	$(BIN)/python bench/scale.py bench/results/scale.json --to bench/results

bench: setup-demo wheel
	$(BIN)/gradring bench $(BENCH)

bench-compare: setup wheel
	$(BIN)/python bench/compare $(BENCH_COMPARE)

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP_SOURCES)

fuzz: setup
	$(CMAKE) --preset fuzz
	$(CMAKE) --build --preset fuzz
	@for target in build/fuzz/tests/fuzz/*_fuzz; do \
	  echo "$$target"; "$$target" -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
