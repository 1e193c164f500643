#!/usr/bin/env bash
# test_short.sh - memory that is short once, at many places of every kind of run: each ends with an
# error line and a code of its own, or does without; no signal, no hang, and with a sanitizer
# nothing is left behind. A fifth argument `full` takes every place instead of some.

set -u
. "$(dirname "$0")/lib.sh"

SHORT=$3/tandem_short
FULL=${5:-}
# Spread over a run, beside those at its end: most before them are the reading of a tokenizer, one
# like the other.
PLACES=8

printf '%s%s\n' '{"prompt":"Once upon","max_tokens":4,"id":"a","stop":["zz"],"logprobs":2,' \
    '"temperature":0.5,"top_p":0.9,"seed":3}' \
    '{"ids":[1,2,3],"max_tokens":3,"n":2,"temperature":1,"seed":"7",' \
    '"logit_bias":{"5":1.5},"frequency_penalty":0.5}' \
    >"$WORK/jobs.jsonl"

# said FILE - what was said, whatever ended first
said()
{
    cut -d , -f 1-3 "$1" | sort
}

# try NAME LAST STEP COMMAND... - with memory short nowhere, then at some places, of the last ones
# at every STEPth
try()
{
    local name=$1 last=$2 every=$3 whole all n code step

    shift 3
    # the first run may have to make what the cache keeps
    for n in 1 2; do
        rm -rf "$WORK/new"
        "$SHORT" 0 "$@" >"$WORK/whole" 2>"$WORK/err" || note_failure "$name: exit $?"
    done
    all=$(tail -n 1 "$WORK/err")
    whole=$(said "$WORK/whole")
    step=$((all / PLACES + 1))
    [ "$FULL" = full ] && step=1
    for n in $(seq 1 $step "$all") $(seq $((all > last ? all - last : 1)) "$every" "$all"); do
        rm -rf "$WORK/new"
        timeout 60 "$SHORT" "$n" "$@" >"$WORK/out" 2>"$WORK/err"
        code=$?
        checks=$((checks + 1))
        case $code in
        0) [ "$whole" = "$(said "$WORK/out")" ] ||
            note_failure "$name: another output with memory short at $n" ;;
        70 | 71 | 73) grep -q 'error: ' "$WORK/err" ||
            note_failure "$name: exit $code without an error at $n" ;;
        *) note_failure "$name: exit $code with memory short at $n of $all" ;;
        esac
        # whichever of its ranks was short, and whichever of them ended first
        [ $code -ne 70 ] || ! grep -q 'cannot start' "$WORK/err" ||
            note_failure "$name: exit 70 of a start at $n"
    done
}

one=("${BASE[@]}" --set threads=2 --set depth=3)
try text 400 11 generate "${one[@]}" --max-tokens 6 --prompt 'Hello there'
try jobs 190 2 generate "${one[@]}" --json --jobs "$WORK/jobs.jsonl"
# nobody is ended before its own code is known, however busy this machine is
two=("${one[@]}" --set ranks=2 --set link=loop --set grace_ms=20000 --set "log=$WORK/new")
try ranks 400 7 generate "${two[@]}" --json --max-tokens 4 --prompt 'Hello there'
try score 400 11 score "${one[@]}" --prompt 'Hello there'
try pack 400 11 pack "$MODEL" "$WORK/new"
try tokens 40 5 tokenize "${one[@]}" --prompt 'Hello there <|x|>'

finish
