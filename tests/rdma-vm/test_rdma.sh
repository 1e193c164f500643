#!/usr/bin/env bash
# test_rdma.sh - the RDMA link for real, in virtual machines with software RoCE: the contract of links, drafted decoding
# with the same text as over tcp and loop, also while packets are lost, and how a rank ends that survives the other.
#
# test_rdma.sh PROGRAM CHECKOUT SCRATCH BUILD         one case of each kind; what check.sh runs
# test_rdma.sh faults [REPETITIONS]                   every fault at every phase, 5 times each: takes long
# test_rdma.sh soak [TOKENS]                          two machines, nine replies (of 530 tokens: 2000 rounds and more)
#
# Skipped, with the reason, where the machines cannot be started.

set -u
repetitions=
TOKENS=16
soak=
case ${1-} in
faults | soak)
    root=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
    if [ "$1" = faults ]; then
        repetitions=${2-5}
    else
        soak=1
        TOKENS=${2-530}
    fi
    set -- "$root/build/src/rank/tandem" "$root" "$root/build/tests/rdma-vm" "$root/build"
    ;;
esac
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/rank/lib.sh
. "$here/../rank/lib.sh"
BUILD=$4

skip()
{
    echo "skipped: $*"
    exit 77
}

ldd "$TANDEM" | grep -q libibverbs || skip 'this build is without RDMA (libibverbs-dev)'
! ldd "$TANDEM" | grep -q libasan || skip 'a program with sanitizers is too slow for emulated machines'
if [ "$(uname -m)" != x86_64 ] || [ ! -e /etc/debian_version ]; then
    skip 'the virtual machines need Debian on x86-64'
fi
for tool in qemu-system-x86_64 busybox cpio depmod tc ibv_devinfo ib_write_lat rping xz; do
    command -v "$tool" >/dev/null || skip "$tool is not installed: apt-get install $("$here/rdma-vm.sh" deps)"
done
"$here/rdma-vm.sh" image >"$WORK/image" 2>&1 || skip "no kernel for the virtual machines: $(tail -1 "$WORK/image")"

ask()
{
    "$TANDEM" generate "${BASE[@]}" --set ranks=2 --set threads=1 --set depth=2 --json --prompt 'Once upon a time' \
        --temperature 0 --set ignore_eos=on --max-tokens "$TOKENS" "$@"
}

"$TANDEM" pack "$MODEL" "$WORK/packs" --ranks 2 2>"$WORK/err" || note_failure "no packs: $(cat "$WORK/err")"
cp -r "$MODEL" "$WORK/weights"
dd if=/dev/zero of="$WORK/weights/model.safetensors" bs=1M seek=4 count=12 conv=notrunc 2>/dev/null
"$TANDEM" pack "$WORK/weights" "$WORK/other" --ranks 2 --rank 1 2>"$WORK/err" || note_failure "no packs: $(cat "$WORK/err")"
ask --set link=loop >"$WORK/loop" 2>"$WORK/err" || note_failure "loop: $(cat "$WORK/err")"
secret_file "$WORK/secret"
port=$(free_port)
ask --set link=tcp --set "secret=$WORK/secret" --set "port=$port" --set rank=1 >/dev/null 2>&1 &
ask --set link=tcp --set "secret=$WORK/secret" --set "port=$port" --set rank=0 >"$WORK/tcp" 2>"$WORK/err" ||
    note_failure "tcp: $(cat "$WORK/err")"
wait
same 'text over tcp and over loop' "$(field ids "$WORK/tcp")" "$(field ids "$WORK/loop")"
ids=$(field ids "$WORK/loop")

# All of a machine's files lie in half of its memory; programs with code for devices are large.
mkdir "$WORK/bin"
for program in "$TANDEM" "$BUILD/tests/rank/tandem_held" "$BUILD/tests/transport/"{rdma_pair,test_link,test_comm} "$BUILD/tests/rank/test_plan_box"; do
    strip -o "$WORK/bin/$(basename "$program")" "$program"
done

# machines SECONDS OPTION... -- CASE... - boot, run the cases, count what they say
machines()
{
    local limit=$1 options=() log=$WORK/vm

    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    "$here/rdma-vm.sh" run -t "$limit" -m 1280 ${options[@]+"${options[@]}"} -f "$WORK/bin/tandem" -f "$WORK/bin/tandem_held" \
        -f "$WORK/bin/rdma_pair" -f "$WORK/bin/test_link" -f "$WORK/bin/test_comm" \
        -f "$WORK/bin/test_plan_box" -f "$WORK/packs=/test/packs" -f "$WORK/other=/test/other" -f "$here/guest-cases" \
        -- "export IDS='$ids' TOKENS=$TOKENS; sh guest-cases $(printf "'%s' " "$@")" >"$log" 2>&1
    same "machines ${options[*]-}: exit code" 0 $?
    grep -E 'ok:|FAILED:|rdma-vm:|rounds: ' "$log"
    checks=$((checks + $(grep -c 'ok:' "$log")))
    grep -q 'FAILED:' "$log" && note_failure "in the machines ${options[*]-}" && cat "$log"
    return 0
}

if [ -n "$soak" ]; then
    machines 14400 -p -- soak
    finish
fi
if [ -z "$repetitions" ]; then
    machines 900 -1 -- contract
    machines 600 -- pair decode 'form imm' spare bench 'kill window 1' 'stop verify 0'
    machines 900 -p -x 1 -- pair decode 'form tcp' differ preflight 'loss 2' 'kill window 0' 'down eth0 1' 'down eth1 0' \
        'down eth1 0 idle' 'die 1'
    finish
fi

cases=()
for ((i = 0; i < repetitions; i++)); do
    for victim in 0 1; do
        for phase in start idle prefill verify window shutdown; do
            cases+=("kill $phase $victim" "stop $phase $victim")
        done
    done
done
machines 7200 -- "${cases[@]}"
machines 7200 -p -- 'odd mtu' 'odd address' "${cases[@]}"
for ((i = 0; i < repetitions; i++)); do
    for victim in 0 1; do
        machines 900 -p -x "$victim" -- "down eth0 $victim" "down eth1 $victim" "down eth1 $victim idle" "die $victim"
    done
done
finish
