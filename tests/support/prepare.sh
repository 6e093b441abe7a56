#!/usr/bin/env bash
# Installs what the tests need beside Python packages. For `smoke`: Horovod, built for the torch that
# is there, and with the rights and the system for it compilers and Slurm. For `test` also shellcheck,
# and Chromium with Chinese fonts.
#     PYTHON=.venv/bin/python bash tests/support/prepare.sh smoke|test STAMP
#
# What cannot be had is named, with what will not be run for the lack of it; in CI that is an error.
# STAMP is touched unless something failed that may succeed another time.
set -euo pipefail
cd "$(dirname "$0")/../.."
tier=$1 stamp=$2

missing=() try_again=''
cannot_have() { missing+=("$1"); }
failed() { missing+=("$1; make tries it again next time") try_again=yes; }

packages=()
need() {  # COMMAND PACKAGE
    command -v "$1" >/dev/null || packages+=("$2")
}
install_packages() {  # what takes them
    [[ ${#packages[@]} -eq 0 ]] || tools/apt_install.sh "${packages[@]}" ||
        failed "${packages[*]}: $1"
    packages=()
}
has_browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
} >/dev/null

apt=''
if [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
    apt=yes
    need g++ g++
    need cmake cmake
    install_packages "Horovod cannot be built"
else
    cannot_have "Slurm, for which it must be root on Debian or Ubuntu: chapter 06 under srun"
fi

# Minutes of compiling, unless a wheel is in the user's cache; meanwhile the others are installed.
echo "setting up Horovod: its wheel from an earlier time, or 4 minutes of compiling on two cores"
log=$(mktemp)
setsid bash 05_horovod/install.sh >"$log" 2>&1 &
horovod=$!  # the leader of a group, with all its compilers in it
trap 'kill -- -"$horovod" 2>/dev/null || true; rm -f "$log"' EXIT

if [[ -n $apt ]]; then
    tools/mini_slurm.sh install || failed "Slurm: chapter 06 under srun and sbatch"
    if [[ $tier == test ]]; then
        need shellcheck shellcheck
        has_browser || packages+=(chromium)
        [[ $(fc-list 2>/dev/null) == *CJK* ]] || packages+=(fonts-noto-cjk)
        install_packages "the documentation in a browser, or the sbatch files"
    fi
elif [[ $tier == test ]]; then
    command -v shellcheck >/dev/null || cannot_have "shellcheck: the sbatch files"
    has_browser ||
        cannot_have "Chromium (apt install chromium fonts-noto-cjk): the documentation in a browser"
fi
wait "$horovod" && status=0 || status=$?
[[ $status -eq 0 ]] || tail -n 5 "$log" >&2
case $status in
    0) ;;
    75) failed "Horovod: chapter 05" ;;  # the network
    *) cannot_have "Horovod: chapter 05" ;;
esac

for line in "${missing[@]}"; do
    echo "not here, so not tested: $line"
done >&2
[[ -n $try_again ]] || touch "$stamp"
[[ ${#missing[@]} -eq 0 || -z ${CI:-} ]]
