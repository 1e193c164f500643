#!/usr/bin/env bash
# launch.sh [--config FILE] [--set KEY=VALUE]... COMMAND [OPTION]...
#
# Starts every rank of a config that belongs on this machine, forwards signals to them, and returns the first exit code
# that is not 0. Text comes from rank 0 only; log lines of every rank begin with r0, r1 ... If one rank ends badly the
# others end within two seconds, and none outlives this script. `launch.sh demo` installs and builds first what is
# missing.

set -u
. "$(dirname "$(realpath "$0")")/setup.sh"

GRACE=10  # tenths of a second that ranks have to end by themselves after one has failed
ALONE=2   # the same after one that failed before it met the others: they would wait for it
QUIET=100 # the same after one has ended well
LAST=5    # the same after SIGTERM

# ---- what to run --------------------------------------------------------------------------------------

front=() # settings before the command
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

program=src/rank/tandem
dir=${TANDEM_BUILD:-$(build_dir build $program)} # tests name the build they belong to
tandem=$dir/$program
# Without a program, with one that is older than its sources, and for the demo: build.
stale()
{
    [ -z "${TANDEM_BUILD-}" ] && [ -n "$(find "$ROOT/src" "$ROOT/kernels" "$ROOT/meson.build" -type f -newer "$tandem" -print -quit)" ]
}

if [ "$command" = demo ] || [ ! -x "$tandem" ] || stale; then
    setup_packages
    build "$dir" false
    [ ! -w "$tandem" ] || touch "$tandem" # it is newer than sources that it does not depend on
fi

port_taken()
{
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# has_config WORD... - one of them is --config and not the value of another option. Which options have values is what
# the program's help says: `--name VALUE`.
has_config()
{
    local valued

    valued=" $("$tandem" "$command" --help | sed -n 's/^  \(--[a-z-]*\) [^ ].*/\1/p' | tr '\n' ' ')"
    while [ $# -gt 0 ]; do
        case $1 in
        --config | --config=*) return 0 ;;
        esac
        case $valued in
        *" $1 "*) shift ;;
        esac
        [ $# -eq 0 ] || shift
    done
    return 1
}

if [ "$command" = demo ]; then
    if ! has_config ${front[@]+"${front[@]}"} ${rest[@]+"${rest[@]}"}; then
        port=18515
        while port_taken "$port" && [ "$port" -lt 18615 ]; do
            port=$((port + 1))
        done
        front=(--config "$ROOT/configs/two-rank-local.conf" --set "model=$ROOT/models/pocket-dsv41" --set "port=$port"
            ${front[@]+"${front[@]}"})
    fi
    rest=(--prompts "$ROOT/configs/demo" ${rest[@]+"${rest[@]}"})
fi

run=("$tandem" "$command" ${front[@]+"${front[@]}"} ${rest[@]+"${rest[@]}"})
case $command in
generate | score | demo) ;;
*) exec "${run[@]}" ;;
esac

# The program reads its own line: what is a setting, what the value of another option, what is wrong.
setting()
{
    "${run[@]}" --get "$1"
}

ranks=$(setting ranks) || exit
case $ranks in
'' | *[!0-9]*) exec "${run[@]}" ;; # --help
esac
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
    trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM HUP # nothing runs yet
    scratch=$(mktemp -d) || die 73 "cannot make a folder for the secret"
    (umask 077 && head -c 32 /dev/urandom >"$scratch/secret") || die 73 "cannot write the secret"
    run+=(--set "secret=$scratch/secret")
fi

# ---- run ----------------------------------------------------------------------------------------------

declare -A pid=() # of the ranks that still run
code=0
ending= # set once signals come from here

# The shell itself has something to say about every process that is killed; what is said here goes to 4.
exec 4>&2 2>/dev/null

# In a session of its own a rank gets a terminal's signals once, from here; and it ends if this script is killed.
start()
{
    local r=$1

    if [ "$r" -eq 0 ]; then
        setsid setpriv --pdeathsig TERM -- "${run[@]}" --set "rank=$r" <&0 2>&4 &
    else
        setsid setpriv --pdeathsig TERM -- "${run[@]}" --set "rank=$r" >/dev/null 2>&4 &
    fi
    pid[$r]=$!
}

tell()
{
    local r

    [ "$1" = USR1 ] || ending=1
    for r in "${!pid[@]}"; do
        kill -s "$1" "${pid[$r]}" 2>/dev/null
    done
}

runs()
{
    [ -d "/proc/$1" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status"
}

# A rank that has ended leaves the list; its exit code is kept if it is the first bad one that is not only "the group
# failed", which the ranks beside the culprit have. 130 is a code of the program.
leave()
{
    local r=$1 status=$2

    unset "pid[$r]"
    if [ "$status" -gt 128 ] && [ "$status" -ne 130 ] && [ -z "$ending" ]; then
        say "launch: rank $r was killed (signal $((status - 128)))" 2>&4
    fi
    [ "$code" -ne 0 ] && { [ "$code" -ne 70 ] || [ "$status" -eq 0 ]; } || code=$status
}

# reap - wait until one rank has ended, or for a signal.
reap()
{
    local ended= status r

    wait -n -p ended "${pid[@]}"
    status=$?
    for r in "${!pid[@]}"; do
        if [ "${pid[$r]}" = "${ended-}" ]; then
            leave "$r" "$status"
        elif [ "$status" -eq 127 ] && ! runs "${pid[$r]}"; then # the shell knows it as ended and waits for nobody
            wait "${pid[$r]}"
            leave "$r" $?
        fi
    done
    [ "$status" -ne 127 ] || sleep 0.1
}

alive()
{
    local r

    for r in "${!pid[@]}"; do
        ! runs "${pid[$r]}" || return 0
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
case $code in
0) wait_tenths "$QUIET" ;;
6? | 77 | 78) wait_tenths "$ALONE" ;;
*) wait_tenths "$GRACE" ;;
esac
if alive; then
    say "launch: ending the ranks that are left" 2>&4
    tell TERM
    wait_tenths "$LAST"
    tell KILL
fi
while [ ${#pid[@]} -gt 0 ]; do
    reap
done
exit "$code"
