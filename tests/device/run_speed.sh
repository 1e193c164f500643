#!/bin/sh
# run_speed.sh OUT [PROGRAM] - how fast a rank of full size is on this device: checks first, then times. SECONDS_ALL, 280
# unless it is set, limits the whole; what is left of it limits each step.
#
# Run from the root of the tree. PROGRAM is a device_tests built elsewhere, with tandem and libraries beside it (run.sh
# pack_here makes such a folder); without one both are built here. In OUT: speed.log, and speed.json, a line a step.
#
#   checks     ops against ref, launches that overlap and that do not; rounds captured == eager; beside them the pack
#              of full size is made
#   window     windows of 1 to 16 rows, every op inside one, draft pass     (models/synth-dsv41, 104 GiB)
#   kernels    every op alone, cold, at 1 to 16 rows
#   products   EXL3, FP8, FP4 by rows up to 4,096; bench: the indexer at 131,072 positions, candidates
#   counters   ncu: memory share, stalls, registers of the longest kernels  (models/synth-dsv41-6)
#   roofline   what its windows should take, beside what they took when h200.json was written
set -u

DEADLINE=$(($(date +%s) + ${SECONDS_ALL:-280}))
out=${1:?folder for logs}
program=${2:-}
failed=
mkdir -p "$out"
: >"$out/speed.log" && : >"$out/speed.json"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "$*" | tee -a "$out/speed.log"; }

# step LIMIT NAME COMMAND...: its output into speed.log, what it prints as JSON into speed.json
step() {
    limit=$1 name=$2
    shift 2
    left=$((DEADLINE - $(date +%s)))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 3 ]; then
        say "$name: left out, there is no time for it"
        failed="$failed $name"
        return 1
    fi
    start=$(date +%s)
    timeout "$limit" "$@" >"$work/$name" 2>"$work/err"
    rc=$?
    { echo "==== $name: $*"; cat "$work/err" "$work/$name"; } >>"$out/speed.log"
    grep '^{' "$work/$name" | sed "s/^/{\"step\": \"$name\", \"result\": /; s/\$/}/" >>"$out/speed.json"
    say "$name: exit $rc after $(($(date +%s) - start)) s"
    [ $rc -eq 0 ] || failed="$failed $name"
    return $rc
}

if [ -z "$program" ]; then
    meson setup "$work/build" >>"$out/speed.log" 2>&1 &&
        ninja -C "$work/build" tests/device/device_tests src/rank/tandem >>"$out/speed.log" 2>&1 || {
        say "device_tests cannot be built here, see speed.log"
        exit 1
    }
    program=$work/build/tests/device/device_tests
    tandem=$work/build/src/rank/tandem
else
    tandem=$(dirname "$program")/tandem
fi
LD_LIBRARY_PATH=$(dirname "$program")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

set_=" --set cache=$work/cache --set backend=cuda --set slots=1 --set context=2048 --set ignore_eos=on"
full="--set model=synth+exl3-v41:models/synth-dsv41 $set_ --set draft=dspark"
short="--set model=synth+exl3-v41:models/synth-dsv41-6 $set_ --set draft=none --set cache=$work/short"

timeout 120 "$tandem" generate $full --prompt a --max-tokens 1 >"$work/pack" 2>&1 &
packing=$!
step 60 ops "$program" ops
[ $? -ne 77 ] || { say "no device here"; exit 77; }
step 30 ops_serial "$program" ops -q -s
step 40 rounds "$program" rounds one_rank two_ranks
wait $packing
say "pack: exit $?"
cat "$work/pack" >>"$out/speed.log"
step 30 bench "$program" bench "$work/bench.json" && sed 's/^/{"step": "bench", "result": /; s/$/}/' "$work/bench.json" >>"$out/speed.json"
step 40 products "$program" products "$work/products.json" &&
    sed 's/^/{"step": "products", "result": /; s/$/}/' "$work/products.json" >>"$out/speed.json"
step 90 window "$tandem" bench --window --json $full
step 60 kernels "$tandem" bench --kernels --json $full
if command -v ncu >/dev/null 2>&1; then
    step 90 counters ncu --clock-control none --cache-control none --csv -k 'regex:strip|thin|few|gang|route|score' -s 400 -c 120 \
        --metrics gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,smsp__inst_executed.sum,smsp__sass_inst_executed_op_local.sum,smsp__issue_active.avg.pct_of_peak_sustained_active,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio \
        "$tandem" bench --window $short --set overlap=off --set graphs=off
else
    say "no ncu here: counters left out"
fi
step 20 roofline "$tandem" roofline "$work"/short/*/rank0.pack configs/devices/h200.json configs/devices/kernels.json
say "speed: ${failed:+FAILED:}${failed:-all steps ran}"
[ -z "$failed" ]
