#!/bin/sh
# run.sh OUT [PROGRAM] - everything that needs a device, with logs and JSON left in OUT.
#
# Run from the root of the tree. PROGRAM is a device_tests that was built elsewhere, beside the libraries
# it needs and tandem with two faulty ones (pack_here makes such a folder); without one all are built here. Parts have a limit
# each, and the whole has one: SECONDS_ALL, just below ten minutes.
#
#   run.sh pack_here FOLDER BUILD    strip BUILD's device_tests and tandem into FOLDER, with their libraries
#   PARTS="ops laws" run.sh OUT ...  some parts only
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
tandem=$(dirname "$program")/tandem
LD_LIBRARY_PATH=$(dirname "$program")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

DEADLINE=$(($(date +%s) + ${SECONDS_ALL:-585}))
part 60 ops "$program" ops
if grep -q '"ops", "exit": 77' "$out/summary.json"; then
    say "device: no device here, nothing was tested"
    exit 77
fi
# What looks at the device's memory, or has ranks that wait for each other on it, has it alone.
part 30 queue "$program" queue
part 60 exchange "$program" exchange
part 60 exchange_devices "$program" exchange -d
part 90 rounds "$program" rounds

# Beside each other.
if command -v compute-sanitizer >/dev/null 2>&1; then
    check="compute-sanitizer --error-exitcode 9 --tool"
    # shellcheck disable=SC2086
    {
        (TAIL=3 && part 150 memcheck $check memcheck "$program" ops -q && part 60 memcheck_queue $check memcheck "$program" queue -q) &
        (TAIL=3 && part 150 memcheck_graph $check memcheck "$program" graph 4 1) &
        (TAIL=3 && part 200 racecheck $check racecheck "$program" ops -q) &
        (TAIL=3 && part 150 synccheck $check synccheck "$program" ops -q) &
    }
else
    say "no compute-sanitizer here: memcheck, racecheck and synccheck left out"
fi
part 60 graph "$program" graph 64
# F-05: a setting that changes sums of libraries changes nothing here
part 30 tf32 env NVIDIA_TF32_OVERRIDE=1 "$program" rounds fresh
part 120 laws "$program" laws -n index_selections
if [ -x "$tandem" ]; then
    gate="gate --set model=models/pocket-dsv41 --set backend=cuda --set device=0 --set cache=$out/cache --prompts configs/gate"
    # shellcheck disable=SC2086
    {
        TAIL=14 part 90 gates "$tandem" $gate
        part 30 gate_fault sh -c "\"$(dirname "$program")/tandem_gate_stale\" $gate --only G6; [ \$? -eq 1 ]"
    }
    part 60 processes sh tests/device/processes.sh "$tandem"
    TAIL=14 part 90 kill env COMMS="peer link" bash tests/device/kill_devices.sh "$(dirname "$program")" "$out/kill" 45 1 6 0
else
    say "no tandem beside device_tests: gates and ranks in processes of their own left out"
fi
wait

# What measures has it alone.
part 30 exchanges "$program" exchanges "$out/exchanges.json"
part 90 bench "$program" bench "$out/bench.json"
TAIL=80 part 60 products "$program" products "$out/products.json"
rm -rf "$out/cache" "$out/kill"
end_logs
