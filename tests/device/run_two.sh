#!/bin/sh
# run_two.sh OUT FOLDER - two devices of one machine: everything that one model over both has to hold, and what it costs.
#
# Run from the root of the tree. FOLDER is what run.sh pack_here made. Parts have a limit each and there is one for all of
# them, SECONDS_ALL (530): what does not fit is left out and counts as failed. Nothing of the machine's settings is
# changed, and NVLink multicast stays off. With ONE=1 both ranks share device 0: for trying the script out.
#
#   exchange   every comm, eager and captured, and what a sum takes by size (exchange.json), and whether that is the aim
#   gates      G1 .. G13 with a rank a device: threads over device memory; processes over each comm
#   text       ids of the comms against each other and against the reference's
#   full       a made-up model of the full size, half of it on each device: costs by rows, round logs of both (full/)
#   bench      speeds of three kinds of text, every reply replayed serially (bench.json)
#   kill       kill_devices.sh over device memory, 24 kinds of case ten times each (kills.json); kill_others the same over the
#              other comms once, if there is time
set -u

out=${1:?folder for logs}
folder=$(realpath "${2:?folder with the programs}")
here=$(dirname "$0")
. "$here/lib.sh"
tandem=$folder/tandem
CACHE=${CACHE:-$(mktemp -d)}
NCCL_NVLS_ENABLE=0
LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# where PyTorch brings NCCL, that one is found
for lib in $(python_libraries nccl); do
    LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$lib
done
export NCCL_NVLS_ENABLE LD_LIBRARY_PATH CACHE
comms="peer link nccl"
devices= place=
[ -z "${ONE:-}" ] || { comms="peer link" place="--set device=0"; }
[ -n "${ONE:-}" ] || devices=-d

look()
{
    nvidia-smi --query-gpu=index,name,memory.total,memory.used,driver_version --format=csv
    nvidia-smi topo -m
    nvidia-smi nvlink --status -i 0 | head -n 4
    find $(echo "$LD_LIBRARY_PATH" | tr ':' ' ') -maxdepth 1 -name 'libnccl.so*' 2>/dev/null
    ldconfig -p | grep nccl
    free -g | head -n 2
}

pocket="--set model=models/pocket-dsv41 --set cache=$CACHE --set backend=cuda $place"

# gate_apart COMM - the gates, every rank a process
gate_apart()
{
    # shellcheck disable=SC2086
    ranks "$out/gate_$1" "$tandem" gate $pocket --set link=shm --set "comm=$1" --prompts configs/gate ${2:+--only $2}
    code=$?
    cat "$out/gate_$1"
    [ $code -eq 0 ] || tail -n 5 "$out/gate_$1.log"
    return $code
}

# text - the same request over every comm, and by one rank of the reference
text()
{
    bad=0
    for graphs in on off; do
        for comm in $comms; do
            # shellcheck disable=SC2086
            ranks "$out/text_$comm" "$tandem" generate $pocket --set link=shm --set "comm=$comm" --set graphs=$graphs \
                --set depth=4 --max-tokens 48 --prompt 'Once upon a time there was a king' --json --set "log=$out/text_log" ||
                { bad=1 && tail -n 3 "$out/text_$comm.log"; }
            replayed=$(grep -c '"mode":"replay"' "$out/text_log/rank0.jsonl" 2>/dev/null)
            replayed=${replayed:-0}
            got=$(ids "$out/text_$comm")
            first=${first:-$got}
            echo "comm $comm, graphs $graphs: $replayed rounds replayed, $(echo "$got" | cut -c1-60)"
            [ $graphs = off ] || [ "$replayed" -gt 0 ] || { bad=1 && echo "FAILED: nothing was replayed"; }
            [ -n "$got" ] && [ "$got" = "$first" ] || { bad=1 && echo "FAILED: another text, or none"; }
        done
    done
    "$tandem" generate --set model=models/pocket-dsv41 --set "cache=$CACHE" --set backend=cpu --set ranks=2 --set draft=none \
        --max-tokens 48 --prompt 'Once upon a time there was a king' --json --logprobs 3 >"$out/text_cpu" 2>>"$out/text.log" ||
        { bad=1 && echo "FAILED: no text of the reference's arithmetic"; }
    python3 "$here/judge_text.py" "$first" "$out/text_cpu" || bad=1
    return $bad
}

