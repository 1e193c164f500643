#!/usr/bin/env bash
# test_disk.sh - files that go wrong under a running program: a full or read-only disk, a pack that is cut off while it is
# mapped, a disk that is slow. Each has an error with a name or no effect; no text is wrong, nobody waits.

set -u
. "$(dirname "$0")/lib.sh"

secret_file "$WORK/secret"
G=("$TANDEM" generate "${BASE[@]}" --json --prompt 'Once upon a time' --seed 1)
LONG=("${G[@]}" --temperature 1 --max-tokens 6000 --set ignore_eos=on --set depth=2)
has_text() { [ "$(stat -c %s "$1" 2>/dev/null || echo 0)" -gt 20 ]; }
finish_of() { field finish "$1"; }

# ---- a disk that is full, or takes nothing --------------------------------------------------------------------------

# on SIZE FOLDER COMMAND... - with a file system of that size over the folder, for this command only
on()
{
    unshare -rm sh -c 'mount -t tmpfs -o "size=$1" none "$2" && shift 2 && exec "$@"' sh "$@"
}

if unshare -rm true 2>/dev/null; then
    mkdir "$WORK/small"
    "${G[@]}" --max-tokens 60 --set depth=2 >"$WORK/whole" 2>/dev/null
    expect 73 'log .*rank0.jsonl: ' on 8k "$WORK/small" "${G[@]}" --max-tokens 60 --set depth=2 --set "log=$WORK/small"
    same 'full disk, round log: it is said at once' 1 "$(grep -c 'warning: log .*No space left' "$WORK/err")"
    same 'full disk, round log: the reply' "$(field ids "$WORK/whole")" "$(field ids "$WORK/out")"
    expect 73 'no room for' on 1m "$WORK/small" "${G[@]}" --max-tokens 4 --set "cache=$WORK/small"
    expect 73 'no room for' on 1m "$WORK/small" "$TANDEM" convert "$MODEL" "$WORK/small/new" --to fp8
    # shellcheck disable=SC2016 # for the inner shell
    again=('"$@" --set depth=2 >/dev/null 2>&1 && mount -o remount,ro,size=64m none "$0" && exec "$@"' "$WORK/small")
    expect 0 'warning: costs: not kept, .*Read-only' on 64m "$WORK/small" sh -c "${again[@]}" "${G[@]}" --max-tokens 4 \
        --set "cache=$WORK/small"
    same 'read-only cache: no error' 0 "$(grep -c 'error: ' "$WORK/err")"
else
    echo 'no right to mount: full disks are not tried'
fi

# ---- a log of an earlier run ------------------------------------------------------------------------------------------

for n in 3 5; do
    "${G[@]}" --max-tokens $n --set depth=1 --set "log=$WORK/log" >/dev/null 2>&1
    mv "$WORK/log/rank0.jsonl" "$WORK/$n" && cp "$WORK/$n" "$WORK/log/rank0.jsonl"
done
same 'the log of the run before is kept' "$(cat "$WORK/3")" "$(cat "$WORK/log/rank0.jsonl.old")"

# ---- a pack that is cut off while it is mapped ----------------------------------------------------------------------

"$TANDEM" pack "$MODEL" "$WORK/one" >/dev/null 2>&1
"$TANDEM" pack "$MODEL" "$WORK/two" --ranks 2 >/dev/null 2>&1
"${LONG[@]}" --set "model=$WORK/one" --set "log=$WORK/flow" >"$WORK/out0" 2>"$WORK/err0" &
pid=$!
comes $pid 300 has_text "$WORK/flow/rank0.jsonl" || note_failure 'one rank: no round'
truncate -s 4096 "$WORK/one/rank0.pack"
wait $pid
same 'pack cut off, one rank: exit code' 70 $?
LOST='rank0.pack: .*\(cut off\|ends\)'
same 'it says what was lost' yes "$(grep 'error: ' "$WORK/err0" | grep -q "$LOST" && echo yes || cat "$WORK/err0")"
same 'and answers' '"error"' "$(finish_of "$WORK/out0")"

port=$(free_port)
for r in 0 1; do
    "${LONG[@]}" --set "model=$WORK/two" --set ranks=2 --set link=tcp --set "port=$port" --set "secret=$WORK/secret" \
        --set "rank=$r" --set "log=$WORK/pair" >"$WORK/out$r" 2>"$WORK/err$r" &
    pids[r]=$!
done
comes "${pids[0]}" 300 has_text "$WORK/pair/rank0.jsonl" || note_failure 'two ranks: no round'
truncate -s 4096 "$WORK/two/rank1.pack"
for r in 0 1; do
    wait "${pids[r]}"
    same "pack cut off, two ranks: exit code of rank $r" 70 $?
    same "rank $r says what was lost" yes \
        "$(grep 'error: group: ' "$WORK/err$r" | grep -q 'rank1.pack: ' && echo yes || cat "$WORK/err$r")"
done
same 'and rank 0 answers' '"error"' "$(finish_of "$WORK/out0")"

finish
