#!/usr/bin/env bash
# Prints the hosts that an elastic job may use now, one "host:slots" a line, out of a file:
#
#     horovodrun ... --host-discovery-script '05_horovod/discover_hosts.sh hosts.txt' ...
#     ELASTIC_HOSTS=hosts.txt horovodrun ... --host-discovery-script 05_horovod/discover_hosts.sh ...
#
# horovodrun calls it once a second on the machine where it runs. So whoever rewrites the file, you
# or a script of the cluster, changes the hosts while the job runs; write a new file and mv it over
# the old one, as half a file would be taken for lost hosts. A cluster can be asked in its place:
#
#     Slurm       squeue -h -n worker -t running -o %N | xargs -n 1 scontrol show hostnames
#                 (placeholder jobs of name worker, with which the job grows and shrinks)
#     Kubernetes  kubectl get pods -l app=worker --field-selector status.phase=Running \
#                     -o jsonpath='{range .items[*]}{.status.podIP}:1{"\n"}{end}'
#
# but not every second by every job: let one loop on the side ask them now and then, into the file.
set -euo pipefail

file=${1:-${ELASTIC_HOSTS:-}}
die() { echo "discover_hosts.sh: error: $*" >&2; exit 1; }

# An error, not an empty list: the first call then ends the job, a later one is tried again and
# changes nothing, while a list without hosts would mean that all of them are gone.
[ -n "$file" ] || die "name a file of host:slots lines, as argument or in ELASTIC_HOSTS"
[ -r "$file" ] || die "cannot read $file"
hosts=$(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$file")
wrong=$(grep -vE '^[^:]+:[1-9][0-9]*$' <<<"$hosts" | head -n 1) || true
[ -z "$wrong" ] || die "$file: '$wrong' is not host:slots"
printf '%s\n' "$hosts"
