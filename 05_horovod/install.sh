#!/usr/bin/env bash
# Builds Horovod for the torch that is installed, see `bash install.sh --help`.
#
# Why a script: Horovod's last release, 0.28.1 (2023), comes as source only, and that no longer
# compiles against today's torch. This fetches it, edits a few lines and keeps the finished wheel,
# so that the minutes of compiling are spent once.
set -euo pipefail

VERSION=0.28.1
SHA256=92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
python=${PYTHON:-python}
mode=auto

usage() {
    cat <<'TEXT'
usage: bash install.sh [--cpu | --nccl]

Builds Horovod 0.28.1 with PyTorch and Gloo and installs it next to the torch that is there already.
By default NCCL is added if torch sees a GPU here and a CUDA toolkit that fits torch is found.

  --cpu    CPU only, whatever is there
  --nccl   with NCCL, also where there is no GPU; stops if something for it is missing
  --help   this text

environment:
  PYTHON                      the interpreter that has torch (default: python)
  XDG_CACHE_HOME              finished wheels lie in its folder horovod-wheels (default: ~/.cache);
                              delete that folder to build anew
  CUDA_HOME                   a CUDA toolkit to try before the nvcc on PATH and /usr/local/cuda*
  HOROVOD_NCCL_HOME           folder with NCCL's include/ and lib/ (default: from pip or the system)
  HOROVOD_BUILD_CUDA_CC_LIST  GPU architectures, such as 80,90 (default: all that nvcc knows)
  MAKEFLAGS                   default: one compiler per core; -j4 where memory is short
TEXT
}

die() { echo "error: $*" >&2; exit 1; }

# pip, where it may need the network. Status 75 (EX_TEMPFAIL) says: another time it may succeed.
fetch() {  # what it is, pip's arguments
    "$python" -m pip "${@:2}" -q --disable-pip-version-check >"$tmp/pip.log" 2>&1 && return
    cat "$tmp/pip.log" >&2
    echo "error: $1 was not fetched, see above" >&2
    exit 75
}

for word in "$@"; do
    case $word in
        --cpu | --nccl) mode=${word#--} ;;
        -h | --help) usage; exit 0 ;;
        *) die "unknown argument $word (try --help)" ;;
    esac
done
[ "$(uname -s)" = Linux ] || die "this script is for Linux only"
command -v "$python" >/dev/null || die "no $python here: activate the environment or set PYTHON"

# Which C++ standard the headers of this torch need is not guessed from its version: torch's own
# extension builder names it.
facts=$("$python" -W ignore - <<'TEXT'
import glob, importlib.util, os, re, sys, sysconfig
if sys.version_info < (3, 9):
    sys.exit("error: Python 3.9 or newer is needed")
for name in ("torch", "pip"):
    if importlib.util.find_spec(name) is None:
        sys.exit(f"error: {sys.executable} has no {name}: install that first")
try:
    import torch
except Exception as error:
    sys.exit(f"error: torch of {sys.executable} does not start: {error!r}")
with open(os.path.join(os.path.dirname(torch.__file__), "utils", "cpp_extension.py")) as file:
    print(max(re.findall(r"-std=c\+\+(\d\d)", file.read()), default="17"))
platform = sysconfig.get_platform().replace("-", "_")
print(f"torch{torch.__version__}-cp{sys.version_info[0]}{sys.version_info[1]}-{platform}")
print(torch.version.cuda or "", int(torch.cuda.is_available()), sep="\n")
print(sys.executable, sysconfig.get_path("include"), sysconfig.get_path("scripts"), sep="\n")
print(next((n for p in sys.path for n in glob.glob(p + "/nvidia/nccl")), ""))
TEXT
) || exit 1
mapfile -t facts <<<"$facts"
standard=${facts[0]} target=${facts[1]} cuda=${facts[2]} gpu=${facts[3]}
python=${facts[4]} include=${facts[5]} scripts=${facts[6]} nccl=${facts[7]}

# All but the finished wheel lies here, and goes away however the script ends.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# Finds a CUDA toolkit and an NCCL with which a program really compiles and links, else says in
# `why` what is missing. An nvcc alone proves nothing: it may be that of another CUDA, lack the
# libraries, or refuse this machine's C++ compiler.
find_cuda() {
    local nvcc flags=()
    why="torch is built without CUDA"
    [ -n "$cuda" ] || return 1
    if [ -z "${HOROVOD_NCCL_HOME:-}" ] && [ -f "$nccl/include/nccl.h" ]; then
        # pip's, which torch loads, lacks the file name that a linker looks for.
        export HOROVOD_NCCL_HOME=$tmp/nccl
        mkdir -p "$tmp/nccl/lib"
        ln -s "$nccl/include" "$tmp/nccl/include"
        ln -s "$nccl/lib/libnccl.so.2" "$tmp/nccl/lib/libnccl.so"
    fi
    [ -z "${HOROVOD_NCCL_HOME:-}" ] ||
        flags=("-I$HOROVOD_NCCL_HOME/include" "-L$HOROVOD_NCCL_HOME/lib")
    cat >"$tmp/trial.cu" <<'TEXT'
#include <nccl.h>
int main() { int v; return cudaFree(0) != cudaSuccess || ncclGetVersion(&v) != ncclSuccess; }
TEXT
    why="there is no nvcc of CUDA ${cuda%%.*}, for which torch is built"
    for nvcc in "${CUDA_HOME:-}/bin/nvcc" "$(command -v nvcc)" "/usr/local/cuda-$cuda/bin/nvcc" \
        /usr/local/cuda/bin/nvcc; do
        if [ ! -x "$nvcc" ] || [[ $("$nvcc" --version) != *"release ${cuda%%.*}."* ]]; then
            continue
        fi
        why="$nvcc cannot build a program with cudart and NCCL: see whether both are installed"
        "$nvcc" "${flags[@]}" -o "$tmp/trial" "$tmp/trial.cu" -lnccl >/dev/null 2>&1 || continue
        # An nvcc on PATH may be a link or a wrapper; CMake wants the toolkit's own folder.
        cuda_home=$("$nvcc" --dryrun "$tmp/trial.cu" 2>&1 | sed -n 's/^#\$ TOP=//p')
        cuda_home=$(realpath "${cuda_home:-${nvcc%/bin/nvcc}}")
        why="CUDA toolkit in $cuda_home"
        return 0
    done
    return 1
}

