#!/usr/bin/env bash
# test_faults.sh - ranks that live and do the wrong thing: one that does not get on, one that has another outcome, one
# with numbers that are none. Every rank ends, names rank, round and cause in one line, and what was asked is answered.

set -u
. "$(dirname "$0")/lib.sh"

HELD=$4/tests/rank/tandem_held
secret_file "$WORK/secret"
ASK=(generate "${BASE[@]}" --json --prompt 'Once upon a time' --temperature 1 --seed 1 --max-tokens 6000
    --set ignore_eos=on --set depth=2)
PAIR=(--set ranks=2 --set link=tcp --set "secret=$WORK/secret")

one_ended() { ! alive "${pid[0]}" || ! alive "${pid[1]}"; }
gone() { ! alive "$1"; }

# pair RANK FAULT OPTIONS... - two ranks, one of them with the fault; waits for both, leaves code[0], code[1]
pair()
{
    local faulty=$1 fault=$2 port r pid=(0 0)

    shift 2
    port=$(free_port)
    for r in 0 1; do
        local program=("$TANDEM")

        [ "$r" = "$faulty" ] && program=("$HELD" "$fault")
        "${program[@]}" "${ASK[@]}" "${PAIR[@]}" --set "port=$port" --set "rank=$r" "$@" >"$WORK/out$r" 2>"$WORK/err$r" &
        pid[r]=$!
    done
    code=('' '')
    until_true 200 one_ended
    for r in 0 1; do
        alive "${pid[r]}" && continue
        wait "${pid[r]}"
        code[r]=$?
        crash "$fault, rank $r" "${code[r]}" "${pid[@]}"
    done
    for r in 0 1; do # no rank stays alone
        [ -z "${code[r]}" ] || continue
        until_true 50 gone "${pid[r]}" || kill -KILL "${pid[r]}"
        wait "${pid[r]}"
        code[r]=$?
        crash "$fault, rank $r" "${code[r]}"
    done
}

# ended NAME PATTERN - both ranks with 70, the pattern in the line of each, and an answer with it
ended()
{
    local name=$1 pattern=$2 r

    for r in 0 1; do
        same "$name: exit code of rank $r" 70 "${code[r]}"
        same "$name: rank $r says it" yes \
            "$(grep 'error: group: ' "$WORK/err$r" | grep -q -e "$pattern" && echo yes || cat "$WORK/err$r")"
        same "$name: rank $r has one cause" 1 "$(grep -c 'error: group: ' "$WORK/err$r")"
    done
    same "$name: the answer" yes \
        "$(grep '"finish":"error"' "$WORK/out0" | grep -q -e "$pattern" && echo yes || cat "$WORK/out0")"
}

code=(0 0)

# ---- a rank that lives and does not get on ----------------------------------------------------------------------

pair 1 hold@window:2 --set stall_ms=400
ended 'rank 1 stalls in a window' 'rank 1 has not got on for 400 ms: round [0-9]*, order ROUND, phase window, exchange'
pair 0 hold@verify --set stall_ms=400
ended 'rank 0 stalls before a window' 'rank 0 has not got on for 400 ms: round [0-9]*, order ROUND, phase stage'

# ---- an order that takes too long ----------------------------------------------------------------------------------

pair 1 hold@prefill --set round_limit_ms=400
ended 'a prompt chunk longer than the limit' 'rank [01]: round 0, order FILL, phase window, .*not done in 400 ms'
checks=$((checks + 1))
timeout 20 "$HELD" hold@verify "${ASK[@]}" --set round_limit_ms=300 >"$WORK/out" 2>"$WORK/err"
same 'one rank, a round longer than the limit: exit code' 70 $?
same 'it says where' yes "$(grep -q 'watch: round [0-9]*, order ROUND, phase stage: not done in 300 ms' "$WORK/err" &&
    grep -q 'stack of thread' "$WORK/err" && grep -q 'held' "$WORK/err" && echo yes || cat "$WORK/err")"
same 'and answers' yes "$(grep -q '"finish":"error","error":"round [0-9]*, order ROUND' "$WORK/out" && echo yes ||
    cat "$WORK/out")"

# ---- ranks that do not agree ------------------------------------------------------------------------------------------

