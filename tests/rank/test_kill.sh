#!/usr/bin/env bash
# test_kill.sh - a stopped rank is found by its silence, signals drain, the launcher leaves nobody behind.

set -u
. "$(dirname "$0")/lib.sh"

BUILD=$4
secret_file "$WORK/secret"
LONG=(generate "${BASE[@]}" --prompt 'Once upon a time' --max-tokens 6000 --temperature 1 --seed 1 --set ignore_eos=on
    --set ranks=2 --set "secret=$WORK/secret")
pid=(0 0)

now_ms() { date +%s%3N; }
gone() { ! alive "$1"; }
has_text() { [ "$(stat -c %s "$WORK/text0" 2>/dev/null || echo 0)" -gt 20 ]; }

# begin LINK - two ranks that decode; returns when text comes
begin()
{
    local port r

    port=$(free_port)
    rm -f "$WORK/text0"
    for r in 0 1; do
        "$TANDEM" "${LONG[@]}" --set "link=$1" --set "port=$port" --set "rank=$r" >"$WORK/text$r" 2>"$WORK/err$r" &
        pid[r]=$!
    done
    comes "${pid[0]}" 300 has_text || note_failure "no text comes over $1"
}

# survivor NAME RANK - the rank ends by itself within two seconds with 70 and names the other
survivor()
{
    local name=$1 r=$2 begin took

    begin=$(now_ms)
    until_true 30 gone "${pid[r]}"
    took=$(($(now_ms) - begin))
    if ! gone "${pid[r]}"; then
        note_failure "$name: rank $r lives after $took ms"
        kill -KILL "${pid[r]}"
    fi
    wait "${pid[r]}"
    same "$name: exit code of rank $r" 70 $?
    same "$name: ended in $took ms" yes "$([ "$took" -lt 2000 ] && echo yes)"
    same "$name: the other rank is named" yes "$(grep -q "rank $((1 - r))" "$WORK/err$r" && echo yes || cat "$WORK/err$r")"
}

# ---- a rank is stopped ----------------------------------------------------------------------------------
# (killed and stopped in every phase: kill_matrix.sh)

# A rank that stops answering is found by its silence; its process ends when it may run again.
begin tcp
kill -STOP "${pid[1]}"
survivor 'tcp, stopped rank 1' 0
kill -CONT "${pid[1]}"
survivor 'tcp, rank 1 goes on alone' 1

# A machine that slept: to a rank that did not run itself nobody has been silent.
begin tcp
kill -STOP "${pid[@]}"
before=$(stat -c %s "$WORK/text0")
has_more() { [ "$(stat -c %s "$WORK/text0")" -gt "$before" ]; }
sleep 2.5
kill -CONT "${pid[@]}"
comes "${pid[0]}" 100 has_more || note_failure 'both ranks slept: the text does not go on'
kill -TERM "${pid[@]}"
for r in 0 1; do
    until_true 50 gone "${pid[r]}" || kill -KILL "${pid[r]}"
    wait "${pid[r]}"
    same "both ranks slept: exit code of rank $r" 0 $?
done

# A rank dies while costs are measured, and while several requests decode: each of them hears why. (The context makes
# the first case measure: these ranks never get so far that they keep what they measured.)
for i in 1 2 3 4 5 6; do
    printf '{"id":"%s","prompt":"Once upon a time","max_tokens":3000,"ignore_eos":true}\n' $i
done >"$WORK/jobs"
for case in "prefill 777" "window:40 4096"; do
    read -r place context <<<"$case"
    port=$(free_port)
    ask=(generate "${BASE[@]}" --jobs "$WORK/jobs" --set ranks=2 --set link=tcp --set "secret=$WORK/secret" --set "port=$port"
        --set "context=$context")
    : >"$WORK/err1" # what the case before has said is no sign
    "$BUILD/tests/rank/tandem_held" "hold@$place" "${ask[@]}" --set rank=1 >/dev/null 2>"$WORK/err1" &
    pid[1]=$!
    "$TANDEM" "${ask[@]}" --set rank=0 >"$WORK/text0" 2>"$WORK/err0" &
    pid[0]=$!
    comes "${pid[1]}" 300 grep -q 'held at' "$WORK/err1" || note_failure "rank 1 is not held at $place"
    kill -KILL "${pid[1]}"
    survivor "requests, rank 1 dies at $place" 0
    same "rank 1 dies at $place: every request is answered" 6 "$(grep -c '"finish":"error","error":".*rank 1' "$WORK/text0")"
done

# ---- signals ------------------------------------------------------------------------------------------

