#!/bin/sh
# run.sh OUT [PROGRAM] - everything that needs a device, with logs and JSON left in OUT.
#
# Run from the root of the tree. PROGRAM is a device_tests that was built elsewhere, beside the libraries
# it needs and tandem with two faulty ones (pack_here makes such a folder); without one all are built here.
#
#   run.sh pack_here FOLDER BUILD    strip BUILD's device_tests and tandem into FOLDER, with their libraries
#   PARTS="ops laws" run.sh OUT ...  some parts only
#
# It ends before ten minutes are over, SECONDS_ALL after its start. Limits of the parts, in seconds; where one device is
# all there is, exchange_devices is left out:
#
#   the device alone   ops 30 and 30, queue 10, exchange 30, rounds 45, graph 30, laws 60, processes 40, kill 30, gates 75    380
#   beside each other  sanitizers in four lanes, the longest                                                       160
#   the device alone   exchanges 10, bench 20, products 20                                                          50
#                                                                                                           in all 590
set -u

. "$(dirname "$0")/lib.sh"

if [ "${1:-}" = pack_here ]; then
    mkdir -p "$2"
    for program in tests/device/device_tests tests/device/tandem_gate_stale tests/rank/tandem_held src/rank/tandem; do
        strip -o "$2/$(basename $program)" "$3/$program" || exit 1
    done
    ldd "$3/src/rank/tandem" | awk '$3 ~ /^\// { print $3 }' |
        grep -v -E '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' |
        while read -r lib; do cp -L "$lib" "$2/"; done
    du -sh "$2"
    exit 0
fi

out=${1:?folder for logs}
program=${2:-}
DEADLINE=$(($(date +%s) + ${SECONDS_ALL:-590}))
begin_logs
if [ -z "$program" ]; then
    build=$(mktemp -d)
    { meson setup "$build" && ninja -C "$build" tests/device/device_tests tests/device/tandem_gate_stale tests/rank/tandem_held src/rank/tandem; } >"$out/all.log" 2>&1 || {
        say "device_tests cannot be built here, see all.log"
        exit 1
    }
    program=$build/tests/device/device_tests
    cp "$build/src/rank/tandem" "$build/tests/rank/tandem_held" "$build/tests/device/"
fi
folder=$(dirname "$program")
tandem=$folder/tandem
LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

part 30 ops "$program" ops
if grep -q '"ops", "exit": 77' "$out/summary.json"; then
    say "device: no device here, nothing was tested"
    exit 77
fi
part 30 ops_little "$program" ops -m
# What looks at the device's memory or at times, or has ranks that wait for each other on it, has it alone.
part 10 queue "$program" queue
part 30 exchange "$program" exchange
part 60 exchange_devices "$program" exchange -d
part 45 rounds "$program" rounds
part 30 graph "$program" graph 64
part 60 laws "$program" laws -n index_selections
if [ -x "$tandem" ]; then
    part 40 processes sh tests/device/processes.sh "$tandem"
    TAIL=14 part 30 kill env COMMS="peer link" LOOK_AT="${CUDA_VISIBLE_DEVICES:-0}" bash tests/device/kill_devices.sh "$folder" "$out/kill" 15 1 3 0
    gate="gate --set model=models/pocket-dsv41 --set backend=cuda --set device=0 --set cache=$out/cache --prompts configs/gate"
    # shellcheck disable=SC2086
    {
        TAIL=14 part 60 gates "$tandem" $gate
        part 15 gate_fault sh -c "\"$folder/tandem_gate_stale\" $gate --only G6; [ \$? -eq 1 ]"
    }
else
    say "no tandem beside device_tests: gates and ranks in processes of their own left out"
fi

# Beside each other. -q is small: no reference, a window and a reply; -f a few cases for each kernel; -k FILE leaves the
# names of the kernels that were launched.
# F-05: a setting that changes sums of libraries changes nothing here
part 45 tf32 env NVIDIA_TF32_OVERRIDE=1 "$program" rounds fresh &
if command -v compute-sanitizer >/dev/null 2>&1; then
    check="compute-sanitizer --error-exitcode 9 --tool"
    rm -f "$out"/kernels.*
    # shellcheck disable=SC2086
    {
        (TAIL=3 && part 90 memcheck $check memcheck "$program" -k "$out/kernels.memcheck" ops -q &&
            part 25 memcheck_queue $check memcheck "$program" -k "$out/kernels.memcheck" queue -q &&
            part 15 memcheck_exchange $check memcheck "$program" -k "$out/kernels.memcheck" exchange -q &&
            part 20 memcheck_little $check memcheck "$program" -k "$out/kernels.memcheck" ops -q -m attend &&
            part 40 memcheck_little_experts $check memcheck "$program" -k "$out/kernels.little" ops -q -m experts) &
        (TAIL=3 && part 50 memcheck_graph $check memcheck "$program" -k "$out/kernels.graph" graph -q 4 1 &&
            part 150 synccheck $check synccheck --num-cuda-barriers 256 "$program" ops -q &&
            part 90 racecheck_attend $check racecheck "$program" ops -q -f attend) &
        TAIL=3 part 150 racecheck_quant $check racecheck "$program" ops -q -f quant &
        for op in window dense hyper state experts pick offer; do
            TAIL=3 part 60 racecheck_$op $check racecheck "$program" ops -q -f $op
        done &
    }
    wait
    cat "$out"/kernels.* >"$out/kernels" 2>/dev/null
    # but for what is launched where a link leads to another rank, which a checker does not let run beside
    TAIL=40 part 5 memcheck_kernels "$program" kernels "$out/kernels" exchange_relayed
else
    say "no compute-sanitizer here: memcheck, racecheck and synccheck left out"
fi
wait

# What measures has it alone.
part 10 exchanges "$program" exchanges "$out/exchanges.json"
part 20 bench "$program" bench "$out/bench.json"
TAIL=100 part 20 products "$program" products "$out/products.json"
rm -rf "$out/cache" "$out/kill" "$out"/kernels*
end_logs
