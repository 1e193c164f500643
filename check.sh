#!/usr/bin/env bash
# check.sh [--sanitize | --thread] - installs what is missing, builds, runs every test; the last line counts them.
#
# --sanitize builds with AddressSanitizer and UndefinedBehaviorSanitizer in a folder of its own; --thread with
# ThreadSanitizer, and runs what has threads: a test runner that forks hides them.

set -u
. "$(dirname "$(realpath "$0")")/setup.sh"

name=build
options=()
patience=1
tests=()
[ $# -le 1 ] || die 64 "check.sh [--sanitize | --thread], not $*"
case ${1-} in
'') ;;
--sanitize)
    name=build-sanitize
    options=(-Db_sanitize=address,undefined -Db_lundef=false)
    patience=4
    export ASAN_OPTIONS=halt_on_error=1:abort_on_error=1:detect_leaks=1
    export UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
    ;;
--thread)
    name=build-thread
    options=(-Db_sanitize=thread -Db_lundef=false)
    patience=8
    tests=(--suite thread)
    # ranks that fail leave beside threads that still run, and at once
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:report_thread_leaks=0:atexit_sleep_ms=0
    BUILD_ONLY=(src/rank/tandem tests/rank/tsan_group tests/rank/tandem_held)
    ;;
*) die 64 "check.sh [--sanitize | --thread], not $*" ;;
esac

setup_packages
setup_machines
setup_hosts
dir=$(build_dir "$name")
(build "$dir" true ${options[@]+"${options[@]}"}) || {
    printf '0 passed, 1 failed\n'
    exit 1
}
out=$(mktemp) || die 73 "cannot make a file" # another check of the same folder has its own
trap 'rm -f "$out"' EXIT
meson test -C "$dir" --no-rebuild --print-errorlogs --timeout-multiplier "$patience" ${tests[@]+"${tests[@]}"} 2>&1 | tee "$out"
status=${PIPESTATUS[0]}

count()
{
    awk -F: -v key="$1" '$1 == key { n = $2 + 0 } END { print n + 0 }' "$out"
}

passed=$(($(count Ok) + $(count 'Expected Fail')))
failed=$(($(count Fail) + $(count 'Unexpected Pass') + $(count Timeout)))
skipped=$(count Skipped)
[ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
printf '%d passed, %d failed%s\n' "$passed" "$failed" "$([ "$skipped" -eq 0 ] || printf ', %d skipped' "$skipped")"
[ "$failed" -eq 0 ]
