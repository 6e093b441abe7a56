#!/usr/bin/env bash
# A real Slurm on this one machine: two small nodes, n1 and n2, with two pretended GPUs each.
#
# For this project's tests, and for you to try an sbatch file before the big cluster sees it.
# Everything runs from Debian's or Ubuntu's own packages, as root, and lives in one folder. Nothing
# of the machine's configuration (/etc/hosts, /etc/slurm, a munge of its own) is used or changed.
set -euo pipefail

readonly ME=tools/mini_slurm.sh
readonly PACKAGES=(slurmctld slurmd slurm-client munge iproute2)

usage() {
    cat <<END
usage: $ME install                        get Slurm, from the distribution's packages
       $ME up [--netns]                   start it: eval "\$($ME up)"
       $ME exec n1 -- COMMAND             run a command as if logged in on that node
       $ME status                         say how the nodes are; logs: DIR/*.log
       $ME down                           end it, and all of its jobs
options: --dir DIR   where it lives (/tmp/mini-slurm); another folder is another cluster
         --netns     each node has a network, an address and a host name of its own
END
}

say() { echo "mini_slurm: $*" >&2; }
die() { say "$*"; exit 1; }
wrong() { say "$*; type: $ME --help"; exit 2; }

command=${1:-}
[ $# = 0 ] || shift
case $command in
    install | up | down | status | exec) ;;
    -h | --help) usage; exit ;;
    *) wrong "which command?" ;;
esac
dir=/tmp/mini-slurm netns='' node='' argv=()
while [ $# -gt 0 ]; do
    case $1 in
        --dir) [ $# -gt 1 ] || wrong "--dir needs a folder"; dir=$2; shift ;;
        --netns) netns=yes ;;
        n1 | n2) node=$1 ;;
        --) shift; argv=("$@"); break ;;
        *) wrong "what is $1?" ;;
    esac
    shift
done
[ "$command" != exec ] || [ -n "${node:+${argv[*]}}" ] || wrong "write exec n1 -- hostname"
dir=$(realpath -m -- "$dir")
# The folder's name gets into slurm.conf, and a socket's path may have at most 107 characters.
[[ $dir =~ ^/[A-Za-z0-9_./-]{1,74}$ ]] ||
    die "--dir must be short and plain, not $dir; try --dir /tmp/my-slurm"
[ "$(id -u)" = 0 ] || die "needs root; type: sudo $ME $command"
PATH=$PATH:/usr/sbin:/sbin

readonly conf=$dir/slurm.conf
# Every process of the cluster sees this file mounted as its /etc/hosts, and nothing else does. That
# is how `down` knows them, even where a job has left its parents and emptied its environment.
hosts=mini-slurm-hosts-$(cksum <<<"$dir" | cut -d' ' -f1)
readonly hosts

install_packages() {
    local package missing=()
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || { say "all packages are here: ${PACKAGES[*]}"; return; }
    # Packages start their services as soon as they are installed, unless this file says no.
    # Where there is one already, it comes back afterwards.
    policy=/usr/sbin/policy-rc.d
    [ ! -e $policy ] || mv $policy $policy.mini-slurm
    trap 'rm -f $policy; [ ! -e $policy.mini-slurm ] || mv $policy.mini-slurm $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
    "$(dirname "$0")/apt_install.sh" "${missing[@]}" >&2 ||
        die "apt-get could not install ${missing[*]}"
    # Nor shall the next boot start them.
    if command -v systemctl >/dev/null; then
        for package in "${missing[@]}"; do systemctl -q disable "$package" 2>/dev/null || true; done
    fi
}

need_packages() {
    local word
    for word in slurmctld slurmd sinfo munged ip ss unshare nsenter; do
        command -v $word >/dev/null || die "there is no $word here; type: sudo $ME install"
    done
}

# Is there a cluster's folder, made by this script? `down` removes no other.
is_ours() { [ -O "$dir" ] && [ -e "$dir/.mini-slurm" ]; }
is_up() { is_ours && alive slurmctld; }

# Does a daemon live? Its pid may be another's by now, or that of a corpse that nobody collects.
alive() { grep -qs "/${hosts}[/ ]" "/proc/$(cat "$dir/$1.pid" 2>/dev/null)/mountinfo"; }

# A user's command; bounded, because it waits long for a controller that is gone.
ask() { SLURM_CONF=$conf timeout 30 "$@"; }

# The pids of all that lives on the nodes, and of the daemons around them.
members() { grep -ls "/${hosts}[/ ]" /proc/[0-9]*/mountinfo | cut -d/ -f3 || true; }

