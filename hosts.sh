# shellcheck shell=bash
# hosts.sh - ranks on other machines: launch.sh starts them over ssh and keeps a line open to each. Sourced by launch.sh.
#
#   here                          there
#   ssh HOST launch.sh agent  ->  the rank, in a session of its own, under a name: RUN.RANK
#   a line open, signal names ->  passed on to the rank; when the line ends, so does the rank
#   its log lines and code    <-
#
# Host keys: BatchMode and StrictHostKeyChecking=yes. A machine whose key is not known is not talked to; connect once by
# hand. `--ssh "ssh -F FILE"` is for other options.
#
# A config may say for each rank where things are on its machine, in comments that the program does not read:
#
#   #launch 1 ssh=me@spark2 root=/opt/tandem model=/data/model cache=/data/packs secret=/etc/tandem.secret
#
# ssh: how to reach it (the host); root: this folder there (the same path); everything else is a setting of that rank.

scratch=              # launch.sh makes it
export HOME=${HOME-~} # a service may have none in its environment
RUNS=${XDG_STATE_HOME:-$HOME/.local/state}/tandem # what runs on this machine: RUN.RANK, and its last log lines beside it
SSH=(ssh)
POLICY=(-o BatchMode=yes -o StrictHostKeyChecking=yes -o ConnectTimeout=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=3)

declare -A where root_of extra # of a rank: ssh destination ('' is here), folder, settings
names=()                       # host of each rank

# place CONFIG HOSTS RANKS - fill the three
place()
{
    local config=$1 ranks=$3 host r=0 mine w line

    mine=" 127.0.0.1 ::1 localhost $(hostname) $(hostname -I 2>/dev/null) "
    for host in ${2//,/ }; do
        names+=("$host")
        case $mine in
        *" $host "*) where[$r]='' ;;
        *) where[$r]=$host ;;
        esac
        r=$((r + 1))
    done
    for ((r = 0; r < ranks; r++)); do
        root_of[$r]=$ROOT
        extra[$r]=
        : "${where[$r]:=}" "${names[$r]:=here}"
        [ -f "$config" ] || continue
        line=$(sed -n "s/^#launch $r //p" "$config" | tail -1)
        for w in $line; do
            case $w in
            ssh=*) [ -z "${where[$r]}" ] || where[$r]=${w#*=} ;;
            root=*) root_of[$r]=${w#*=} ;;
            *=*) extra[$r]+=" --set $w" ;;
            *) die 78 "$config: #launch $r: want key=value, got $w" ;;
            esac
        done
    done
}

# words WORD... - so that the shell of the other machine reads the same words
words()
{
    local w

    for w in "$@"; do
        printf '%q ' "$w"
    done
}

# there RANK WORD... - run something on a rank's machine. Nothing of this machine's environment goes there.
there()
{
    local r=$1

    shift
    if [ -z "${where[$r]}" ]; then
        "$@"
    else
        set -- "$(path_there "$r" "$1")" "${@:2}"
        "${SSH[@]}" "${POLICY[@]}" -- "${where[$r]}" "cd $(words "${root_of[$r]}") && exec env -i HOME=\"\$HOME\" \
USER=\"\$USER\" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LC_ALL=C $(words "$@")"
    fi
}

# path_there RANK PATH - the same file in that rank's folder
path_there()
{
    case $2 in
    "$ROOT"/*) printf '%s' "${root_of[$1]}${2#"$ROOT"}" ;;
    *) printf '%s' "$2" ;;
    esac
}

# same_files RANKS FILE... - the program and the config are the same everywhere, before anything loads
same_files()
{
    local ranks=$1 r f mine theirs

    shift
    for ((r = 0; r < ranks; r++)); do
        [ -n "${where[$r]}" ] || continue
        for f in "$@"; do
            mine=$(sha256sum <"$f") || die 66 "cannot read $f"
            theirs=$(there "$r" sha256sum "$(path_there "$r" "$f")" 2>"$scratch/ssh" </dev/null) || {
                if grep -q 'No such file' "$scratch/ssh"; then
                    die 78 "${where[$r]} has no $(path_there "$r" "$f"): copy it, or say where with #launch $r root="
                fi
                die 69 "no way to ${where[$r]}: $(tail -1 "$scratch/ssh")"
            }
            [ "${mine%% *}" = "${theirs%% *}" ] || die 78 "$f differs on ${where[$r]}: install and copy the same on both"
        done
    done
}

# ---- what runs on a machine --------------------------------------------------------------------------------------

# started PID - when a process began, in the kernel's count: a number that is used again is another process
started()
{
    local rest

    rest=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # shellcheck disable=SC2086 # fields
    set -- ${rest##*) }
    printf '%s' "${20}"
}

# note RUN RANK PID GROUP - GROUP says which config it belongs to: hosts and port
note()
{
    mkdir -p "$RUNS" && printf '%s %s %s\n' "$3" "$(started "$3")" "$4" >"$RUNS/$1.$2"
}

# running GROUP - lines RUN RANK PID of what runs on this machine; notes of what has ended are removed
running()
{
    local f pid since group

    for f in "$RUNS"/*.[0-9]; do
        [ -f "$f" ] || continue
        read -r pid since group <"$f"
        if [ "$(started "$pid")" != "$since" ]; then
            rm -f "$f"
        elif [ "$group" = "$1" ]; then
            f=${f##*/}
            printf '%s %s %s\n' "${f%.*}" "${f##*.}" "$pid"
        fi
    done
}

# gone GROUP TENTHS - nothing of this config runs on this machine any more, or not once that time is over
gone()
{
    local n=$2

    while [ -n "$(running "$1")" ]; do
        [ $n -gt 0 ] || return 1
        sleep 0.1
        n=$((n - 1))
    done
}

# end_all GROUP - what was started for this config and runs on this machine, and nothing else
end_all()
{
    local run rank pid

    running "$1" | while read -r run rank pid; do
        say "ending rank $rank of run $run, process $pid"
        kill -TERM "$pid" 2>/dev/null
    done
    gone "$1" 30 && return
    running "$1" | while read -r run rank pid; do
        kill -KILL "$pid" 2>/dev/null
    done
    gone "$1" 20
}

# agent RUN RANK GROUP PROGRAM... - on the machine of a rank: run it, pass signals on, end it when the line ends.
agent()
{
    local run=$1 rank=$2 group=$3 pid line code sig

    shift 3
    mkdir -p "$RUNS"
    exec 5<&0
    setsid setpriv --pdeathsig TERM -- "$@" </dev/null 5<&- 2> >(tee "$RUNS/$rank.log" >&2) &
    pid=$!
    note "$run" "$rank" "$pid" "$group"
    (
        while read -r sig <&5; do
            kill -s "$sig" "$pid" 2>/dev/null
        done
        kill -TERM "$pid" 2>/dev/null
        sleep 2
        kill -KILL "$pid" 2>/dev/null
    ) &
    line=$!
    wait "$pid"
    code=$?
    kill "$line" 2>/dev/null
    rm -f "$RUNS/$run.$rank"
    exit "$code"
}

# each RANKS WORD... - the same on every machine once, with its name in front of every line
each()
{
    local ranks=$1 r done=' ' key code=0

    shift
    for ((r = 0; r < ranks; r++)); do
        key=${where[$r]:-here}
        case $done in
        *" $key "*) continue ;;
        esac
        done+="$key "
        there "$r" "$@" 2>&1 </dev/null | sed "s|^|${names[$r]}: |"
        [ "${PIPESTATUS[0]}" -eq 0 ] || code=69
    done
    return $code
}
