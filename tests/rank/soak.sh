#!/usr/bin/env bash
# soak.sh [ROUNDS [LINK]] - two ranks over a link for many rounds (20000 over tcp): every reply is the first one again,
# neither rank grows, nothing is left behind. Takes as long as the rounds do.

set -u
root=$(dirname "$(dirname "$(dirname "$(realpath "$0")")")")
rounds=${1-20000}
link=${2-tcp}
set -- "$root/build/src/rank/tandem" "$root" "$root/build/tests/rank" "$root/build"
# shellcheck source=tests/rank/lib.sh
. "$(dirname "$(realpath "$0")")/lib.sh"

TOKENS=1500           # of a reply; about 700 rounds
GROWTH_MOST_KB=8192   # from the first replies to the last
jobs=$((rounds / 600 + 2))
for ((i = 0; i < jobs; i++)); do
    echo "{\"prompt\":\"Once upon a time\",\"max_tokens\":$TOKENS,\"temperature\":0.8,\"seed\":7}"
done >"$WORK/jobs"
secret_file "$WORK/secret"
port=$(free_port)
pid=(0 0)
for r in 0 1; do
    "$TANDEM" generate "${BASE[@]}" --set ranks=2 --set "rank=$r" --set "link=$link" --set "port=$port" --set slots=1 \
        --set "secret=$WORK/secret" --set threads=1 --set depth=2 --set ignore_eos=on --jobs "$WORK/jobs" --json \
        >"$WORK/out$r" 2>"$WORK/err$r" &
    pid[r]=$!
done

kb() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status" 2>/dev/null; }
open_files() { find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l; }
first=()
while [ "$(wc -l <"$WORK/out0")" -lt 2 ] && kill -0 "${pid[0]}" 2>/dev/null; do sleep 1; done
for r in 0 1; do first[r]="$(kb "${pid[r]}") $(open_files "${pid[r]}")"; done
last=("${first[@]}")
while kill -0 "${pid[0]}" 2>/dev/null && kill -0 "${pid[1]}" 2>/dev/null; do
    for r in 0 1; do
        now="$(kb "${pid[r]}") $(open_files "${pid[r]}")"
        [ "${now% *}" = '' ] || [ "${now#* }" = 0 ] || last[r]=$now
    done
    sleep 1
done
for r in 0 1; do
    wait "${pid[r]}"
    same "rank $r ends well" 0 $?
    grown=$((${last[r]% *} - ${first[r]% *}))
    same "rank $r has not grown" yes "$([ $grown -le $GROWTH_MOST_KB ] && echo yes || echo "$grown kB")"
    same "descriptors of rank $r" "${first[r]#* }" "${last[r]#* }"
    echo "rank $r: ${first[r]% *} kB after two replies, ${last[r]% *} kB at the end"
done
same 'every reply is the first one' 1 "$(sed 's/.*"ids":\(\[[^]]*\]\).*/\1/' "$WORK/out0" | sort -u | wc -l)"
done_rounds=$(sed -n 's/^r0 rounds: \([0-9]*\),.*/\1/p' "$WORK/err0")
[ "${done_rounds:-0}" -ge "$rounds" ] || cat "$WORK/err0"
same "at least as many rounds" yes "$([ "${done_rounds:-0}" -lt "$rounds" ] || echo yes)"
echo "$done_rounds rounds over $link, $(wc -l <"$WORK/out0") replies"
finish
