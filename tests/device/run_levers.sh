#!/bin/sh
# run_levers.sh OUT [TANDEM [MODEL [SETTING...]]] - rounds with each lever in turn, one reply each, two turns of all.
#
# Run from the root of the tree, alone on the device. MODEL is made up in the shapes of the real one unless it is given;
# the drafts of made-up weights are rejected, so every round has a window of depth + 1 rows and a pass. LEVERS: some of
# them only. In OUT: levers.json, a line a reply with medians of its replayed rounds (of all where none is replayed), and
# the log of the last reply. The code is 1 if a lever changed the text.
set -u

out=${1:?folder for logs}
tandem=${2:-build/src/rank/tandem}
model=${3:-synth+exl3-v41:models/synth-dsv41}
shift "$(($# < 3 ? $# : 3))"
levers=${LEVERS:-none early_ingest=on graph_pieces=2 graph_pieces=4 graph_pieces=8 prefetch=512KiB prefetch=2MiB side=off overlap=off}
mkdir -p "$out"
: >"$out/levers.json"
first='' bad=0

# median FIELD - of the last reply's rounds
median()
{
    grep -q '"mode":"replay"' "$out/log/rank0.jsonl" && mode=replay || mode=
    sed -n "/\"mode\":\"$mode/s/.*\"$1\":\([0-9.]*\).*/\1/p" "$out/log/rank0.jsonl" | sort -n |
        awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : 0 }'
}

# reply SETTING... - one with these
reply()
{
    rm -rf "$out/log"
    for set; do
        shift
        set -- "$@" --set "$set"
    done
    "$tandem" generate --set "model=$model" --set "cache=$out/cache" --set slots=1 --set context=2048 --set ignore_eos=on \
        --set draft=dspark "$@" --set "log=$out/log" --prompt 'Once upon a time there was a king' --json --max-tokens 120 \
        >"$out/reply" 2>"$out/err"
}

for turn in 1 2; do
    for lever in $levers; do
        [ $lever = none ] && set_to= || set_to=$lever
        for depth in 0 5; do
            # shellcheck disable=SC2086
            reply depth=$depth "$@" $set_to || { tail -n 3 "$out/err" && exit 1; }
            text=$(sed -n 's/.*"ids":\(\[[^]]*\]\).*/\1/p' "$out/reply")
            first=${first:-$text}
            if [ -z "$text" ] || [ "$text" != "$first" ]; then
                bad=1
                echo "FAILED: $lever, depth $depth: another text, or none"
            fi
            line="{\"lever\":\"$lever\",\"turn\":$turn,\"depth\":$depth"
            for field in wall_ms window_ms choose_ms ingest_ms draft_ms idle_ms launch_us; do
                line="$line,\"$field\":$(median $field)"
            done
            echo "$line}" | tee -a "$out/levers.json"
        done
    done
done
rm -rf "$out/cache"
exit $bad
