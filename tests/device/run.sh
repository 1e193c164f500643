#!/bin/sh
# run.sh OUT [PROGRAM] - everything that needs a device, with logs and JSON left in OUT.
#
# Run from the root of the tree. PROGRAM is a device_tests that was built elsewhere, beside the libraries
# it needs (pack_here makes such a folder) and tandem; without one both are built here. Parts have a limit each, so that
# the whole fits into ten minutes.
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
    { meson setup "$build" && ninja -C "$build" tests/device/device_tests src/rank/tandem; } >"$out/all.log" 2>&1 || {
        say "device_tests cannot be built here, see all.log"
        exit 1
    }
    program=$build/tests/device/device_tests
    cp "$build/src/rank/tandem" "$build/tests/device/"
fi
tandem=$(dirname "$program")/tandem
LD_LIBRARY_PATH=$(dirname "$program")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

part 120 ops "$program" ops
if grep -q '"ops", "exit": 77' "$out/summary.json"; then
    say "device: no device here, nothing was tested"
    exit 77
fi
part 60 queue "$program" queue
part 90 exchange "$program" exchange
part 60 exchange_devices "$program" exchange -d
part 120 graph "$program" graph 64
part 120 rounds "$program" rounds
# F-05: a setting that changes sums of libraries changes nothing here
part 60 tf32 env NVIDIA_TF32_OVERRIDE=1 "$program" rounds no_allocation
if [ -x "$tandem" ]; then
    part 120 processes sh tests/device/processes.sh "$tandem"
else
    say "no tandem beside device_tests: ranks in processes of their own left out"
fi
part 240 laws "$program" laws -n index_selections
part 90 bench "$program" bench "$out/bench.json"
TAIL=80 part 60 products "$program" products "$out/products.json"
if command -v compute-sanitizer >/dev/null 2>&1; then
    TAIL=3
    part 100 memcheck compute-sanitizer --tool memcheck --error-exitcode 9 "$program" ops -q
    part 60 memcheck_queue compute-sanitizer --tool memcheck --error-exitcode 9 "$program" queue -q
    part 100 memcheck_graph compute-sanitizer --tool memcheck --error-exitcode 9 "$program" graph 4 1
    part 100 racecheck compute-sanitizer --tool racecheck --error-exitcode 9 "$program" ops -q
    part 100 synccheck compute-sanitizer --tool synccheck --error-exitcode 9 "$program" ops -q
else
    say "no compute-sanitizer here: memcheck, racecheck and synccheck left out"
fi
end_logs
