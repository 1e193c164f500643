#!/bin/sh
# run_speed.sh OUT [PROGRAM] - how fast one of two ranks of full size is, alone on this device: checks first, then times, then
# what has to hold. SECONDS_ALL, 330 unless it is set, limits the whole; what is left of it limits each step.
#
# Run from the root of the tree. PROGRAM is a device_tests built elsewhere, with tandem and libraries beside it (run.sh
# pack_here makes such a folder); without one both are built here. In OUT: speed.log; speed.json, a line a step; verdict, a
# line a figure; small.json, what docs/results keeps. The code is 0 if every step ran and every figure was measured; what is
# missed is no failure of the script.
#
#   checks     ops against ref, launches that overlap and that do not; rounds captured == eager; beside them packs are made
#   bench      the indexer at 131,072 positions, candidates; products: EXL3, FP8, FP4 by rows up to 4,096
#   full       every op alone, cold, with plain references; windows of 1 to 16 rows, every op inside one, draft pass
#              (models/synth-dsv41 with 384 experts, rank 0 of 2, 99 GiB)
#   six        the same of six layers, to fit roofline's figures and to look at them from the other side
#   prompts    of 512, 2,048 and 4,096 rows in one chunk
#   counters   ncu: memory share, stalls, registers, spills of every op that reads weights or states
#   roofline   fitted to six layers, beside the full rank, and the other way round; a GB10 by what was fitted
set -u

. "$(dirname "$0")/lib.sh"

DEADLINE=$(($(date +%s) + ${SECONDS_ALL:-330}))
out=${1:?folder for logs}
program=${2:-}
failed=
mkdir -p "$out"
: >"$out/speed.log" && : >"$out/speed.json"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "$*" | tee -a "$out/speed.log"; }

# keep NAME FILE: its JSON lines into speed.json, as those of step NAME
keep() { grep '^{' "$2" | sed "s/^/{\"step\": \"$1\", \"result\": /; s/\$/}/" >>"$out/speed.json"; }

# step LIMIT NAME COMMAND...: its output into speed.log, what it prints as JSON into speed.json; both stay in $work/NAME
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
    [ "$name" = counters_raw ] || keep "$name" "$work/$name"
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
# The library that plain references are taken from, where it is not with the system's.
for blas in /usr/local/cuda*/lib64 $(python_libraries '*'); do
    [ -e "$blas/libcublas.so" ] || [ -e "$blas/libcublas.so.13" ] || continue
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$blas
    break
done
LD_LIBRARY_PATH=$(dirname "$program")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

for model in synth-dsv41 synth-dsv41-6; do
    mkdir -p "$work/$model"
    sed 's/"n_routed_experts": 192/"n_routed_experts": 384/' models/$model/config.json >"$work/$model/config.json"
done
common="--set ranks=2 --set backend=cuda --set slots=1 --set context=2048 --set draft=dspark"
full="$common --set model=synth+exl3-v41:$work/synth-dsv41 --set cache=$work/full_cache"
six="$common --set model=synth+exl3-v41:$work/synth-dsv41-6 --set cache=$work/six_cache"

timeout 150 "$tandem" bench --profile $full >"$work/pack" 2>&1 &
packing=$!
timeout 150 "$tandem" bench --profile $six >"$work/pack_six" 2>&1 &
packing_six=$!
step 60 ops "$program" ops
[ $? -ne 77 ] || { say "no device here"; exit 77; }
step 30 ops_serial "$program" ops -q -s
step 40 rounds "$program" rounds one_rank two_ranks
wait $packing
say "pack: exit $?"
wait $packing_six
say "pack of six layers: exit $?"
cat "$work/pack" "$work/pack_six" >>"$out/speed.log"
step 30 bench "$program" bench "$work/bench.json" && keep bench "$work/bench.json"
step 40 products "$program" products "$work/products.json" && keep products "$work/products.json"
step 90 full "$tandem" bench --window --kernels --json $full
step 60 six "$tandem" bench --window --kernels --json $six
step 40 prompts "$tandem" bench --window --json $full --set window_max=1 --set context=4608 --set prefill_chunk=4096
if command -v ncu >/dev/null 2>&1; then
    metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,dram__bytes_read.sum
    metrics=$metrics,launch__registers_per_thread,smsp__sass_inst_executed_op_local.sum,smsp__issue_active.avg.pct_of_peak_sustained_active
    for stall in barrier branch_resolve dispatch_stall drain imc_miss lg_throttle long_scoreboard math_pipe_throttle membar \
        mio_throttle no_instruction short_scoreboard sleeping wait; do
        metrics=$metrics,smsp__average_warps_issue_stalled_${stall}_per_issue_active.ratio
    done
    step 90 counters_raw ncu --clock-control none --nvtx --nvtx-include alone/ --csv --page raw --metrics $metrics \
        "$tandem" bench --profile --json $six &&
        step 5 counters python3 tests/device/judge_speed.py counters "$work/counters_raw" "$work/counters_raw"
else
    say "no ncu here: counters left out"
fi
devices=configs/devices
pack() { echo "$work/$1"_cache/*/rank0.pack; }
for way in "six full" "full six"; do
    from=${way% *} to=${way#* }
    step 20 fit_$from "$tandem" roofline "$(pack $from)" $devices/h200.json $devices/kernels.json --fit "$work/$from" &&
        step 5 roofline_${from}_to_$to "$tandem" roofline "$(pack $to)" $devices/h200.json "$work/fit_$from" --measured "$work/$to" --json
done
step 5 roofline_h200 "$tandem" roofline "$(pack full)" $devices/h200.json "$work/fit_six" --measured "$work/full"
step 5 roofline_gb10 "$tandem" roofline "$(pack full)" $devices/gb10.json "$work/fit_six"
step 5 roofline_gb10_json "$tandem" roofline "$(pack full)" $devices/gb10.json "$work/fit_six" --json
python3 tests/device/judge_speed.py judge "$out/speed.json" "$out/small.json" >"$out/verdict" || failed="$failed verdict"
cat "$out/verdict" | tee -a "$out/speed.log"
say "speed: ${failed:+FAILED:}${failed:-all steps ran}"
[ -z "$failed" ]
