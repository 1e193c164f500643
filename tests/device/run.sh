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

say() { echo "$*" | tee -a "$out/run.log"; }

# part LIMIT NAME COMMAND...: log, time and exit code of one step
part() {
    limit=$1 name=$2
    shift 2
    case " ${PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
    start=$(date +%s.%N)
    timeout "$limit" "$@" >"$out/part.log" 2>&1
    rc=$?
    end=$(date +%s.%N)
    seconds=$(awk "BEGIN { printf \"%.1f\", $end - $start }")
    { echo "==== $name: $*"; cat "$out/part.log"; echo "==== $name: exit $rc after $seconds s"; } >>"$out/all.log"
    grep -v '^r[0-9]* [^o]' "$out/part.log" | tail -n "${TAIL:-12}" | cut -c1-200 | sed "s/^/    /"
    say "$name: exit $rc after $seconds s"
    echo "{\"part\": \"$name\", \"exit\": $rc, \"seconds\": $seconds}" >>"$out/summary.json"
    if [ $rc -eq 77 ] && [ "$name" = ops ]; then
        say "device: no device here, nothing was tested"
        exit 77
    fi
    if [ $rc -eq 77 ]; then
        say "$name: $(grep skipped "$out/part.log" | head -n 1)"
        return
    fi
    [ $rc -eq 0 ] || failed="$failed $name"
}

if [ "${1:-}" = pack_here ]; then
    mkdir -p "$2" && strip -o "$2/device_tests" "$3/tests/device/device_tests" &&
        strip -o "$2/tandem" "$3/src/rank/tandem" || exit 1
    ldd "$3/src/rank/tandem" | awk '$3 ~ /^\// { print $3 }' |
        grep -v -E '/(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s)\.so' |
        while read -r lib; do cp -L "$lib" "$2/"; done
    du -sh "$2"
    exit 0
fi

out=${1:?folder for logs}
program=${2:-}
failed=
mkdir -p "$out"
: >"$out/run.log" && : >"$out/all.log" && : >"$out/summary.json"
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
rm -f "$out/part.log"
say "device: ${failed:+FAILED:}${failed:-all parts passed}"
[ -z "$failed" ]
