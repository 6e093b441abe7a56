#!/usr/bin/env bash
# Installs what the tests need beside Python packages: Horovod, built for the torch that is there,
# and with the rights and the system for it Slurm, shellcheck, a compiler, and Chromium with Chinese
# fonts for the documentation. What cannot be had is named, with what will not be run for the lack
# of it; in CI that is an error.
#     PYTHON=.venv/bin/python bash tests/support/prepare.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python}

missing=()
apt_install() {  # WHAT_FOR PACKAGE...
    [[ $# -gt 1 ]] || return 0
    echo "installing ${*:2}"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install --yes --no-install-recommends "${@:2}"; } >/dev/null ||
        missing+=("${*:2}: $1")
}
has_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
} >/dev/null

if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    need=()
    command -v g++ >/dev/null || need+=(g++)
    command -v cmake >/dev/null || need+=(cmake)
    command -v shellcheck >/dev/null || need+=(shellcheck)
    apt_install "the tests that need it" "${need[@]}"
    need=()
    has_browser || need+=(chromium)
    [[ $(fc-list 2>/dev/null) == *CJK* ]] || need+=(fonts-noto-cjk)
    apt_install "the documentation in a browser" "${need[@]}"
    tools/mini_slurm.sh install || missing+=("Slurm: chapter 06 under srun and sbatch")
else
    missing+=("Slurm and shellcheck, for which it must be root on Debian or Ubuntu:"
        "chapter 06 under srun and sbatch (it runs under torchrun)")
    has_browser ||
        missing+=("Chromium (apt install chromium fonts-noto-cjk): the documentation in a browser")
fi
PYTHON=$PYTHON bash 05_horovod/install.sh >/dev/null || missing+=("Horovod: chapter 05")

for line in "${missing[@]}"; do
    echo "not here, so not tested: $line" >&2
done
[[ ${#missing[@]} -eq 0 || -z ${CI:-} ]]
