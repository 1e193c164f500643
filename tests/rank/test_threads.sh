#!/usr/bin/env bash
# test_threads.sh - every thread that a decoder has, at once: ranks that are threads and ranks that are processes, workers,
# rows read ahead both ways, log writers, reports asked for by signal. check.sh --thread runs it under ThreadSanitizer,
# where a race ends the program with a code of its own; elsewhere it says that texts are equal.

set -u
. "$(dirname "$0")/lib.sh"

export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS-}"
secret_file "$WORK/secret"
ASK=("$TANDEM" generate "${BASE[@]}" --json --prompt 'Once upon a time' --prompt '1 2 3 4' --max-tokens 24 --seed 1
    --temperature 0.8 --set numerics=fp32 --set depth=3 --set threads=2)

"${ASK[@]}" --set link=loop >"$WORK/one" 2>"$WORK/err" || note_failure "one rank: $(cat "$WORK/err")"
texts() { grep -o '"ids":\[[^]]*\]' "$1"; }

for io in auto pread; do
    expect 0 'rounds: ' "${ASK[@]}" --set ranks=2 --set link=loop --set "engram_io=$io" --set engram_cache=0 \
        --set "log=$WORK/log-$io"
    same "two threads, $io: the texts" "$(texts "$WORK/one")" "$(texts "$WORK/out")"
done

# pair LINK OPTIONS... - two processes, asked for a report while they decode; both end with 0
pair()
{
    local link=$1 port r

    shift
    port=$(free_port)
    for r in 0 1; do
        "${ASK[@]}" --set ranks=2 --set "link=$link" --set "port=$port" --set "secret=$WORK/secret" --set "rank=$r" \
            --set "log=$WORK/log-$link" "$@" >"$WORK/out$r" 2>"$WORK/err$r" &
        pid[r]=$!
    done
    comes "${pid[1]}" 600 [ -s "$WORK/log-$link/rank1.jsonl" ]
    kill -USR1 "${pid[@]}" 2>/dev/null
    for r in 0 1; do
        wait "${pid[r]}"
        same "$link, rank $r: exit code" 0 $?
    done
    same "$link: the texts" "$(texts "$WORK/one")" "$(texts "$WORK/out0")"
    same "$link: no race" 0 "$(cat "$WORK"/err? | grep -c 'WARNING: ThreadSanitizer')"
}
pid=(0 0)
pair tcp
pair shm --set engram_io=pread --set engram_cache=4KiB

finish
