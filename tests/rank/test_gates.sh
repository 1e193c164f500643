#!/usr/bin/env bash
# test_gates.sh - the quick size of all gates: they hold, and each of them has met what it is there for.

set -u
. "$(dirname "$0")/lib.sh"

expect 0 '' "$TANDEM" gate "${BASE[@]}" --prompts "$ROOT/configs/gate"
cat "$WORK/out"
for gate in G1 G2 G3 G4 G5 G7 G8 G9 G10 G11 G12 G13; do
    same "$gate ran" 1 "$(grep -c "^$gate .*: [0-9]* cases, [0-9,]* tokens equal" "$WORK/out")"
done
# Graphs are for devices.
same 'G6 says that it did not run' 1 "$(grep -c '^G6 .*: skipped: this backend has no graphs' "$WORK/out")"
same 'every stop has had its place' 0 "$(grep -c 'not tried' "$WORK/out")"

finish