pair 1 differ@window:3
ended 'another outcome on rank 1' 'round 2 slot 0: ranks differ, rank 0 [0-9]* tokens to [0-9]*, rank 1 [0-9]* to [0-9]*'
pair 0 differ@window:3
ended 'another outcome on rank 0' 'round 2.*differ'

# Rank 0's decisions travel with its orders: what another rank would have drafted, and how sure it was, is not asked.
pair 1 none@drafts --max-tokens 60
mv "$WORK/out0" "$WORK/out"
for r in 1 0; do
    pair $r stray@drafts --max-tokens 60
    same "other drafts on rank $r: exit codes" '0 0' "${code[*]}"
    same "other drafts on rank $r: the reply" "$(field ids "$WORK/out")" "$(field ids "$WORK/out0")"
    accepted[r]=$(field accept "$WORK/out0")
done
same 'on rank 0 they cost the drafts' no "$([ "${accepted[0]}" = "${accepted[1]}" ] && echo yes || echo no)"

# ---- a rank that cannot start, or loads for ever (F-21, F-32) --------------------------------------------------------

for r in 0 1; do
    began=$(date +%s%3N)
    pair $r short@memory
    took=$(($(date +%s%3N) - began))
    same "rank $r has no memory: its exit code" 71 "${code[r]}"
    same "it names the number" yes "$(grep -q 'error: memory: .* available' "$WORK/err$r" && echo yes || cat "$WORK/err$r")"
    same "the exit code of the other" 70 "${code[1 - r]}"
    same "the other hears the cause" 1 "$(grep -c "error: group: rank $r: cannot start: memory: " "$WORK/err$((1 - r))")"
    same "nobody waits: $took ms" yes "$([ $took -lt 5000 ] && echo yes)"
done

port=$(free_port)
: >"$WORK/err0" # what the ranks before have said is no sign
"$HELD" hold@load "${ASK[@]}" "${PAIR[@]}" --set "port=$port" --set rank=1 >/dev/null 2>"$WORK/err1" &
loads=$!
"$TANDEM" "${ASK[@]}" "${PAIR[@]}" --set "port=$port" --set rank=0 >/dev/null 2>"$WORK/err0" &
leader=$!
met() { grep -q 'world of 2 is complete' "$WORK/err0"; }
comes $leader 100 met || note_failure 'ranks do not meet while one loads'
began=$(date +%s%3N)
kill -KILL $leader
wait $loads
same 'rank 0 is killed while rank 1 loads: exit code' 70 $?
took=$(($(date +%s%3N) - began))
same "rank 1 does not load on: $took ms" yes "$([ $took -lt 1500 ] && echo yes)"
same 'it says who is gone' 1 "$(grep -c 'error: group: rank 0 is gone: connection closed' "$WORK/err1")"
wait $leader 2>/dev/null

port=$(free_port)
"$TANDEM" "${ASK[@]}" "${PAIR[@]}" --set "port=$port" --set rank=0 >/dev/null 2>"$WORK/err0" &
leader=$!
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
comes $leader 100 listens || note_failure 'rank 0 does not listen'
expect 69 "port $port: Address already in use" "$TANDEM" "${ASK[@]}" "${PAIR[@]}" --set "port=$port" --set rank=0 \
    --set "cache=$WORK/fresh"
same 'a port that is taken is known before anything is packed' no "$([ -e "$WORK/fresh" ] && echo yes || echo no)"
kill -TERM $leader
wait $leader

# ---- a time of day that jumps ------------------------------------------------------------------------------------------

pair 1 wall@clock --max-tokens 20
same 'nothing looks at the time of day: exit codes' '0 0' "${code[*]}"

# ---- numbers that are none --------------------------------------------------------------------------------------------

pair 1 nan@window:3
ended 'a NaN in the logits of rank 1' 'round 2: window: choose: no finite logits in slot 0 row 0'

# ---- n-gram rows that cannot be read while their window runs ----------------------------------------------------------

for r in 0 1; do
    pair $r lost@window:3
    ended "n-gram rows of rank $r" 'round 2: window: row store: held: the rows of ticket 0 are lost'
    pair $r lost@prefill
    ended "n-gram rows of a prompt on rank $r" 'round 0: prompt: row store: held: the rows of ticket 0 are lost'
done

finish
