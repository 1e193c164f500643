#!/usr/bin/env bash
# kill_matrix.sh [REPETITIONS] - kills and stops each rank in six phases over tcp and shm; prints a table of how long the
# other rank lived and fails if one lived for more than 1.5 s, ended with another code than 70, named another cause, left
# shared memory or a process behind, or owed an answer.
#
# kill_matrix.sh PROGRAM CHECKOUT SCRATCH BUILD quick     every phase once, with ranks, signals and links in turn

set -u
if [ $# -lt 5 ]; then
    root=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
    set -- "$root/build/src/rank/tandem" "$root" "$root/build/tests/rank" "$root/build" "${1-1}"
fi
. "$(dirname "$(realpath "$0")")/lib.sh"

HELD=$4/tests/rank/tandem_held
SIZE=$5
MOST_MS=1500
secret_file "$WORK/secret"
ASK=("${BASE[@]}" --json --prompt 'Once upon a time' --temperature 1 --seed 1 --set ignore_eos=on --set depth=2
    --set ranks=2 --set "secret=$WORK/secret")
pid=(0 0)
declare -A times bad

now_ms() { date +%s%3N; }
held() { grep -q '^held at' "$WORK/err$1" 2>/dev/null; }
shared_memory() { ls /dev/shm/ | grep tandem; }
left() { grep -lsF -f - /proc/[0-9]*/cmdline <<<"secret=$WORK/secret"; }

# begin LINK VICTIM PHASE - two ranks, one of them held in the phase
begin()
{
    local link=$1 holder=$2 phase=$3 port r tokens=6000

    [ "$phase" = idle ] && holder=0 # only rank 0 knows that nobody asks
    [ "$phase" = shutdown ] && tokens=4
    port=$(free_port)
    rm -f "$WORK"/err? "$WORK"/out? # what the last case said is not said again
    for r in 0 1; do
        local program=("$TANDEM")

        [ "$r" = "$holder" ] && program=("$HELD" "hold@$phase")
        "${program[@]}" generate "${ASK[@]}" --max-tokens $tokens --set "link=$link" --set "port=$port" --set "rank=$r" \
            >"$WORK/out$r" 2>"$WORK/err$r" &
        pid[r]=$!
    done
    for _ in $(seq 1500); do
        held "$holder" && return
        alive "${pid[holder]}" || break
        sleep 0.02
    done
    if ! alive "${pid[holder]}"; then
        wait "${pid[holder]}"
        crash "$link $phase, rank $holder" $? "${pid[@]}"
    fi
    note_failure "$link $phase: rank $holder does not come there"
    kill -KILL "${pid[@]}" 2>/dev/null
    wait "${pid[@]}" 2>/dev/null
    return 1
}

# one LINK VICTIM SIGNAL PHASE
one()
{
    local link=$1 victim=$2 signal=$3 phase=$4 other=$((1 - $2)) key="$1 $2 $3 $4" begin took code cause

    checks=$((checks + 1))
    if ! begin "$link" "$victim" "$phase"; then
        bad[$key]=1
        return
    fi
    begin=$(now_ms)
    kill "-$signal" "${pid[victim]}"
    # nobody waits for ever: a rank that is stuck is ended after 10 s and counts as such
    (sleep 10 && kill -KILL "${pid[other]}") 2>/dev/null &
    local guard=$!
    wait "${pid[other]}" 2>/dev/null
    code=$?
    took=$(($(now_ms) - begin))
    kill "$guard" 2>/dev/null
    kill -KILL "${pid[victim]}" 2>/dev/null
    wait "${pid[victim]}" "$guard" 2>/dev/null
    times[$key]+="$took "
    cause="rank $victim is gone: $([ "$signal" = KILL ] && echo 'connection closed' || echo 'no heartbeat for')"
    if [ "$code" -ne 70 ] || [ "$took" -gt $MOST_MS ] || [ "$(grep -c 'error: group: ' "$WORK/err$other")" -ne 1 ] ||
        ! grep -q "error: group: $cause" "$WORK/err$other"; then
        bad[$key]=1
        note_failure "$key: code $code after $took ms"
    fi
    # a request that was under way has its answer, whatever happened to it
    if [ "$other" = 0 ] && [[ "$phase" = prefill || "$phase" = verify || "$phase" = window ]] &&
        ! grep -q '"finish":"error","error":"rank 1 is gone' "$WORK/out0"; then
        bad[$key]=1
        note_failure "$key: no answer: $(cat "$WORK/out0")"
    fi
    if shared_memory; then
        bad[$key]=1
        note_failure "$key: shared memory is left"
    fi
    if left; then
        bad[$key]=1
        note_failure "$key: a process is left"
    fi
}

# spread TIMES - the middle one and the longest
spread()
{
    tr ' ' '\n' <<<"$*" | sort -n | awk 'NF { t[n++] = $1 } END { if (n) printf "%d/%d", t[int(n / 2)], t[n - 1]; else printf "-" }'
}

table()
{
    local link victim signal phase key

    printf '%-5s %-5s %-7s' link rank signal
    printf ' %10s' "${phases[@]}"
    printf '   median/longest, ms; runs each: %s\n' "${1-1}"
    for link in tcp shm; do
        for victim in 0 1; do
            for signal in KILL STOP; do
                printf '%-5s %-5s %-7s' $link $victim $signal
                for phase in "${phases[@]}"; do
                    key="$link $victim $signal $phase"
                    printf ' %10s' "$(spread "${times[$key]-}")${bad[$key]+!}"
                done
                printf '\n'
            done
        done
    done
}

phases=(start idle prefill verify window shutdown)
if [ "$SIZE" = quick ]; then
    one tcp 1 KILL start
    one shm 0 STOP start
    one tcp 0 KILL idle
    one shm 1 KILL prefill
    one tcp 0 KILL verify
    one shm 1 KILL window
    one tcp 1 STOP window
    one shm 1 KILL shutdown
else
    for _ in $(seq "$SIZE"); do
        for link in tcp shm; do
            for victim in 0 1; do
                for signal in KILL STOP; do
                    for phase in "${phases[@]}"; do
                        one $link $victim $signal $phase
                    done
                done
            done
        done
    done
fi
table "$SIZE"
finish