# aim - a sum of one row over device memory takes at most 4 us and a third of NCCL's
aim()
{
    sed -n 's/.*"exchange": "\([^"]*\)".*"rows": 1,.*"p50_us": \([0-9.]*\).*/\2 \1/p' "$out/exchange.json" |
        awk '/comm_peer/ { peer = $1 } /own sum/ { nccl = $1 }
            END { print peer " us, NCCL " nccl; exit !(peer > 0 && peer <= 4 && 3 * peer <= nccl) }'
}

# full - the shapes of the real model: twice the experts of the made-up rank, half their width on each device
full_generate()
{
    model=$out/full_model
    mkdir -p "$model" "$out/full"
    sed 's/"n_routed_experts": 192/"n_routed_experts": 384/' models/synth-dsv41/config.json >"$model/config.json"
    # shellcheck disable=SC2086
    ranks "$out/full/$1" "$tandem" generate --set "model=synth+exl3-v41:$model" --set "cache=$CACHE" --set backend=cuda \
        $place --set link=shm --set comm=peer --set context=1024 --set slots=1 --set depth=auto --set ignore_eos=on \
        --prompt 'Once upon a time there was a king' --json --max-tokens "$2" --set "log=$3"
}

# A reply that the context has no room for: refused, but the packs are made.
packs() { full_generate packs 5000 "" || true; }

full()
{
    rm -f "$CACHE"/costs*.json # measured beside others, when the packs were made
    full_generate reply 80 "$out/full"
    code=$?
    tail -n 6 "$out/full/reply.log"
    # shellcheck disable=SC2012
    costs=$(ls -t "$CACHE"/costs*.json | head -n 1)
    cp "$costs" "$out/full/costs.json" && cat "$out/full/costs.json"
    "$tandem" report "$out"/full/rank*.jsonl --out "$out/full/report.html" || code=1
    rm -f "$out/full/report.html"
    return $code
}

bench()
{
    # shellcheck disable=SC2086
    ranks "$out/bench.json" "$tandem" bench $pocket --set link=shm --set comm=peer --max-tokens 64 --json
    code=$?
    tr '{' '\n' <"$out/bench.json" | cut -c1-190 | tail -n 24
    [ $code -eq 0 ] || tail -n 5 "$out/bench.json.log"
    return $code
}

# A part is a program: this script again, with the name of a function.
if [ "${3:-}" = do ]; then
    shift 3
    "$@"
    exit
fi

begin_logs
DEADLINE=$(($(date +%s) + ${SECONDS_ALL:-530}))
self="sh $0 $out $folder do"
# shellcheck disable=SC2086
{
    TAIL=40 part 20 look $self look
    TAIL=30 part 60 exchange "$folder/device_tests" exchange $devices
    TAIL=8 part 40 exchanges "$folder/device_tests" exchanges $devices "$out/exchange.json"
    [ -n "${ONE:-}" ] || part 5 aim $self aim
    (TAIL=2 && part 100 packs $self packs) & # while others run that measure nothing
    TAIL=20 part 60 text $self text
    TAIL=16 part 60 gates_threads "$tandem" gate $pocket --prompts configs/gate
    for comm in $comms; do
        TAIL=16 part 50 gates_$comm $self gate_apart $comm
    done
    wait
    TAIL=60 part 90 full $self full
    TAIL=26 part 60 bench $self bench
    left=$((DEADLINE - $(date +%s) - 15))
    [ $left -lt 180 ] || left=180
    TAIL=30 part $((left + 15)) kill env WHOLE=1 COMMS=peer bash "$here/kill_devices.sh" "$folder" "$out/kill" $left 10 \
        "${AT_ONCE:-3}" ${ONE:+0}
    cp "$out/kill/kills.json" "$out/kills.json" 2>/dev/null
    left=$((DEADLINE - $(date +%s) - 10))
    [ $left -lt 30 ] || TAIL=54 part $left kill_others env COMMS="${comms#peer }" bash "$here/kill_devices.sh" "$folder" \
        "$out/kill" $((left - 10)) 1 4 ${ONE:+0}
}
rm -rf "$out/kill"
# with two devices nothing has a reason to skip
[ -n "${ONE:-}" ] || sed -i 's/"exit": 77/"exit": 1/' "$out/summary.json"
end_logs
