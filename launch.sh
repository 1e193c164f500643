#!/usr/bin/env bash
# launch.sh [OPTION]... [--config FILE] [--set KEY=VALUE]... COMMAND [OPTION]...
#
# Starts every rank of a config, on this machine and over ssh on the others (hosts.sh says how), forwards signals to
# them, and returns the first exit code that is not 0. Text comes from rank 0 only; log lines of every rank begin with
# r0, r1 ... If one rank ends badly the others end within two seconds, and none outlives this script. `launch.sh demo`
# installs and builds first what is missing.
#
#   --dry-run     print what would run where, and run nothing
#   --here        only the ranks whose host is this machine; the same is started on the others by somebody else
#   --ssh WORDS   the ssh program and options of its own
#
# Commands of its own: preflight (one table of all machines, one verdict), status, stop, logs (of the ranks of this config,
# on every machine). Under Slurm or Open MPI a task starts the rank that they number.

set -u
# A standard stream that is closed would give its number to the next file; what reads or writes it fails as before.
[ -e /dev/fd/0 ] || exec 0>/dev/null
[ -e /dev/fd/1 ] || exec 1</dev/null
[ -e /dev/fd/2 ] || exec 2</dev/null
. "$(dirname "$(realpath "$0")")/setup.sh"

GRACE=10  # tenths of a second that ranks have to end by themselves after one has failed
ALONE=2   # the same after one that failed before it met the others: they would wait for it
QUIET=100 # the same after one has ended well
LAST=5    # the same after SIGTERM

RUNNING='^([^ ]*:) ([0-9-]+) ([0-9]) ([0-9]+)$' # one of what runs on a machine; ssh may say things of its own beside it

# ---- what to run --------------------------------------------------------------------------------------

. "$ROOT/hosts.sh"
case ${1-} in # on a machine of another rank
agent | running | end_all)
    "$@"
    exit
    ;;
esac
front=() # settings before the command
config=  # the file among them
dry=
only_here=

# use_config FILE - the same file for a rank whose folder is another
use_config()
{
    if [ -f "$1" ]; then
        config=$(realpath "$1")
        set -- "$config"
    fi
    front+=(--config "$1")
}

while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry=1 && shift && continue ;;
    --here) only_here=1 && shift && continue ;;
    --ssh)
        [ $# -ge 2 ] || die 64 "$1 lacks its value"
        read -r -a SSH <<<"$2"
        shift 2
        continue
        ;;
    esac
    case $1 in
    --config | --set)
        [ $# -ge 2 ] || die 64 "$1 lacks its value"
        if [ "$1" = --config ]; then
            use_config "$2"
        else
            front+=("$1" "$2")
        fi
        shift 2
        ;;
    --config=*)
        use_config "${1#*=}"
        shift
        ;;
    --set=*)
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

case $command in
status | stop | logs) as=preflight ;; # which takes settings only
*) as=$command ;;
esac
case $command in
--help | help) # of this script, then of the program
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
    echo
    ;;
esac

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

    valued=" $("$tandem" "$as" --help | sed -n 's/^  \(--[a-z-]*\) [^ ].*/\1/p' | tr '\n' ' ')"
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

run=("$tandem" "$as" ${front[@]+"${front[@]}"} ${rest[@]+"${rest[@]}"})

# become WORD... - one process in the place of this script
become()
{
    [ -n "$dry" ] || exec "$@"
    printf 'here: '
    words "$@"
    printf '\n'
    exit 0
}

case $command in
generate | score | demo | bench | gate | preflight) ;;
status | stop | logs) [ -z "$dry" ] || die 64 "--dry-run is for what starts ranks, $command starts none" ;;
*) become "${run[@]}" ;;
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
port=$(setting port) || exit
group=${hosts//[ ,]/+}:$port # what belongs to this config on any machine

# A task of Slurm or Open MPI is one rank of as many as there are tasks.
task=${SLURM_PROCID-${OMPI_COMM_WORLD_RANK-}}
tasks=${SLURM_NTASKS-${OMPI_COMM_WORLD_SIZE-}}
case $command in
status | stop | logs) task= ;;
esac
if [ -n "$task" ] && [ "${tasks:-1}" -gt 1 ]; then
    if [ -z "$hosts" ] && [ -n "${SLURM_JOB_NODELIST-}" ] && [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then
        hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd, -)
    fi
    become "${run[@]}" --set "ranks=$tasks" --set "rank=$task" ${hosts:+--set "hosts=$hosts"}