# Pids of srun, which the user starts outside of the nodes: without its cluster it waits forever.
clients() {
    grep -lsxzF "SLURM_CONF=$conf" /proc/[0-9]*/environ | cut -d/ -f3 | while read -r pid; do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != srun ] || echo "$pid"
    done || true
}

# N ports that nobody listens on, below those that the kernel gives to clients.
free_ports() {
    local used
    used=$(ss -Hltn | awk '{ sub(/.*:/, "", $4); print $4 }')
    shuf -i 20000-30000 | grep -vxF -e "${used:-none}" | head -"$1"
}

write_configuration() { # controller's address, addresses of n1 and n2, their ports
    local name host
    name=$(hostname -s)
    host=("$name" "$name")
    # The daemons run as root: on a machine's own network they listen on loopback alone.
    local loopback=CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
    [ -z "$netns" ] || host=(n1 n2) loopback=
    cat >"$conf" <<END
ClusterName=mini
SlurmctldHost=$name($1)
SlurmctldPort=$4
$loopback
# A requeued job waits until the old run's credential has expired: by default, two minutes.
AuthInfo=socket=$dir/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
# No cgroups, which a container may not have; limits on CPUs and memory are not enforced.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# The nodes are what is written here, not what the machine has.
SlurmdParameters=config_overrides
# A node that was set DOWN stays so until State=RESUME.
ReturnToService=1
KillWait=2
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
GresTypes=gpu
NodeName=DEFAULT CPUs=4 RealMemory=64000 Gres=gpu:2
NodeName=n1 NodeHostname=${host[0]} NodeAddr=$2 Port=$5
NodeName=n2 NodeHostname=${host[1]} NodeAddr=$3 Port=$6
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
END
}

# Run a daemon where the cluster's names are known: in a mount namespace with a /etc/hosts of its
# own. Nothing of the user's environment gets into it, and it sees no cgroups: Slurm would want
# some although nothing here uses them, and would look for them in different places by version.
# shellcheck disable=SC2016  # the words in single quotes are for the inner shell
inside() { # unshare's further options, setup commands, the daemon's command
    local options=$1 setup=$2
    shift 2
    # shellcheck disable=SC2086  # options are several words, or none
    env -i PATH="$PATH" SLURM_CONF="$conf" unshare --mount --propagation slave $options bash -euc '
        mount --bind "$1" /etc/hosts
        mount -t tmpfs none /sys/fs/cgroup
        eval "$2"
        shift 2
        exec "$@"' inside "$dir/$hosts" "$setup" "$@" </dev/null >>"$dir/start.log" 2>&1
}

# In both kinds of cluster the daemons start in this order, and each returns when it has started.
start() {
    local address=(127.0.0.1 127.0.0.1 127.0.0.1) port switch=0 number link='' i
    mapfile -t port < <(free_ports 3)
    if [ -n "$netns" ]; then
        # The interface's name reserves the subnet: of two instances, one fails to add it.
        for number in $(shuf -i 1-250); do
            ! ip -4 route show table all | grep -qF "10.213.$number." || continue
            ip link add "ms$number" type veth peer name "ms${number}p" 2>/dev/null || continue
            link=ms$number
            break
        done
        [ -n "$link" ] || die "cannot add a network interface; a container must be --privileged"
        ip link set "$link" alias "$dir"
        address=("10.213.$number.254" "10.213.$number.1" "10.213.$number.2")
    fi
    write_configuration "${address[@]}" "${port[@]}"
    {
        printf '%s %s\n' "${address[0]}" "$(hostname -s)" "${address[1]}" n1 "${address[2]}" n2
        cat /etc/hosts
    } >"$dir/$hosts"

    # The nodes' network is switched in munged's namespace, which needs none itself: in the
    # machine's own, a firewall such as Docker's would drop what goes from node to node.
    inside "${netns:+--net}" "${netns:+ip link add switch type bridge; ip link set switch up}" \
        munged --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" --num-threads=2 \
        --key-file="$dir/munge/key" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    if [ -n "$netns" ]; then
        switch=$(<"$dir/munged.pid")
        ip link set "${link}p" netns "$switch" name host
        nsenter --net="/proc/$switch/ns/net" ip link set host master switch up
        ip addr add "${address[0]}/24" dev "$link"
        ip link set "$link" up
    fi
    inside '' '' slurmctld
    for i in 1 2; do
        inside "${netns:+--net --uts}" "${netns:+
            hostname n$i
            ip link set lo up
            ip link add eth0 type veth peer name n$i netns $switch
            nsenter --net=/proc/$switch/ns/net ip link set n$i master switch up
            ip addr add ${address[i]}/24 dev eth0
            ip link set eth0 up}" slurmd -N n$i
    done
    for ((SECONDS = 0; SECONDS < 300; )); do
        [ "$(ask sinfo -h -N -o %T 2>/dev/null | xargs)" != "idle idle" ] || return 0
        sleep 0.1
    done
    die "the nodes are not idle after 5 minutes"
}

