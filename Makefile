# Two commands do everything on a fresh machine: `make demo` and `make test`.
# PYTHON names the interpreter that makes the environment. `make VENV=DIR` puts it elsewhere; a variable
# VENV of the shell is somebody else's environment, which `make clean` would remove.
PYTHON ?= python3
VENV := .venv
# Tests side by side, up to four and one more than CPUs, as a third of their time is waiting; not where
# there are GPUs, whose memory and ranks they would share.
XDIST := $(shell command -v nvidia-smi >/dev/null || printf '%s' "-n $$(($$(nproc) < 4 ? $$(nproc) + 1 : 4)) --dist loadgroup")
RUN := $(VENV)/bin/python
# The site needs no torch: where `make demo` was not typed before, it has an environment of its own.
DOCS := $(if $(wildcard $(VENV)/ready),$(VENV),$(VENV)-docs)
MKDOCS := NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs
# What chapters and smoke tests consist of may take nothing from Python that 3.10 lacks.
ON_3_10 := 0*_* conftest.py tests/support tests/chapters doctor/ddp_doctor
SKILL ?= skill/pytorch-multi-gpu
MERMAID := $(VENV)/mermaid.min.js
AXE := $(VENV)/axe.min.js
BIOME := $(VENV)/biome
PREPARE := tests/support/prepare.sh 05_horovod/install.sh tools/mini_slurm.sh tools/apt_install.sh
# Each step of the set-up says one line before it is silent for minutes, and nothing else. Its sizes
# are what pip said that it downloads, and du -sm; 2026-11-23, Linux x86_64, Python 3.11, CUDA wheels.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A download of gigabytes may break off. pip then gives up, but keeps what it has whole.
twice = $(1) || { echo "trying once more, in case a download broke off"; $(1); }

.PHONY: doctor.pyz class.zip help demo gpu test smoke proof touched right faults bench carry lint skill pages figures site offline serve clean
help:  ## this list
	@grep -hE '^[a-z.-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/ready  ## train chapter 02 on two processes (or all GPUs) and draw the curve
	$(RUN) tools/demo.py

gpu:  ## on a GPU box: does everything work there, exactly, how fast? Installs nothing
	$(if $(wildcard $(RUN)),$(RUN),$(PYTHON)) tools/gpu_check.py $(ARGS)

test: $(VENV)/ready $(VENV)/ready-for-tests $(AXE) lint  ## every promise once: minutes
	$(RUN) -m pytest -m "not proof" $(XDIST) $(ARGS)

smoke: $(VENV)/ready $(VENV)/ready-for-smoke  ## every chapter once, on CPUs, one GPU or many
	$(RUN) -m pytest -m smoke $(XDIST) $(ARGS)

# In an environment of its own: oldest, nightly, or a version.
smoke-oldest:  ## the same on the oldest torch we support; or make smoke-nightly, make smoke-2.9.0
smoke-%: $(VENV)-%/ready-for-smoke
	$(VENV)-$*/bin/python -m pytest -m smoke tests/chapters $(ARGS)

proof: $(VENV)/ready $(VENV)/ready-for-tests $(AXE) $(if $(filter-out 1/%,$(PART)),,smoke-oldest)  ## hours: all, then protections broken; PART=3/10 is a tenth
	$(RUN) -m pytest $(XDIST) --part $(or $(PART),1/1) $(ARGS)

touched: $(VENV)/ready $(VENV)/ready-for-tests $(AXE)  ## of the protections broken, those that a change since BASE=main touches
	$(RUN) -m pytest tests/mutations doctor/tests/test_doctor_mutations.py $(XDIST) --touched $(or $(BASE),main) $(ARGS)

right: $(VENV)/ready $(VENV)/ready-for-tests  ## all right programs under the doctor, which must find nothing
	$(RUN) -m pytest doctor/tests -m right $(XDIST) $(ARGS)

faults: $(VENV)/ready $(VENV)/ready-for-tests  ## every fault in every chapter, written to tests/FAULTS.md
	$(RUN) -m pytest tests/faults --write-faults $(ARGS)

bench: $(VENV)/ready  ## chapters against a plain DDP script, loading images, all-reduce, in short
	$(RUN) tools/benchmark/benchmark.py --all --rounds 2 --steps 6 --variants reference,02,03 $(ARGS)

doctor.pyz:  ## the doctor in one file, to be copied to a cluster: python doctor.pyz torchrun ...
	@out="$(or $(PYZ),$@)" && parts=$$(mktemp -d) && trap 'rm -rf "$$parts" "$$out.tmp"' EXIT \
		&& cp -r doctor/ddp_doctor "$$parts" \
		&& (cd "$$parts/ddp_doctor" && rm -rf __pycache__ */__pycache__ .ruff_cache ruff.toml __main__.py) \
		&& $(PYTHON) -m zipapp "$$parts" --main ddp_doctor.command:main --output "$$out.tmp" \
		&& mv -T "$$out.tmp" "$$out"  # beside, then renamed: a full disk leaves no half file

class.zip: doctor.pyz  ## what a class of an hour and a half needs: sheet, scripts with a mistake, answers
	@$(PYTHON) tools/class_kit.py "$(or $(ZIP),$@)" "$(or $(PYZ),doctor.pyz)"

carry:  ## carry an uncommitted change of chapter 02 into the other chapters; lists conflicts
	@$(PYTHON) tools/carry.py

