#!/usr/bin/env bash
# run.sh [RUNS | SECONDSs] [TARGET]... - every fuzz target (or those named) for so many inputs, or for so long, with
# AddressSanitizer and UndefinedBehaviorSanitizer, one after the other. 1000000 inputs each if nothing is said.
#
# With clang and its libFuzzer inputs are led by coverage; what it finds is kept in build-fuzz/corpus. Without, the
# suite's own programs change their seeds. An input that breaks a target is left in build-fuzz and its log named. The
# kernels use builtins that clang has not, so they come from gcc and guide no input; its sanitizers watch them too.

set -u
root=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
. "$root/setup.sh"

size=1000000
if [[ ${1-} =~ ^[0-9]+s?$ ]]; then
    size=$1
    shift
fi
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for f in "$root"/tests/fuzz/fuzz_*.c; do
        f=$(basename "$f" .c)
        [ "$f" = fuzz_run ] || targets+=("${f#fuzz_}")
    done
fi
dir=$(build_dir build-fuzz)
work=$dir/clang
BUILD_ONLY=("${targets[@]/#/tests/fuzz/fuzz_}")
(build "$dir" true -Dcuda=disabled -Db_sanitize=address,undefined -Db_lundef=false) || exit $?
mkdir -p "$work"

flags=(-g -O1 -std=gnu17 -w -D_GNU_SOURCE -ffp-contract=off -fno-omit-frame-pointer -fsanitize=address,undefined
    "-I$root" "-I$dir" "-I$dir/src/rank" "-DVECTORS=\"$root/tests/vectors\"" "-DPOCKET=\"$root/models/pocket-dsv41\""
    '-DTANDEM_VERSION="fuzz"')
libraries=("-Wl,--start-group" "$work/libtandem.a" "$dir"/kernels/*.a "-Wl,--end-group" -ljansson -lcrypto -lxxhash
    -lpcre2-8 -lutf8proc -lprotobuf-c -lhwloc -lm -lpthread)

echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }' >"$work/probe.c"
fuzzer=false
! clang -w -fsanitize=fuzzer,address,undefined -o "$work/probe" "$work/probe.c" 2>/dev/null || fuzzer=true

# Everything but the kernels and the commands, rows by plain reads, no RDMA.
compile_modules()
{
    local f

    rm -f "$work"/*.o "$work/libtandem.a"
    for f in "$root"/src/{base,transport,model,draft,verify,rank}/*.c "$dir"/src/{model,rank}/*.pb-c.c; do
        case $(basename "$f") in
        main.c | embed.c | commands.c | cmd_*.c | row_store_uring.c | link_rdma.c | rdma_device.c) continue ;;
        esac
        printf '%s\0' "$f"
    done | xargs -0 -P "$(nproc)" -I '{}' sh -c \
        'src=$1; out=$2/$(echo "${src#*/src/}" | tr / -).o; shift 2; "$@" -c -o "$out" "$src"' sh '{}' "$work" \
        clang "${flags[@]}" -fsanitize=fuzzer-no-link >"$work/log" 2>&1 &&
        ar rcs "$work/libtandem.a" "$work"/*.o
}

# prepare TARGET - leaves run=(command)
prepare()
{
    local t=$1 program=$dir/tests/fuzz/fuzz_$1 corpus=$dir/corpus/$1 seeds=$dir/seeds/$1

    run=("$program")
    $fuzzer || return 0
    mkdir -p "$corpus" "$seeds"
    "$program" -runs=0 "-dump=$seeds" >"$work/log" 2>&1 || return 1
    run=("$work/fuzz_$t" -rss_limit_mb=4096 -timeout=60 -max_len=65536 -print_final_stats=1 "-artifact_prefix=$dir/$t-"
        "$corpus" "$seeds")
    clang "${flags[@]}" -fsanitize=fuzzer -o "$work/fuzz_$t" "$root/tests/fuzz/fuzz_$t.c" "${libraries[@]}" \
        2>"$work/log"
}

if $fuzzer; then
    say "compiling with clang"
    compile_modules || die 70 "clang does not build this: $work/log"
fi
export ASAN_OPTIONS=abort_on_error=1:detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
failed=0
for t in "${targets[@]}"; do
    prepare "$t" || die 70 "$t is not built: $work/log"
    case $size in
    *s) run+=("-max_total_time=${size%s}") ;;
    *) run+=("-runs=$size") ;;
    esac
    begin=$(date +%s)
    "${run[@]}" >"$dir/$t.log" 2>&1
    code=$?
    n=$(sed -n 's/^stat::number_of_executed_units: *//p; s/.*, \([0-9]*\) made of them.*/\1/p' "$dir/$t.log" | tail -1)
    edges=$(grep -o 'cov: [0-9]*' "$dir/$t.log" | tail -1)
    printf '%-14s %10s inputs %6d s  %-11s %s\n' "$t" "${n:--}" $(($(date +%s) - begin)) "$edges" \
        "$([ $code -eq 0 ] && echo ok || echo "FAILED, see $dir/$t.log")"
    [ $code -eq 0 ] || failed=1
done
exit $failed
