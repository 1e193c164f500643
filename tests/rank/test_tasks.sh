#!/usr/bin/env bash
# test_tasks.sh - launch.sh as the task of a scheduler, Slurm's or Open MPI's, whose environment is made here by hand; and
# the unit for systemd.

set -u
# shellcheck source=tests/rank/lib.sh
. "$(dirname "$0")/lib.sh"

secret_file "$WORK/secret"
ASK=(--prompt 'Once upon a time' --temperature 0 --max-tokens 12 --json)
SETTINGS=("${BASE[@]}" --set threads=1 --set depth=2)
"$TANDEM" generate "${SETTINGS[@]}" --set ranks=2 --set link=loop "${ASK[@]}" >"$WORK/loop" 2>"$WORK/err" ||
    note_failure "loop: $(cat "$WORK/err")"

# launch WORD... - in an environment with nothing of a scheduler but what the words begin with
launch()
{
    env -u SLURM_PROCID -u SLURM_NTASKS -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE TANDEM_BUILD="$BUILD" "$@"
}
BUILD=$4

# tasks NAME RANK_VARIABLE WORD... - two tasks; what rank 0 writes has to be the text of the loop
tasks()
{
    local name=$1 rank=$2 port pid
    local line=("$ROOT/launch.sh" "${SETTINGS[@]}" --set link=tcp --set "secret=$WORK/secret")

    shift 2
    port=$(free_port)
    launch "$@" "$rank=1" "${line[@]}" --set "port=$port" generate "${ASK[@]}" >"$WORK/out1" 2>"$WORK/err1" &
    pid=$!
    launch "$@" "$rank=0" "${line[@]}" --set "port=$port" generate "${ASK[@]}" >"$WORK/out0" 2>"$WORK/err0"
    same "$name: task 0" 0 $?
    wait $pid
    same "$name: task 1" 0 $?
    same "$name: the text" "$(field ids "$WORK/loop")" "$(field ids "$WORK/out0")"
    same "$name: a task is one rank" '1 1' "$(grep -c 'world of 2 is complete' "$WORK/err0") $(
        grep -c '^r1 control: world of 2 is complete' "$WORK/err1")"
}

tasks 'Slurm, one node' SLURM_PROCID SLURM_NTASKS=2
tasks 'Open MPI' OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE=2

# Nodes of a job are the hosts, unless the config names them.
mkdir -p "$WORK/bin"
printf '#!/bin/sh\n[ "$*" = "show hostnames n[0-1]" ] && printf "127.0.0.1\\n127.0.0.1\\n"\n' >"$WORK/bin/scontrol"
chmod +x "$WORK/bin/scontrol"
job=("PATH=$WORK/bin:$PATH" SLURM_NTASKS=2 SLURM_JOB_NUM_NODES=2 'SLURM_JOB_NODELIST=n[0-1]')
tasks 'Slurm, two nodes' SLURM_PROCID "${job[@]}"
launch "${job[@]}" SLURM_PROCID=1 SLURM_NTASKS=3 "$ROOT/launch.sh" "${SETTINGS[@]}" --set link=tcp \
    --set "secret=$WORK/secret" generate "${ASK[@]}" >"$WORK/out" 2>"$WORK/err"
same 'more tasks than nodes' 78 $?
same 'and said' 1 "$(grep -c 'config: hosts names 2, ranks is 3' "$WORK/err")"

launch SLURM_PROCID=1 SLURM_NTASKS=2 "$ROOT/launch.sh" --dry-run "${SETTINGS[@]}" --set link=tcp \
    --set "secret=$WORK/secret" generate "${ASK[@]}" >"$WORK/out" 2>"$WORK/err"
same 'a dry run of a task' 1 "$(grep -c '^here: .* --set rank=1 $' "$WORK/out")"
launch SLURM_PROCID=0 SLURM_NTASKS=2 "$ROOT/launch.sh" --set "port=$(free_port)" status >"$WORK/out" 2>"$WORK/err"
same 'status in a task' 'nothing runs' "$(cat "$WORK/out" "$WORK/err")"

# A single task starts all ranks itself, as without a scheduler.
launch SLURM_PROCID=0 SLURM_NTASKS=1 "$ROOT/launch.sh" "${SETTINGS[@]}" --set ranks=2 --set link=tcp \
    --set "port=$(free_port)" generate "${ASK[@]}" >"$WORK/out" 2>"$WORK/err"
same 'one task: exit code' 0 $?
same 'one task: the text' "$(field ids "$WORK/loop")" "$(field ids "$WORK/out")"
same 'one task: both ranks' 2 "$(grep -c 'world of 2 is complete' "$WORK/err")"

# ---- systemd ------------------------------------------------------------------------------------------------------------

if command -v systemd-analyze >/dev/null; then
    # its paths and its user are an example's
    sed -e "s|/opt/tandem/launch.sh|$ROOT/launch.sh|; s|^WorkingDirectory=.*|WorkingDirectory=$ROOT|; s|^User=.*|User=root|" \
        "$ROOT/configs/tandem.service" >"$WORK/tandem.service"
    systemd-analyze verify "$WORK/tandem.service" >"$WORK/out" 2>&1
    same 'systemd takes the unit' 0 $?
    same 'and has nothing to say about it' '' "$(grep 'tandem.service' "$WORK/out")"
    sed -i 's/^Restart=.*/Restart=sometimes/' "$WORK/tandem.service"
    same 'a wrong one is found' 1 "$(systemd-analyze verify "$WORK/tandem.service" 2>&1 | grep -c 'tandem.service.*sometimes')"
else
    echo 'the unit was not checked: no systemd-analyze here'
fi

finish
