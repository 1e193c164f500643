#!/usr/bin/env bash
# launch.sh [--config FILE] [--set KEY=VALUE]... COMMAND [OPTION]...
#
# Starts every rank of a config that belongs on this machine, forwards signals to them, and returns the first exit code
# that is not 0. Text comes from rank 0 only; log lines of every rank begin with r0, r1 ... If one rank ends badly the
# others end too, and none outlives this script. `launch.sh demo` installs and builds first what is missing.

set -u
. "$(dirname "$(realpath "$0")")/setup.sh"

GRACE=30 # tenths of a second that ranks have to end by themselves after one has failed
QUIET=100 # the same after one has ended well

# ---- what to run --------------------------------------------------------------------------------------

settings=() # every --config and --set of the line, in order
front=()    # those before the command
while [ $# -gt 0 ]; do
    case $1 in
    --config | --set)
        [ $# -ge 2 ] || die 64 "$1 lacks its value"
        front+=("$1" "$2")
        shift 2
        ;;
    --config=* | --set=*)
        front+=("$1")
        shift
        ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || die 64 "no command; launch.sh [--config FILE] COMMAND [OPTION]..., or launch.sh demo"
command=$1
shift
rest=("$@")
settings=("${front[@]}")
for ((i = 0; i < ${#rest[@]}; i++)); do
    case ${rest[i]} in
    --config | --set) settings+=("${rest[i]}" "${rest[i + 1]-}") ;;
    --config=* | --set=*) settings+=("${rest[i]}") ;;
    esac
done

program=src/rank/tandem
dir=${TANDEM_BUILD:-$(build_dir build $program)} # tests name the build they belong to
tandem=$dir/$program
if [ "$command" = demo ] || [ ! -x "$tandem" ]; then
    setup_packages
    build "$dir" false
fi

port_taken()
{
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

if [ "$command" = demo ]; then
    case " ${settings[*]-} " in
    *" --config"*) demo=() ;;
    *)
        port=18515
        while port_taken "$port" && [ "$port" -lt 18615 ]; do
            port=$((port + 1))
        done
        demo=(--config "$ROOT/configs/two-rank-local.conf" --set "model=$ROOT/models/pocket-dsv41" --set "port=$port")
        ;;
    esac
    front=(${demo[@]+"${demo[@]}"} ${front[@]+"${front[@]}"})
    settings=(${demo[@]+"${demo[@]}"} ${settings[@]+"${settings[@]}"})
    rest=(--prompts "$ROOT/configs/demo" ${rest[@]+"${rest[@]}"})
fi

run=("$tandem" "$command" ${front[@]+"${front[@]}"} ${rest[@]+"${rest[@]}"})
case $command in
generate | score | demo) ;;
*) exec "${run[@]}" ;;
esac
case " ${rest[*]-} " in
*" --help "*) exec "${run[@]}" ;;
esac

setting()
{
    "$tandem" config ${settings[@]+"${settings[@]}"} --get "$1"
}

ranks=$(setting ranks) || exit
link=$(setting link) || exit
hosts=$(setting hosts) || exit
secret=$(setting secret) || exit
if [ "$ranks" -eq 1 ] || [ "$link" = loop ]; then
    exec "${run[@]}"
fi

# ---- which ranks belong here --------------------------------------------------------------------------

here=()
if [ -z "$hosts" ]; then
    for ((r = 0; r < ranks; r++)); do
        here+=("$r")
    done
else
    mine=" 127.0.0.1 ::1 localhost $(hostname) $(hostname -I 2>/dev/null) "
    r=0
    for host in ${hosts//,/ }; do
        case $mine in
        *" $host "*) here+=("$r") ;;
        esac
        r=$((r + 1))
    done
    [ ${#here[@]} -gt 0 ] || die 78 "none of the hosts $hosts is this machine"
fi

scratch=
if [ -z "$secret" ]; then
    [ ${#here[@]} -eq "$ranks" ] || die 78 "ranks on several machines need the setting secret"
    scratch=$(mktemp -d) || die 73 "cannot make a folder for the secret"
    trap 'rm -rf "$scratch"' EXIT
    (umask 077 && head -c 32 /dev/urandom >"$scratch/secret") || die 73 "cannot write the secret"
    run+=(--set "secret=$scratch/secret")
fi

# ---- run ----------------------------------------------------------------------------------------------

declare -A pid=() # of the ranks that still run
code=0

# In a session of its own a rank gets a terminal's signals once, from here; and it ends if this script is killed.
start()
{
    local r=$1

    if [ "$r" -eq 0 ]; then
        setsid setpriv --pdeathsig TERM -- "${run[@]}" --set "rank=$r" &
    else
        setsid setpriv --pdeathsig TERM -- "${run[@]}" --set "rank=$r" >/dev/null &
    fi
    pid[$r]=$!
}

tell()
{
    local r

    for r in "${!pid[@]}"; do
        kill -s "$1" "${pid[$r]}" 2>/dev/null
    done
}

# One rank that has ended leaves the list; its exit code is kept if it is the first bad one.
reap()
{
    local ended= status r

    wait -n -p ended "${pid[@]}"
    status=$?
    [ -n "${ended-}" ] || return 0 # a signal came in between
    for r in "${!pid[@]}"; do
        [ "${pid[$r]}" = "${ended-}" ] && unset "pid[$r]"
    done
    [ "$code" -ne 0 ] || code=$status
}

alive()
{
    local r

    for r in "${!pid[@]}"; do
        [ ! -d "/proc/${pid[$r]}" ] || grep -q '^State:[[:space:]]*Z' "/proc/${pid[$r]}/status" 2>/dev/null || return 0
    done
    return 1
}

# wait_tenths N - until no rank runs, at most N tenths of a second.
wait_tenths()
{
    local n=$1

    while alive && [ "$n" -gt 0 ]; do
        sleep 0.1
        n=$((n - 1))
    done
}

trap 'tell INT' INT
trap 'tell TERM' TERM HUP
trap 'tell USR1' USR1
for r in "${here[@]}"; do
    start "$r"
done
while [ ${#pid[@]} -eq ${#here[@]} ]; do
    reap
done
if [ "$code" -ne 0 ]; then
    wait_tenths "$GRACE"
else
    wait_tenths "$QUIET"
fi
if alive; then
    say "launch: ending the ranks that are left"
    tell TERM
    wait_tenths 10
    tell KILL
fi
while [ ${#pid[@]} -gt 0 ]; do
    reap
done
exit "$code"