up() {
    need_packages
    mkdir -p "$(dirname "$dir")"
    rmdir "$dir" 2>/dev/null || true # an empty folder is fine
    if ! mkdir -m 755 "$dir" 2>/dev/null; then
        is_ours || die "$dir is there and is not a mini Slurm's; choose another --dir"
        if is_up; then die "$dir is already up; type: export SLURM_CONF=$conf"; fi
        die "$dir is left over from a cluster that has died; type: $ME down --dir $dir"
    fi
    touch "$dir/.mini-slurm"
    trap failed EXIT
    trap 'exit 130' INT TERM
    mkdir "$dir/dev" "$dir/state"
    mkdir -m 700 "$dir/munge"
    (umask 077 && head -c 128 /dev/urandom >"$dir/munge/key")
    # Slurm only asks whether the devices are there; where none may be made, files do.
    for i in 0 1; do mknod "$dir/dev/gpu$i" c 1 3 2>/dev/null || touch "$dir/dev/gpu$i"; done
    echo "NodeName=n[1-2] Name=gpu File=$dir/dev/gpu[0-1]" >"$dir/gres.conf"
    # What it finds of cgroups is an empty folder, see inside(): this keeps it from asking further.
    echo CgroupPlugin=cgroup/v1 >"$dir/cgroup.conf"
    start
    trap - EXIT
    echo "export SLURM_CONF=$conf"
}

# shellcheck disable=SC2317  # called by the trap
failed() {
    trap - EXIT
    say "could not start; the logs' last lines:"
    { ! is_up || ask sinfo -R; tail -n 8 "$dir"/*.log "$dir"/munge/log || true; } >&2 2>/dev/null
    down
    exit 1
}

down() {
    local links pids i
    if [ -e "$dir" ] && ! is_ours; then
        rmdir "$dir" 2>/dev/null || die "$dir is not a mini Slurm's; nothing done"
    fi
    if is_up; then
        ask scancel -p main 2>/dev/null || true
        # The jobs have KillWait seconds to end by themselves.
        for ((i = 0; i < 30; i++)); do
            [ -n "$(ask squeue -h 2>/dev/null)" ] || break
            sleep 0.1
        done
    fi
    # What has not ended by now, or has lost its daemon, is killed.
    for ((SECONDS = 0; SECONDS < 60; )); do
        pids=$(members; clients)
        [ -n "$pids" ] || break
        # shellcheck disable=SC2086  # many words
        kill -KILL $pids 2>/dev/null || true
        sleep 0.1
    done
    [ -z "$pids" ] || die "these processes cannot be killed: ${pids//$'\n'/ }"
    # An interface bears the folder as its alias. Its other end goes with it.
    links=$(ip -o link 2>/dev/null |
        awk -v "dir=$dir" '$NF == dir { split($2, name, /[@:]/); print name[1] }') || true
    for i in $links; do ip link del "$i" 2>/dev/null || true; done
    rm -rf "$dir"
}

case $command in
    install) install_packages; exit ;;
    up) up; exit ;;
    down) down; exit ;;
esac
is_up || die "$dir is not up; type: $ME up --dir $dir"
if [ "$command" = status ]; then
    ask sinfo -N -o '%N %T %C %G %E'
    exit
fi
alive "slurmd.$node" || die "$node's slurmd has died; type: $ME down --dir $dir"
exec nsenter --target "$(<"$dir/slurmd.$node.pid")" --mount --net --uts -- \
    env -C "$PWD" SLURM_CONF="$conf" "${argv[@]}"
