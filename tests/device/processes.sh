#!/bin/sh
# processes.sh TANDEM - ranks that are processes sharing one device: the device takes turns between them, and what one
# waits for comes from the other through memory of the host, or of the device. Exits with 77 where there is no device.
#
#   their text is that of two ranks in one process, over shared memory, TCP and device memory, eager and captured
#   a rank whose n-gram rows are lost while their window runs ends both: nothing of that window is text
#   a rank that is killed ends the other within seconds, out of a kernel that waits for it
set -u

tandem=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

"$tandem" config --set backend=cuda >/dev/null 2>&1 || exit 77
head -c 32 /dev/urandom >"$work/secret" && chmod 600 "$work/secret"

# ask FILE OPTION...
ask() {
    file=$1
    shift
    ${program:-"$tandem"} generate --set model=models/pocket-dsv41 --set "cache=$work/cache" --set backend=cuda --set device=0 \
        --set ranks=2 --set depth=4 --set log_level=warn --prompt 'Once upon a time there was a king' --json "$@" \
        >"$file" 2>>"$work/log"
}

# pair FILE LINK OPTION...: rank 0's answer in FILE, its exit code; $other is rank 1
pair() {
    out=$1 link=$2
    shift 2
    port=$((20000 + ($$ + (n = n + 1) * 7) % 20000))
    program=${faulty:-} ask "$work/other" --set "link=$link" --set rank=1 --set "port=$port" --set "secret=$work/secret" "$@" &
    other=$!
    ask "$out" --set "link=$link" --set rank=0 --set "port=$port" --set "secret=$work/secret" "$@"
}
n=0

ids() { sed -n 's/.*"ids":\(\[[^]]*\]\).*/\1/p' "$1"; }

ask "$work/want" --set link=loop --max-tokens 24 || { cat "$work/log"; echo "FAILED: two ranks in one process"; exit 1; }
for way in 'shm link' 'tcp link' 'shm peer'; do
    link=${way% *} comm=${way#* }
    for graphs in off on; do
        begin=$(date +%s.%N)
        pair "$work/got" $link --max-tokens 24 --set graphs=$graphs --set comm=$comm
        rc=$?
        wait $other
        if [ $rc -ne 0 ] || [ -z "$(ids "$work/got")" ] || [ "$(ids "$work/got")" != "$(ids "$work/want")" ]; then
            echo "FAILED: $link, comm $comm, graphs $graphs: exit $rc, $(ids "$work/got"), want $(ids "$work/want")"
            failed=1
        else
            echo "passed: $link, comm $comm, graphs $graphs: 24 tokens in $(echo "$(date +%s.%N) $begin" | awk '{ printf "%.1f", $1 - $2 }') s"
        fi
    done
done

# tandem_held lies beside tandem where pack_here has packed both
held=$(dirname "$tandem")/tandem_held
for comm in link peer; do
    if [ ! -x "$held" ]; then
        echo "left out: no tandem_held for lost rows"
        break
    fi
    faulty="$held lost@window:4"
    pair "$work/got" shm --max-tokens 24 --set comm=$comm
    rc=$?
    wait $other
    rc="$rc $?"
    faulty=
    said=$(ids "$work/got" | tr -d '[]')
    if [ "$rc" = '70 70' ] && grep -q 'round 3: window: row store: held: the rows of ticket 0 are lost' "$work/got" &&
        case "$(ids "$work/want" | tr -d '[]')" in "$said",*) true ;; *) false ;; esac; then
        echo "passed: comm $comm, lost n-gram rows on rank 1: both ranks left with 70, $(echo "$said" | tr , '\n' | wc -l) tokens before"
    else
        echo "FAILED: comm $comm, lost n-gram rows on rank 1: exits $rc, $(cut -c1-300 "$work/got")"
        failed=1
    fi
done

# The other rank dies in the middle of a long reply.
(sleep 6 && kill -9 "$(cat "$work/victim")" && date +%s.%N >"$work/died") &
killer=$!
port=$((20000 + ($$ + 777) % 20000))
"$tandem" generate --set model=models/pocket-dsv41 --set "cache=$work/cache" --set backend=cuda --set device=0 \
    --set ranks=2 --set log_level=err --set link=shm --set rank=1 --set "port=$port" --set "secret=$work/secret" \
    --set depth=4 --set ignore_eos=on --prompt x >/dev/null 2>&1 &
echo $! >"$work/victim"
ask "$work/got" --set link=shm --set rank=0 --set "port=$port" --set "secret=$work/secret" --max-tokens 4000 \
    --set ignore_eos=on --set log_level=err
rc=$?
end=$(date +%s.%N)
wait $killer
took=$(awk "BEGIN { printf \"%.2f\", $end - $(cat "$work/died" 2>/dev/null || echo 0) }")
if [ $rc -eq 70 ] && awk "BEGIN { exit !($took < 4) }"; then
    echo "passed: rank 1 was killed, rank 0 left with 70 after $took s"
else
    echo "FAILED: rank 1 was killed, rank 0 left with $rc after $took s"
    failed=1
fi
[ $failed -eq 0 ] || tail -n 20 "$work/log"
exit $failed