lint: $(VENV)/ready $(BIOME)  ## formatting and static checks
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/vermin -q --no-tips --violations -t=3.10- $(ON_3_10)
	$(BIOME) check
	$(RUN) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

skill:  ## what an assistant needs to convert a script and prove it: a folder for its skills
	@mkdir -p $(SKILL) && cp skill/SKILL.md docs/examples/convert/*.py $(SKILL)
	@$(PYTHON) -m tools.site.plain $(SKILL) $(addprefix docs/en/,convert.md recipes.md troubleshooting.md tasks.md)
	@$(MAKE) --no-print-directory doctor.pyz PYZ=$(SKILL)/doctor.pyz
	@echo "$(SKILL) is complete: copy it to where your assistant looks for skills"

pages: $(VENV)/ready  ## after a change: the code, differences and tables in the pages
	$(RUN) -m tools.site.pages

figures: $(VENV)/ready $(MERMAID)  ## after a change: pictures of diagrams, stills of figures
	$(RUN) -m tools.site.draw $(MERMAID)
	$(RUN) -m tools.site.pages

site: $(DOCS)/ready  ## the documentation, into site/; a broken link or page ends it
	$(MKDOCS) build --strict  # with -q, --strict counts no warnings

offline: $(DOCS)/ready  ## the same to be opened from disk, with search: site-offline/index.html
	DIRECTORY_URLS=false $(MKDOCS) build --strict -d site-offline

serve: $(DOCS)/ready  ## the same at http://127.0.0.1:8000, built anew on every change
	$(MKDOCS) serve

clean:  ## remove the environments, the built site, and what the demo made
	rm -rf $(VENV) $(VENV)-* data/toy data/toy-small runs/demo-* site site-offline

$(VENV)/ready: requirements.txt requirements-docs.txt requirements-dev.txt constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"the pinned torch needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}: type make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@echo "setting up $(VENV): torch, torchvision, tools; 2.8 GB to download, 6 GB on disk; takes minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(call twice,$(RUN) -m pip install --quiet -c constraints.txt -r requirements-dev.txt)
	@touch $@

$(VENV)-docs/ready: requirements-docs.txt constraints.txt
	@echo "setting up $(VENV)-docs, what builds the site: 46 MB to download, 210 MB on disk"
	@$(PYTHON) -m venv $(VENV)-docs
	@$(call twice,$(VENV)-docs/bin/python -m pip install --quiet -c constraints.txt -r requirements-docs.txt)
	@touch $@

# What is not a Python package: Slurm, Horovod, its compilers, and for the site a browser. The script
# touches the file, unless something failed that is worth another try at the next make.
$(VENV)/ready-for-smoke $(VENV)/ready-for-tests: $(VENV)/ready $(PREPARE)
	@PYTHON=$(RUN) bash tests/support/prepare.sh $(if $(findstring smoke,$@),smoke,test) $@

$(MERMAID): tools/fetch_npm.sh
	@echo "fetching mermaid, which draws the diagrams: 18 MB to download, 4 MB on disk"
	@bash tools/fetch_npm.sh mermaid 11.17.2 dist/mermaid.min.js \
		581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8 $@
	@touch $@

$(AXE): tools/fetch_npm.sh
	@echo "fetching axe, which checks the site's contrast and names: 600 KB to download"
	@bash tools/fetch_npm.sh axe-core 4.12.1 axe.min.js \
		66a8aaa95a8b044a7fd74a5435873bf04ff65a1ca75567c921b7509742085a14 $@
	@touch $@

# For Linux; elsewhere: npx @biomejs/biome@2.6.8 check
$(BIOME): tools/fetch_npm.sh $(VENV)/ready
	@echo "fetching biome, which checks the site's scripts: 35 MB to download, 96 MB on disk"
	@case $$(uname -m) in \
		aarch64) set -- arm64 3e5b3bf3ff21c4beecfef424fd429d6937c5e04fe5d332ad69d45806349ce20c;; \
		*) set -- x64 fc1cb7c6664d6fa315144f58bd03096ee5d035e641538840a80262d59203d5dd;; \
	esac; bash tools/fetch_npm.sh @biomejs/cli-linux-$$1 2.6.8 biome $$2 $@
	@touch $@

# A version that begins with dev has pip take last night's, if PIP_EXTRA_INDEX_URL names a place that
# has it: https://download.pytorch.org/whl/nightly/cpu
$(VENV)-oldest/ready: TORCH := torch==2.6.0
$(VENV)-nightly/ready: TORCH := "torch>=2.6.dev0" "torchvision>=0.21.dev0"
$(VENV)-%/ready: TORCH = torch==$*
$(VENV)-%/ready: requirements.txt requirements-smoke.txt
	@echo "setting up $(VENV)-$*: torch, torchvision; 3.1 GB to download, 6 GB on disk; takes minutes"
	@$(PYTHON) -m venv $(VENV)-$*
	@$(call twice,$(VENV)-$*/bin/python -m pip install --quiet -r requirements-smoke.txt $(TORCH))
	@touch $@

$(VENV)-%/ready-for-smoke: $(VENV)-%/ready $(PREPARE)
	@PYTHON=$(VENV)-$*/bin/python bash tests/support/prepare.sh smoke $@

.PRECIOUS: $(VENV)-%/ready $(VENV)-%/ready-for-smoke
