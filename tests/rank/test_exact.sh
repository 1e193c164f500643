#!/usr/bin/env bash
# test_exact.sh - drafted == serial, token for token: greedy and sampled, one and two ranks, threads and processes.
#
# `tandem demo` decodes each prompt drafted and then serially and exits with 1 if they differ. Here it must also draft.

set -u
. "$(dirname "$0")/lib.sh"

secret_file "$WORK/secret"

# ranks_of LINK RANKS COMMAND... - one process, or one a rank; the exit code and output of rank 0
ranks_of()
{
    local link=$1 ranks=$2 port others=() r status

    shift 2
    if [ "$link" = loop ]; then
        "$@" --set "ranks=$ranks"
        return
    fi
    port=$(free_port)
    for ((r = 1; r < ranks; r++)); do
        "$@" --set "ranks=$ranks" --set "link=$link" --set "secret=$WORK/secret" --set "port=$port" --set "rank=$r" \
            >/dev/null &
        others+=($!)
    done
    "$@" --set "ranks=$ranks" --set "link=$link" --set "secret=$WORK/secret" --set "port=$port"
    status=$?
    for r in "${others[@]}"; do
        wait "$r" || status=$?
    done
    return $status
}

DEMO=("$TANDEM" demo "${BASE[@]}" --prompts "$ROOT/configs/demo" --max-tokens 48 --set log_level=err)

# exact NAME LINK RANKS OPTION...
exact()
{
    local name=$1 link=$2 ranks=$3

    shift 3
    expect 0 '' ranks_of "$link" "$ranks" "${DEMO[@]}" "$@"
    same "$name: the proof" 1 "$(grep -c 'equals serial text token for token' "$WORK/out")"
    # At a fixed depth structured text is well above one token a round, so that acceptance is really in play. The depth
    # that prices choose depends on how busy this machine is.
    case " $* " in
    *" depth="*)
        same "$name: it drafts" yes "$(awk '$1 == "structured" && $4 ~ /x$/ && $5 > 1.5 { print "yes" }' "$WORK/out")"
        ;;
    esac
}

for layout in "loop 1" "loop 2" "tcp 2" "shm 2"; do
    exact "$layout, greedy" $layout
    exact "$layout, T 0.8" $layout --temperature 0.8 --top-p 0.95 --seed 7 --set depth=4
done
exact 'full depth' loop 2 --set depth=5
exact 'depth 1, T 1' loop 1 --set depth=1 --temperature 1 --top-k 20 --seed 9
exact 'fp32, quantisers off' loop 2 --set numerics=fp32 --set cache_quant=off --set depth=4
exact 'small chunks, one thread' loop 1 --set prefill_chunk=16 --set threads=1 --set depth=5
exact 'stop strings' loop 1 --stop ', 9' --stop 'king' --stop $'\n\n' --set depth=5

# Several requests share windows, join as slots become free, and get what each of them gets alone and serially.
cat >"$WORK/jobs" <<'END'
{"id":"a","prompt":"Once upon a time","max_tokens":40}
{"id":"b","prompt":"def gcd(a, b):","max_tokens":60,"temperature":0.8,"seed":7,"top_p":0.9,"logprobs":2}
{"id":"c","prompt":"Count from 1 to 60.","max_tokens":50,"repetition_penalty":1.1,"min_tokens":20,"logit_bias":{"14":1.5}}
{"id":"d","prompt":"The","max_tokens":3,"stop":["\n"]}
{"id":"e","prompt":"for i in range(10):","max_tokens":40,"frequency_penalty":0.3,"temperature":1,"seed":1,"banned_token_ids":[205]}
{"id":"f","prompt":"There was once a king who","max_tokens":48,"temperature":0.6,"top_k":20,"seed":4,"stop_token_ids":[18]}
END
for layout in "loop 1" "tcp 2"; do
    # shellcheck disable=SC2086
    expect 0 '' ranks_of $layout "$TANDEM" generate "${BASE[@]}" --jobs "$WORK/jobs" --set depth=4
    cp "$WORK/out" "$WORK/together"
    same "$layout: six replies" 6 "$(wc -l <"$WORK/together")"
    for id in a b c d e f; do
        grep "\"id\":\"$id\"" "$WORK/jobs" >"$WORK/job"
        # shellcheck disable=SC2086
        expect 0 '' ranks_of $layout "$TANDEM" generate "${BASE[@]}" --jobs "$WORK/job" --draft none --set slots=1
        grep "\"id\":\"$id\"" "$WORK/together" >"$WORK/one"
        for f in ids text finish logprobs; do
            same "$layout, job $id: $f" "$(field $f "$WORK/out")" "$(field $f "$WORK/one")"
        done
    done
