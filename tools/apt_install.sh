#!/usr/bin/env bash
# Installs packages of Debian or Ubuntu, as root:
#     bash tools/apt_install.sh PACKAGE...
#
# apt-get gives up at once while another program holds one of its locks, as a new cloud machine's
# own updates do for minutes. This waits for that program, for APT_PATIENCE seconds at most.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
patience=${APT_PATIENCE:-900}

errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

# apt's own DPkg::Lock::Timeout is not enough: `apt-get update` does not know it.
when_unlocked() {  # apt-get's arguments
    local lock said=''
    SECONDS=0
    while true; do
        if apt-get -qq "$@" >/dev/null 2>"$errors"; then
            return
        elif ! lock=$(grep -om1 'Could not get lock.*' "$errors"); then
            cat "$errors" >&2
            return 1
        elif ((SECONDS >= patience)); then
            echo "waited $patience seconds for apt: $lock" >&2
            exit 1
        fi
        [[ -n $said ]] || echo "waiting until another program has done with apt: $lock"
        said=yes
        sleep 1
    done
}

when_unlocked update || echo "apt-get update failed, trying with the lists that are here" >&2
size=$(apt-get install -qq --print-uris --no-install-recommends "$@" 2>/dev/null |
    awk '{ bytes += $3 } END { print bytes + 0 }' | numfmt --to=si --suffix=B) || true
echo "setting up with apt-get: $*; $size to download"
when_unlocked install --yes --no-install-recommends "$@"