fi

case $command in
preflight | status | stop | logs) ;;
*)
    if [ "$ranks" -eq 1 ] || [ "$link" = loop ]; then
        become "${run[@]}"
    fi
    ;;
esac

# ---- which ranks belong where -------------------------------------------------------------------------

place "$config" "$hosts" "$ranks"
here=()
far=()
for ((r = 0; r < ranks; r++)); do
    if [ -z "${where[$r]}" ]; then
        here+=("$r")
    elif [ -z "$only_here" ]; then
        far+=("$r")
    fi
done
[ ${#here[@]} -gt 0 ] || [ -z "$only_here" ] || die 78 "none of the hosts $hosts is this machine"
# its #launch lines are read here, and it is compared
if [ ${#far[@]} -gt 0 ] && [ -z "$config" ] && has_config ${rest[@]+"${rest[@]}"}; then
    die 64 "--config stands before $command where ranks are on other machines"
fi

# line RANK - the words that start a rank, in the array `line`
line()
{
    local r=$1 w

    line=()
    for w in "${run[@]}"; do
        line+=("$(path_there "$r" "$w")")
    done
    # shellcheck disable=SC2206 # words of a #launch line
    line+=(${extra[$r]} --set "rank=$r")
}

if [ -n "$dry" ]; then
    for r in ${here[@]+"${here[@]}"} ${far[@]+"${far[@]}"}; do
        line "$r"
        if [ -z "${where[$r]}" ]; then
            printf 'here: '
        else
            printf '%s: cd %s && ' "${where[$r]}" "${root_of[$r]}"
        fi
        words "${line[@]}"
        printf '\n'
    done
    exit 0
fi

# ask_all WORD... - what every machine says for preflight, behind what it has said before
ask_all()
{
    local r asked=()

    for ((r = 0; r < ranks; r++)); do
        line "$r"
        there "$r" "${line[@]}" "$@" >>"$scratch/facts.$r" 2>"$scratch/said.$r" </dev/null &
        asked[r]=$!
    done
    for ((r = 0; r < ranks; r++)); do
        wait "${asked[r]}" || die 69 "${names[$r]}: $(tail -1 "$scratch/said.$r" | sed 's/^error: //')"
    done
}

# need_secret - ranks that are all here have one of their own if the config names none
need_secret()
{
    [ -z "$secret" ] || return
    [ ${#here[@]} -eq "$ranks" ] || die 78 "ranks on several machines need the setting secret"
    (umask 077 && head -c 32 /dev/urandom >"$scratch/secret") || die 73 "cannot write the secret"
    run+=(--set "secret=$scratch/secret")
}

scratch=
trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM HUP # nothing runs yet
scratch=$(mktemp -d) || die 73 "cannot make a folder"

case $command in
status)
    each "$ranks" "$ROOT/launch.sh" running "$group" >"$scratch/status"
    code=$?
    sed -E "s/$RUNNING/\\1 rank \\3 of run \\2 is process \\4/" "$scratch/status"
    [ $code -ne 0 ] || grep -qE "$RUNNING" "$scratch/status" || say "nothing runs"
    exit $code
    ;;
stop)
    each "$ranks" "$ROOT/launch.sh" end_all "$group" | tee "$scratch/stop"
    code=${PIPESTATUS[0]}
    [ $code -ne 0 ] || [ -s "$scratch/stop" ] || say "nothing runs"
    exit $code
    ;;
logs)
    for ((r = 0; r < ranks; r++)); do
        # shellcheck disable=SC2016 # for the shell there
        there "$r" sh -c 'cd "${XDG_STATE_HOME:-$HOME/.local/state}/tandem" 2>/dev/null && [ -f "$0.log" ] && cat "$0.log" ||
            echo "nothing is kept of rank $0: only of ranks that another machine has started"' "$r" </dev/null | sed "s|^|${names[$r]}: |"
    done
    exit
    ;;
preflight)
    if [ "$ranks" -gt 1 ] && [ "$link" != loop ]; then
        need_secret
    fi
    tables=()
    for ((r = 0; r < ranks; r++)); do
        tables+=("$scratch/facts.$r")
    done
    ask_all
    "$tandem" preflight "${tables[@]}" >"$scratch/verdict"
    code=$?
    # machines that fit alone try the link between them
    if [ $code -eq 0 ] && [ "$ranks" -gt 1 ] && [ "$link" != loop ]; then
        ask_all --meet --set connect_timeout_ms=20s
        "$tandem" preflight "${tables[@]}" >"$scratch/verdict"
        code=$?
    fi
    cat "$scratch/verdict"
    exit $code
    ;;
esac

need_secret

# ---- before anything loads ----------------------------------------------------------------------------

id=$(date +%Y%m%d-%H%M%S)-$$ # of this run
if [ ${#far[@]} -gt 0 ]; then
    same_files "$ranks" "$tandem" ${config:+"$config"}
    old=$(each "$ranks" "$ROOT/launch.sh" running "$group" | grep -E "$RUNNING")
    [ -z "$old" ] || die 69 "${old%%$'\n'*} still runs (run, rank, process); launch.sh stop ends it"
fi

# ---- run ----------------------------------------------------------------------------------------------

declare -A pid=() # of the ranks that still run
code=0
ending= # set once signals come from here

# The shell itself has something to say about every process that is killed; what is said here goes to 4.
exec 4>&2 2>/dev/null

# A rank on another machine ends with its line; a signal goes there as a word.
declare -A wire
start_far()
{
    local r=$1 fd text=/dev/null

    line "$r"
    mkfifo "$scratch/wire.$r"
    [ "$r" -ne 0 ] || text=/dev/fd/1
    there "$r" "$ROOT/launch.sh" agent "$id" "$r" "$group" "${line[@]}" <"$scratch/wire.$r" 2>&4 >"$text" &
    pid[$r]=$!
    exec {fd}>"$scratch/wire.$r"
    wire[$r]=$fd
}

# In a session of its own a rank gets a terminal's signals once, from here; and it ends if this script is killed.
start()
{
    local r=$1

    line "$r"
    if [ "$r" -eq 0 ]; then
        setsid setpriv --pdeathsig TERM -- "${line[@]}" <&0 2>&4 &
    else
        setsid setpriv --pdeathsig TERM -- "${line[@]}" >/dev/null 2>&4 &
    fi
    pid[$r]=$!
    note "$id" "$r" "${pid[$r]}" "$group"
}

tell()
{
    local r

    [ "$1" = USR1 ] || ending=1
    for r in "${!pid[@]}"; do
        if [ -n "${wire[$r]-}" ]; then
            echo "$1" >&"${wire[$r]}"
        elif runs "${pid[$r]}"; then
            kill -s "$1" "${pid[$r]}" 2>/dev/null
        fi
    done
}

# A child of this script that has not ended. The status is read once: between two looks the shell may take the child away.
runs()
{
    local status

    { status=$(<"/proc/$1/status"); } 2>/dev/null || return 1
    [[ $status == *$'\nPPid:\t'"$$"$'\n'* && $status != *$'\nState:\tZ'* ]]
}

# A rank that has ended leaves the list; its exit code is kept if it is the first bad one that is not only "the group
# failed", which the ranks beside the culprit have. 130 is a code of the program.
leave()
{
    local r=$1 status=$2 fd

    unset "pid[$r]"
    rm -f "$RUNS/$id.$r"
    if [ -n "${wire[$r]-}" ]; then
        fd=${wire[$r]}
        exec {fd}>&-
        unset "wire[$r]"
        if [ "$status" -eq 255 ]; then
            say "launch: the line to ${where[$r]} is gone" 2>&4
            status=69
        fi
    fi
    if [ "$status" -gt 128 ] && [ "$status" -ne 130 ] && [ -z "$ending" ]; then
        say "launch: rank $r was killed (signal $((status - 128)))" 2>&4
    fi
    [ "$code" -ne 0 ] && { [ "$code" -ne 70 ] || [ "$status" -eq 0 ]; } || code=$status
}

# reap - wait until one rank has ended, or for a signal.
reap()
{
    local ended='' status r

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
trap : PIPE # a word to a rank that has just ended
for r in ${far[@]+"${far[@]}"}; do
    start_far "$r"
done
for r in ${here[@]+"${here[@]}"}; do
    start "$r"
done
while [ ${#pid[@]} -eq $((${#here[@]} + ${#far[@]})) ]; do
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