done
expect 0 '' "$TANDEM" generate "${BASE[@]}" --prompt a --prompt b --replies 2 --temperature 1 --seed 5 --max-tokens 4 --json
same 'two requests, two replies each' 4 "$(grep -c '"choice"' "$WORK/out")"
printf '{"prompt":"a"}\n{"prompt":"b","top_k":-1}\n' >"$WORK/jobs"
expect 65 "jobs $WORK/jobs line 2: job: top_k" "$TANDEM" generate "${BASE[@]}" --jobs "$WORK/jobs"
same 'nothing has run' '' "$(cat "$WORK/out")"

# The benchmark replays what it measured; two results are compared, and one that is not exact says no.
mkdir -p "$WORK/texts"
cp "$ROOT/configs/bench/code-2.txt" "$ROOT/configs/bench/prose-1.txt" "$ROOT/configs/bench/prose-2.txt" "$WORK/texts"
expect 0 '' "$TANDEM" bench "${BASE[@]}" --prompts "$WORK/texts" --max-tokens 12 --json --set depth=3
cp "$WORK/out" "$WORK/a.json"
same 'the benchmark is exact' true "$(field exact_all "$WORK/a.json")"
same 'two kinds, three widths, two temperatures' 12 "$(grep -o '"streams"' "$WORK/a.json" | wc -l)"
expect 0 '' "$TANDEM" bench --compare "$WORK/a.json" "$WORK/a.json"
same 'rows compared' 12 "$(grep -c '1.00x' "$WORK/out")"
sed 's/"exact":true/"exact":false/' "$WORK/a.json" >"$WORK/b.json"
checks=$((checks + 1))
"$TANDEM" bench --compare "$WORK/a.json" "$WORK/b.json" >"$WORK/out" 2>&1 && note_failure 'a row that is not exact passes'
same 'it is named' 1 "$(grep -c 'NO$' "$WORK/out")"
sed 's/"streams":2/"streams":9/' "$WORK/a.json" >"$WORK/b.json"
expect 65 'rows\[.*streams' "$TANDEM" bench --compare "$WORK/a.json" "$WORK/b.json"

# The same request gives the same ids over every link, and with a seed again.
ask=("$TANDEM" generate "${BASE[@]}" --prompt 'Count from 1 to 60.' --max-tokens 40 --json --temperature 0.8 --seed 3)
expect 0 '' ranks_of loop 2 "${ask[@]}"
ids=$(field ids "$WORK/out")
expect 0 '' ranks_of tcp 2 "${ask[@]}"
same 'tcp against loop' "$ids" "$(field ids "$WORK/out")"
expect 0 '' ranks_of shm 2 "${ask[@]}" --draft none
same 'shm, serial, against loop, drafted' "$ids" "$(field ids "$WORK/out")"
expect 0 '' ranks_of loop 2 "${ask[@]}" --seed 4
same 'another seed, another text' no "$([ "$ids" = "$(field ids "$WORK/out")" ] && echo yes || echo no)"

# A drafter of the host drafts too: text that repeats itself is copied in blocks.
ask=("$TANDEM" generate "${BASE[@]}" --prompt 'Once upon a time there was a king' --max-tokens 100 --json --set ignore_eos=on)
expect 0 '' ranks_of tcp 2 "${ask[@]}" --draft none
ids=$(field ids "$WORK/out")
expect 0 '' ranks_of tcp 2 "${ask[@]}" --draft ngram --set depth=8
same 'copied against serial' "$ids" "$(field ids "$WORK/out")"
same 'copies save rounds' yes "$([ "$(field rounds "$WORK/out")" -lt 60 ] && echo yes)"

# Next-token heads: a chain whose length the prices choose, and all of it.
printf '5 9 3 44 17 5 9 3\n' >"$WORK/ids"
ask=("$TANDEM" generate --set "model=$ROOT/tests/vectors/mtp" --set "cache=$WORK/../cache" --ids "$WORK/ids" --max-tokens 60 --json
    --set ignore_eos=on --set context=512)
for layout in "loop 1" "tcp 2"; do
    # shellcheck disable=SC2086
    expect 0 '' ranks_of $layout "${ask[@]}" --draft none
    ids=$(field ids "$WORK/out")
    for depth in auto 3; do
        # shellcheck disable=SC2086
        expect 0 '' ranks_of $layout "${ask[@]}" --draft mtp --set "depth=$depth"
        same "$layout: next-token heads at depth $depth" "$ids" "$(field ids "$WORK/out")"
    done
done

# A reply that a stop string ends: drafted and serial agree in ids, text and reason.
ask=("$TANDEM" generate "${BASE[@]}" --prompt 'Once upon a time' --max-tokens 40 --json --stop 'man, and')
expect 0 '' "${ask[@]}" --set depth=5
drafted=$(field ids "$WORK/out")$(field text "$WORK/out")$(field finish "$WORK/out")
expect 0 '' "${ask[@]}" --draft none
same 'a stop inside a block' "$drafted" "$(field ids "$WORK/out")$(field text "$WORK/out")$(field finish "$WORK/out")"
same 'it was the stop' '"stop"' "$(field finish "$WORK/out")"

finish