if [ "$mode" = cpu ]; then
    why="as --cpu says"
elif [ "$mode" = auto ] && [ "$gpu" = 0 ]; then
    mode=cpu why="torch sees no GPU here; --nccl builds for one all the same"
elif find_cuda; then
    mode=nccl
elif [ "$mode" = nccl ]; then
    die "no build with NCCL: $why"
else
    mode=cpu
fi
echo "Horovod $VERSION for $target: $mode ($why)"

compiler=$(basename "${CXX:-g++}")$("${CXX:-g++}" -dumpversion 2>/dev/null || true)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/horovod-wheels/$VERSION-$target-$compiler-$mode
source=$tmp/horovod-$VERSION

compile() {  # runs in a subshell, with its output in the log
    unset "${!HOROVOD_GPU@}" "${!HOROVOD_WITH@}" HOROVOD_SKIP_COMPILE  # left from other attempts
    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO
    export HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1
    if [ "$mode" = nccl ]; then
        export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED PATH=$cuda_home/bin:$PATH
        export CUDA_HOME=$cuda_home HOROVOD_CUDA_HOME=$cuda_home CUDAToolkit_ROOT=$cuda_home
    fi
    # Horovod's copy of Gloo is too old for CMake 4 unless told so, and forgets a header that
    # GCC 15 no longer brings along by itself.
    export CMAKE_POLICY_VERSION_MINIMUM=3.5 CXXFLAGS="-include cstdint ${CXXFLAGS:-}"
    export MAKEFLAGS=${MAKEFLAGS:--j$(nproc)}
    export PYTHONPATH=$tmp/tools${PYTHONPATH:+:$PYTHONPATH}
    cd "$source" && "$python" setup.py bdist_wheel -d "$tmp/wheel"
}

build() {
    local tool missing=()
    for tool in "${CXX:-g++}" cmake make; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ -f "$include/Python.h" ] || missing+=(Python.h)
    [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]};" \
        "on Debian or Ubuntu: apt-get install g++ cmake make python3-dev"

    echo "horovod==$VERSION --hash=sha256:$SHA256" >"$tmp/pinned.txt"
    fetch "the source of Horovod" download --no-deps --no-binary horovod --require-hashes \
        -r "$tmp/pinned.txt" -d "$tmp"
    # What setup.py needs goes into a folder of its own, not into the environment.
    fetch "what builds Horovod" install --target "$tmp/tools" "setuptools<81" wheel packaging \
        cloudpickle psutil pyyaml cffi
    tar -xf "$source.tar.gz" -C "$tmp"

    sed -i "s/set(CMAKE_CXX_STANDARD 14)/set(CMAKE_CXX_STANDARD $standard)/" \
        "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
    # Python 3.12 has no distutils any more.
    sed -i "s/from distutils.sysconfig .*get_python_inc())/print('${include//\//\\/}')/" \
        "$source/horovod/torch/CMakeLists.txt"
    sed -i "s/from distutils.spawn import/from shutil import which as/" \
        "$source/horovod/runner/js_run.py"
    # torch loads its own libraries, and NCCL, before Horovod needs them. A wheel that remembers
    # where they lay while it was built would be wrong in another environment.
    sed -i "/^project(horovod CXX)/a set(CMAKE_SKIP_RPATH ON)" "$source/CMakeLists.txt"
    if [ "$mode" = cpu ]; then
        # Horovod takes any nvcc that it meets for a wish to build for GPUs, and has no option
        # against it. So its search for CUDA goes, and torch is not asked for CUDA or ROCm.
        sed -i '/^include(CheckLanguage)/,/^macro(ADD_CUDA)/{/^macro/!d}' "$source/CMakeLists.txt"
        sed -i 's/torch\.version\.\(cuda\|hip\) is not None/False/' \
            "$source/cmake/Modules/FindPytorch.cmake"
    fi

    mkdir -p "$(dirname "$folder")"
    echo "building, about 4 minutes on two cores; log: $folder.log"
    (compile) >"$folder.log" 2>&1 || {
        sed '/^Traceback/,$d' "$folder.log" | tail -n 30 >&2  # setup.py's own troubles say nothing
        die "the build failed; its whole log is $folder.log"
    }
    rm "$folder.log"
    cp -r "$tmp/wheel" "$folder.$$"  # renamed when complete: no other run finds half a wheel
    mv "$folder.$$" "$folder"
}
if [ ! -d "$folder" ]; then build; fi

# Forced, as a Horovod that is there may be built for another torch; without dependencies, so that
# nothing else is installed anew. The second line adds those that are missing.
"$python" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps \
    "$folder"/horovod-*.whl
fetch "what Horovod needs" install "$folder"/horovod-*.whl
"$scripts/horovodrun" --check-build
"$python" -c 'import horovod.torch; print("import horovod.torch: ok")'
