#!/usr/bin/env bash
# kill_devices.sh FOLDER WORK SECONDS [REPETITIONS [AT_ONCE [DEVICE]]] - kills and stops either of two ranks on devices at
# six points, over the comms that COMMS names; prints when the other said why it ends, and when it was gone, and fails if
# one said it after more than SAY_MS or was there for more than LIMIT_MS (the driver takes its time to end a process, and
# longer when others come and go), ended with another code than 70, named another cause or was elsewhere, if device memory
# is still taken at the end, or, with WHOLE=1, if there was no time for all. WORK/cases has a line a case, WORK/kills.json
# one for each kind of them.
#
# FOLDER holds tandem and tandem_held. Cases run AT_ONCE at a time, in an order that has each of them once before any
# twice, until SECONDS are over. With DEVICE both ranks share it.
#
#   idle      rank 0 has no request
#   prefill   in a prompt chunk
#   verify    drafts are there, their window has not begun: the other one waits inside its graph
#   graph     in a graph whose exchange waits for the other one, which its host holds back
#   start     the group is open, states are not
#   shutdown  the last order is given

set -u
SAY_MS=1500
LIMIT_MS=4000
PHASES=(idle prefill verify graph start shutdown)
COMMS=${COMMS:-peer nccl link}

now_ms() { date +%s%3N; }

# ranks_begin NUMBER COMM TOKENS HOLDER PLACE - two ranks, of which HOLDER stops at PLACE, or none; sets pid, logs to $at
ranks_begin()
{
    local number=$1 comm=$2 tokens=$3 holder=$4 place=$5 r

    for r in 0 1; do
        local program=("$folder/tandem")

        [ "$r" = "$holder" ] && program=("$folder/tandem_held" "hold@$place")
        "${program[@]}" generate --set model=models/pocket-dsv41 --set "cache=$work/cache" --set backend=cuda \
            ${device:+--set "device=$device"} --set ranks=2 --set "rank=$r" --set link=shm --set "comm=$comm" \
            --set "port=$((20000 + number * 3))" --set "secret=$work/secret" --set depth=2 --set ignore_eos=on \
            --set context=256 --set slots=1 --set window_max=3 --json --prompt 'Once upon a time' --max-tokens "$tokens" \
            >"$at/out$r" 2>"$at/err$r" &
        pid[r]=$!
    done
}

# one FOLDER WORK DEVICE DEADLINE NUMBER COMM VICTIM SIGNAL PHASE: a line of the table, unless it is too late
one()
{
    local folder=$1 work=$2 device=$3 deadline=$4 number=$5 comm=$6 victim=$7 signal=$8 phase=$9
    local other=$((1 - victim)) holder=$7 place=$9 at=$2/$5 tokens=6000 pid=(0 0) begin said took code here verdict=ok

    [ "$(date +%s)" -lt "$deadline" ] || return 0
    mkdir -p "$at"
    case $phase in
    idle) here="no order yet" holder=0 ;; # only rank 0 knows that nobody asks
    prefill) here="order \(FILL\|DRAFT\|ROUND\)" ;; # the other one may have queued what follows
    verify) here="order ROUND" ;;
    graph) here="order ROUND" holder=$other place=verify:3 ;;
    start) here="no order yet" ;;
    shutdown) here="no order" tokens=4 ;;
    esac
    begin=$(now_ms)
    ranks_begin "$number" "$comm" $tokens "$holder" "$place"
    for _ in $(seq 1500); do
        grep -q '^held at' "$at/err$holder" 2>/dev/null && break
        kill -0 "${pid[holder]}" 2>/dev/null || break
        sleep 0.02
    done
    grep -q '^held at' "$at/err$holder" || verdict="does not come there"
    [ $phase = graph ] && sleep 0.1 # the other one's graph is launched then
    begin=$(now_ms)
    kill "-$signal" "${pid[victim]}" 2>/dev/null
    # nobody waits for ever
    (sleep 10 && kill -KILL "${pid[other]}") 2>/dev/null &
    local guard=$!
    while ! grep -q 'error: group: ' "$at/err$other" && kill -0 "${pid[other]}" 2>/dev/null; do
        sleep 0.01
    done
    said=$(($(now_ms) - begin))
    wait "${pid[other]}" 2>/dev/null
    code=$?
    took=$(($(now_ms) - begin))
    kill "$guard" 2>/dev/null
    kill -KILL "${pid[victim]}" 2>/dev/null
    wait 2>/dev/null
    # a killed process gives back its memory before its connections, and the driver may take more than a second for that:
    # its control connection, a link of its plan or its silence tells first
    if [ "$verdict" = ok ]; then
        if [ $code -ne 70 ]; then
            verdict="code $code"
        elif [ $said -gt $SAY_MS ] || [ $took -gt $LIMIT_MS ]; then
            verdict=late
        elif ! grep -q "error: group: .*rank $victim is gone.*; here: .*$here" "$at/err$other"; then
            verdict="another cause or place"
        fi
    fi
    echo "$comm $victim $signal $phase $said $took $code $verdict" >>"$work/cases"
    [ "$verdict" = ok ] || { echo "FAILED: $comm, rank $victim, $signal, $phase: $verdict, said $said ms, gone $took ms" &&
        tail -n 4 "$at/err0" "$at/err1"; } >>"$work/failures"
    rm -rf "$at"
}

