#!/usr/bin/env bash
# Installs what the tests need beside Python packages. For `smoke`: Horovod, built for the torch that
# is there, and with the rights and the system for it compilers and Slurm. For `test` also shellcheck,
# and Chromium with Chinese fonts. What cannot be had is named, with what will not be run for the
# lack of it; in CI that is an error.
#     PYTHON=.venv/bin/python bash tests/support/prepare.sh smoke|test
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python}
tier=${1:-test}

missing=()
packages=()
need() {  # COMMAND PACKAGE
    command -v "$1" >/dev/null || packages+=("$2")
}
apt_install() {  # PACKAGE...
    apt-get -qq update
    echo "setting up with apt-get: $*; $(LC_ALL=C apt-get install --assume-no \
        --no-install-recommends "$@" | sed -n 's/^Need to get \(.*\) of archives.*/\1/p') to download"
    DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
}
has_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
} >/dev/null

if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    need g++ g++
    need cmake cmake
    [[ ${#packages[@]} -eq 0 ]] || apt_install "${packages[@]}" ||
        missing+=("${packages[*]}: Horovod cannot be built")
else
    missing+=("Slurm, for which it must be root on Debian or Ubuntu: chapter 06 under srun")
fi

# Minutes of compiling, unless a wheel is in the user's cache; meanwhile the others are installed.
echo "setting up Horovod: its wheel from an earlier time, or 4 minutes of compiling on two cores"
log=$(mktemp)
PYTHON=$PYTHON setsid bash 05_horovod/install.sh >"$log" 2>&1 &
horovod=$!  # the leader of a group, with all its compilers in it
trap 'kill -- -"$horovod" 2>/dev/null || true; rm -f "$log"' EXIT

if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    tools/mini_slurm.sh install || missing+=("Slurm: chapter 06 under srun and sbatch")
    if [[ $tier == test ]]; then
        packages=()
        need shellcheck shellcheck
        has_browser || packages+=(chromium)
        [[ $(fc-list 2>/dev/null) == *CJK* ]] || packages+=(fonts-noto-cjk)
        [[ ${#packages[@]} -eq 0 ]] || apt_install "${packages[@]}" ||
            missing+=("${packages[*]}: the documentation in a browser")
    fi
elif [[ $tier == test ]]; then
    command -v shellcheck >/dev/null || missing+=("shellcheck: the sbatch files")
    has_browser ||
        missing+=("Chromium (apt install chromium fonts-noto-cjk): the documentation in a browser")
fi
wait "$horovod" || { tail -n 5 "$log" >&2; missing+=("Horovod: chapter 05"); }

for line in "${missing[@]}"; do
    echo "not here, so not tested: $line" >&2
done
[[ ${#missing[@]} -eq 0 || -z ${CI:-} ]]
