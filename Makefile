# Everything starts here. Nothing but make and a Python 3.11 or 3.12 is needed; each target sets up
# what it needs first, once.

# The quickest of these on PATH is taken; names or paths.
PYTHONS := python3.11 python3.12 python3 python
PYTHON  := .venv/bin/python
STAMP   := .venv/installed
WIRE    := state_machines/wire

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help run test test-long verify fix proto contract pictures setup sim proof bench bench-peers
.PHONY: bench-scale bench-jobs
.NOTPARALLEL:

help:
	@echo "make run      set up, then the demonstration: a local cluster, brokers, faults, a report"
	@echo "              (make run ARGS=--keep leaves the cluster running)"
	@echo "make test     set up, then the tests (make test ARGS='tests/raft -q' for some)"
	@echo "make test-long    those that take more than ten seconds each: stories through Spark,"
	@echo "              faults on Ray, every planted bug, real peers"
	@echo "make sim      many simulated clusters under faults (make sim SEEDS=20000)"
	@echo "make proof    every long proof, resumable; figures in build/proof.json (hours)"
	@echo "make bench    measure this machine, beside the last time; build/bench.json, build/bench.png"
	@echo "make bench-peers  the same beside etcd and ZooKeeper, in turns (apt-get line if not installed)"
	@echo "make bench-scale  one replica as its rows grow; build/scale.json, build/scale.png (minutes;"
	@echo "              with ARGS='--sizes 10000,1000000,10000000' up to an hour)"
	@echo "make bench-jobs   the Spark jobs over 1 000 000 and 10 000 000 rows; build/jobs.json"
	@echo "              (with ARGS='--rows 100000' some minutes)"
	@echo "make verify   what must hold before a change is taken; writes nothing"
	@echo "make fix      format, and repair what the linter can"
	@echo "make proto    generate $(WIRE)/*_pb2 from proto/"
	@echo "make contract write proto/entities.proto and docs/entities.md from the registry"
	@echo "make pictures draw docs/architecture.png and docs/pictures/*.png"
	@echo "make setup    only set up .venv"

run: setup
	@.venv/bin/metaray demo $(ARGS)

# What needs no cluster runs on two cores, what needs one has the machine for itself.
ALL_TESTS = "$$python" -m pytest -q -n 2 --dist loadfile -m "not ray and not long" && \
    "$$python" -m pytest -q -m "ray and not long"

test: setup
	@python=$$($(PYTHON) -m metaray.plain) && \
	$(if $(strip $(ARGS)),"$$python" -m pytest $(ARGS),$(ALL_TESTS))

test-long: setup
	@python=$$($(PYTHON) -m metaray.plain) && "$$python" -m pytest -q -m long $(ARGS)

# Long runs: they print progress, can be stopped and gone on with, and write build/.
SEEDS := 1000

sim: setup
	$(PYTHON) -m tests.simulation run --seeds $(SEEDS)

proof: setup
	@python=$$($(PYTHON) -m metaray.plain) && "$$python" -m tests.proof $(ARGS)

bench: setup
	@.venv/bin/metaray bench $(ARGS)

bench-peers: setup
	@.venv/bin/metaray bench --peers etcd,zookeeper $(ARGS)

bench-scale: setup
	@python=$$($(PYTHON) -m metaray.plain) && "$$python" -m bench.scale $(ARGS)

bench-jobs: setup
	@python=$$($(PYTHON) -m metaray.plain) && "$$python" -m bench.pipeline $(ARGS)

verify: setup
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	@echo "generated code is what proto/ generates"
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(PYTHON) -m grpc_tools.protoc -I$(WIRE)=proto --python_out="$$fresh" --pyi_out="$$fresh" \
	    $(WIRE)/raft.proto $(WIRE)/api.proto $(WIRE)/link.proto && \
	for file in raft_pb2.py raft_pb2.pyi api_pb2.py api_pb2.pyi link_pb2.py link_pb2.pyi; do \
	    diff -u "$(WIRE)/$$file" "$$fresh/$(WIRE)/$$file" || { \
	        echo "$(WIRE)/$$file is not what proto/ generates: run 'make proto'" >&2; exit 1; }; \
	done
	@echo "proto/entities.proto and docs/entities.md are what the registry gives"
	$(PYTHON) -m metaray.contract --check
	$(PYTHON) -m pytest -q tests/test_house.py

fix: setup
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

# The path is virtual: files in proto/, imports from state_machines.wire (docs/decisions.md).
proto: setup
	$(PYTHON) -m grpc_tools.protoc -I$(WIRE)=proto --python_out=. --pyi_out=. \
	    $(WIRE)/raft.proto $(WIRE)/api.proto $(WIRE)/link.proto

# Field numbers are those of the file that is there; what is new gets new ones.
contract: setup
	$(PYTHON) -m metaray.contract

pictures: setup
	$(PYTHON) docs/draw_architecture.py
	$(PYTHON) docs/draw_pipeline.py

# The stamp says what was installed and where, and is written last: an installation that was
# interrupted, a change of the pins, a Python that went away and a moved folder are all set up again.
setup:
	@wanted=$$(cksum pyproject.toml constraints.txt; pwd); \
	if [ "$$(cat $(STAMP) 2>/dev/null)" = "$$wanted" ] && $(PYTHON) -c "" 2>/dev/null; then \
	    exit 0; \
	fi; \
	rm -f $(STAMP); \
	if ! { grep -qF -- "-m venv $$(pwd)/.venv" .venv/pyvenv.cfg && $(PYTHON) -I metaray/pythons.py && \
	       $(PYTHON) -m pip -V; } >/dev/null 2>&1; then \
	    found=; \
	    for python in $(PYTHONS); do \
	        found=$$("$$python" -I metaray/pythons.py $(PYTHONS) 2>/dev/null) && break; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "metaray needs Python 3.11 or 3.12, with its modules venv and ensurepip." >&2; \
	        echo "None was found under these names: $(PYTHONS)." >&2; \
	        echo "Install one (pyenv, uv and conda bring both modules along; on Debian and Ubuntu" >&2; \
	        echo "add python3-venv), put it on PATH, and run make again." >&2; \
	        exit 1; \
	    fi; \
	    rm -rf .venv && "$$found" -m venv .venv || exit 1; \
	fi; \
	echo "setting up .venv with $$($(PYTHON) -V): once, a few minutes" && \
	$(PYTHON) -m pip install --quiet -e '.[dev]' -c constraints.txt && \
	echo "$$wanted" > $(STAMP)