if [ "${1:-}" = one ]; then
    shift
    one "$@"
    exit 0
fi

folder=$(realpath "$1") work=$2 seconds=$3 repetitions=${4:-10} at_once=${5:-8} device=${6:-}
rm -rf "$work" && mkdir -p "$work" && work=$(realpath "$work") || exit 1
(umask 077 && head -c 32 /dev/urandom >"$work/secret")
: >"$work/cases" && : >"$work/failures"
# of the fullest device, or of the one that LOOK_AT names, where others use the rest
used() { nvidia-smi ${LOOK_AT:+-i "$LOOK_AT"} --query-gpu=memory.used --format=csv,noheader,nounits | sort -n | tail -n 1; }
before=$(used)
deadline=$(($(date +%s) + seconds))
# Every phase over every comm comes first, victims and signals in turn.
number=0
for _ in $(seq "$repetitions"); do
    for turn in 0 1 2 3; do
        for phase in "${PHASES[@]}"; do
            for comm in $COMMS; do
                kind=$(((number + turn) % 4))
                number=$((number + 1))
                echo "$number $comm $((kind % 2)) $([ $kind -lt 2 ] && echo KILL || echo STOP) $phase"
            done
        done
    done
done | xargs -P "$at_once" -L 1 bash "$0" one "$folder" "$work" "$device" "$deadline" 2>/dev/null

# a line for each kind of case that ran, as JSON and in a table
awk -v json="$work/kills.json" '
    { k = $1 " " $4 " " $3 " " $2; n[k]++; if ($5 > said[k]) said[k] = $5; if ($6 > gone[k]) gone[k] = $6 }
    $8 == "ok" { ok[k]++ }
    index(" " code[k] " ", " " $7 " ") == 0 { code[k] = code[k] (code[k] == "" ? "" : " ") $7 }
    END {
        for (k in n) {
            split(k, at, " ")
            printf "%s: %d of %d, said after at most %d ms, gone after %d, code %s\n", k, ok[k], n[k], said[k], gone[k], code[k]
            printf "{\"comm\": \"%s\", \"point\": \"%s\", \"signal\": \"%s\", \"rank\": %d, \"cases\": %d, \"ok\": %d, \"said_ms_max\": %d, \"gone_ms_max\": %d, \"code\": \"%s\"}\n", at[1], at[2], at[3], at[4], n[k], ok[k], said[k], gone[k], code[k] >json
        }
    }' "$work/cases" | sort
cat "$work/failures"
after=$(used)
for _ in 1 2 3 4 5 6; do
    [ "$after" -le $((before + 64)) ] && break
    sleep 0.5
    after=$(used)
done
asked=$((repetitions * 4 * ${#PHASES[@]} * $(echo $COMMS | wc -w)))
echo "$(wc -l <"$work/cases") of $asked cases, $(grep -c ' ok$' "$work/cases") ok; device memory in use: $before MiB before, $after MiB after"
[ -z "${WHOLE:-}" ] || [ "$(wc -l <"$work/cases")" -eq "$asked" ] || exit 1
[ ! -s "$work/failures" ] && [ -s "$work/cases" ] && [ "$after" -le $((before + 64)) ]
