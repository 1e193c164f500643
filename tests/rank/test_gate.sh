#!/usr/bin/env bash
# test_gate.sh - each gate fails for the fault that it is there for.

set -u
. "$(dirname "$0")/lib.sh"

FAULTY=$3/tandem_gate_fault
GATE=(gate "${BASE[@]}" --prompts "$ROOT/configs/gate")

# catches FAULT GATE PATTERN [CODE] - the line of the gate says FAILED and what differs.
catches()
{
    local fault=$1 gate=$2 pattern=$3 code=${4:-1} got

    checks=$((checks + 1))
    "$FAULTY" "$fault" "${GATE[@]}" --only "$gate" >"$WORK/out" 2>"$WORK/err"
    got=$?
    if [ "$got" -ne "$code" ] || ! grep -q "^$gate .*: FAILED: .*$pattern" "$WORK/out"; then
        note_failure "$gate with the fault \"$fault\": exit $got, want $code and a line with \"$pattern\""
        sed 's/^/    /' "$WORK/out" "$WORK/err"
    fi
}

catches rows:0 G1 'position [0-9]*: serial'
catches blind G2 'position [0-9]*: serial'
catches blind G3 'position [0-9]*: serial'
catches rows:7 G4 'position [0-9]*: serial'
catches company G5 'position [0-9]*: serial'
catches ahead G7 'draft 1 is'
catches differ G8 'ranks differ' 70
catches lever G9 'one thread: .*the logits of the last 24 rows'
catches seam G10 'chunks of .*the logits of the last row'
catches late G11 'tokens and .* serially'
catches seed G12 'position [0-9]*: serial'
catches shares G12 'one rank.s sampler takes'
catches rows:10 G13 'position [0-9]*: serial'
catches rollback G1 'serial'
# AddressSanitizer has a heap of its own, of which the soak sees nothing, and finds the leak itself.
grep -q __asan_init "$FAULTY" || catches leak soak 'the heap has grown'
catches company soak 'position [0-9]*: serial'

# Every rank runs the same jobs where ranks are processes.
export TANDEM_BUILD=$4
expect 0 '' "$ROOT/launch.sh" "${GATE[@]}" --only G8 --json --set ranks=2 --set link=shm \
    --set "port=$(free_port)"
same 'two processes' '"equal"' "$(field result "$WORK/out")"

expect 64 'want G1 .. G13 or soak' "$TANDEM" "${GATE[@]}" --only G14

finish