# drains NAME SIGNALLED... - the ranks end with 0 and the text stays whole
drains()
{
    local name=$1 r

    shift
    begin tcp
    for r in "$@"; do
        kill -TERM "${pid[r]}"
    done
    for r in 0 1; do
        until_true 50 gone "${pid[r]}" || kill -KILL "${pid[r]}"
        wait "${pid[r]}"
        same "$name: exit code of rank $r" 0 $?
    done
    same "$name: it says so" yes "$(grep -q 'finishing the round' "$WORK/err$1" && echo yes)"
    same "$name: how the reply ended" yes "$(grep -q 'finish interrupted' "$WORK/err0" && echo yes || cat "$WORK/err0")"
}
drains 'SIGTERM to both' 0 1
drains 'SIGTERM to rank 0' 0
drains 'SIGTERM to rank 1' 1

# ---- the launcher -------------------------------------------------------------------------------------

children() { cat "/proc/$launcher/task/$launcher/children" 2>/dev/null; }
tandem_children()
{
    local c

    for c in $(children); do
        [ "$(cat "/proc/$c/comm" 2>/dev/null)" = tandem ] && echo "$c"
    done
}

launch()
{
    rm -f "$WORK/text0"
    port=$(free_port)
    TANDEM_BUILD=$BUILD "$ROOT/launch.sh" --set "port=$port" --set link=tcp "${LONG[@]}" >"$WORK/text0" 2>"$WORK/err0" &
    launcher=$!
    comes $launcher 300 has_text || note_failure 'no text from the launcher'
    ranks=($(tandem_children))
    same "the launcher has two ranks" 2 ${#ranks[@]}
}

# ended NAME CODE - the launcher has ended with this code, and nobody is left
ended()
{
    local r

    until_true 60 gone "$launcher" || note_failure "$1: the launcher lives"
    wait "$launcher"
    same "$1: exit code" "$2" $?
    for r in "${ranks[@]}"; do
        until_true 30 gone "$r" || {
            note_failure "$1: rank $r is an orphan"
            kill -KILL "$r"
        }
    done
}

launch
kill -TERM $launcher
ended 'launcher, SIGTERM' 0
launch
own=(env "TANDEM_BUILD=$BUILD" "$ROOT/launch.sh" --set "port=$port" --set link=tcp --set ranks=2)
same 'status finds both ranks' 2 "$("${own[@]}" status | grep -c '^here: rank [01] of run .* is process')"
"${own[@]}" stop >/dev/null
ended 'launcher, stop' 0
same 'and then none' 'nothing runs' "$("${own[@]}" status 2>&1)"
launch
kill -KILL "${ranks[1]}"
ended 'launcher, a rank is killed' 137
same 'the launcher says which' 1 "$(grep -c '^launch: rank 1 was killed (signal 9)$' "$WORK/err0")"
same 'the shell says nothing' 0 "$(grep -c 'launch.sh: line' "$WORK/err0")"
launch
kill -KILL $launcher
ended 'launcher, kill -9' 137


# A rank that cannot start: the other hears why.
mkdir "$WORK/tmp"
begin=$(now_ms)
TMPDIR=$WORK/tmp TANDEM_BUILD=$BUILD "$ROOT/launch.sh" "${BASE[@]}" --set ranks=2 --set link=tcp --set "port=$(free_port)" \
    generate --ids "$WORK/none" >/dev/null 2>"$WORK/err0"
same 'launcher, rank 0 has no ids: exit code' 66 $?
took=$(($(now_ms) - begin))
same "launcher, rank 0 has no ids: ended in $took ms" yes "$([ "$took" -lt 2000 ] && echo yes)"
same 'an error line of each rank' 2 "$(grep -c 'error: ' "$WORK/err0")"
same 'rank 1 says why' 1 "$(grep -c 'r1 error: group: rank 0: cannot start: .*none' "$WORK/err0")"

# The secret that the launcher made goes with it.
LONG=("${LONG[@]:0:${#LONG[@]}-2}")
# A shell cannot trap a signal that it was started with as ignored, as nohup and some runners do.
signals=(TERM)
[ $((0x$(awk '$1 == "SigIgn:" { print $2 }' /proc/self/status) & 1)) -ne 0 ] || signals+=(HUP)
for s in "${signals[@]}"; do
    rm -f "$WORK/text0"
    TMPDIR=$WORK/tmp TANDEM_BUILD=$BUILD "$ROOT/launch.sh" --set "port=$(free_port)" --set link=tcp "${LONG[@]}" \
        >"$WORK/text0" 2>"$WORK/err0" &
    launcher=$!
    comes $launcher 300 has_text || note_failure 'no text from the launcher'
    ranks=($(tandem_children))
    same 'a secret is made' 1 "$(ls "$WORK/tmp" | wc -l)"
    kill -s $s $launcher
    ended "launcher, SIG$s" 0
    same "SIG$s: no secret is left" 0 "$(ls "$WORK/tmp" | wc -l)"
done

finish
