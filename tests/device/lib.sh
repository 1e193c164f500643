# lib.sh - what the scripts that run on a device share. Sourced; $out is the folder for logs.

say() { echo "$*" | tee -a "$out/run.log"; }

# begin_logs - empty ones
begin_logs()
{
    mkdir -p "$out"
    : >"$out/run.log" && : >"$out/all.log" && : >"$out/summary.json"
}

# python_libraries NAME - the folders of NVIDIA's libraries that packages of this python3 bring; "*": all of them
python_libraries()
{
    site=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null) || return 0
    for lib in "$site"/nvidia/$1/lib; do
        [ ! -d "$lib" ] || echo "$lib"
    done
}

# part LIMIT NAME COMMAND...: log, time and exit code of one step; its last $TAIL lines are shown. Parts may run beside each
# other. DEADLINE, in seconds since the epoch, cuts limits short; a part without time is left out, and has failed.
part()
{
    limit=$1 name=$2
    shift 2
    case " ${PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
    left=$((${DEADLINE:-$(date +%s) + limit} - $(date +%s)))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        say "$name: left out, there is no time for it"
        echo "{\"part\": \"$name\", \"exit\": 124, \"seconds\": 0}" >>"$out/summary.json"
        return
    fi
    start=$(date +%s.%N)
    timeout -k 5 "$limit" "$@" >"$out/part.$name" 2>&1
    rc=$?
    seconds=$(echo "$(date +%s.%N) $start" | awk '{ printf "%.1f", $1 - $2 }')
    {
        echo "==== $name: $*"
        cat "$out/part.$name"
        echo "==== $name: exit $rc after $seconds s"
    } >>"$out/all.log"
    {
        grep -v '^r[0-9]* [^o]' "$out/part.$name" | tail -n "${TAIL:-12}" | cut -c1-200 | sed "s/^/    /"
        echo "$name: exit $rc after $seconds s"
        [ $rc -ne 77 ] || grep skipped "$out/part.$name" | head -n 1
    } | tee -a "$out/run.log"
    echo "{\"part\": \"$name\", \"exit\": $rc, \"seconds\": $seconds}" >>"$out/summary.json"
    rm -f "$out/part.$name"
}

# end_logs - the verdict, and its code
end_logs()
{
    failed=$(sed -n 's/.*"part": "\([^"]*\)", "exit": \([0-9]*\),.*/\1 \2/p' "$out/summary.json" |
        awk '$2 != 0 && $2 != 77 { printf " %s", $1 }')
    say "device: ${failed:+FAILED:}${failed:-all parts passed}"
    [ -z "$failed" ]
}

# ranks FILE PROGRAM COMMAND OPTION...: two ranks as processes on a free port; rank 0's output in FILE, rank 1's in
# FILE.1, messages of both in FILE.log. The code is the first that is not 0.
ranks()
{
    file=$1 program=$2 command=$3
    shift 3
    ports=$((${ports:-0} + 1))
    port=$((20000 + ($$ * 13 + ports * 7) % 20000))
    [ -f "$out/secret" ] || (umask 077 && head -c 32 /dev/urandom >"$out/secret")
    set -- "$command" --set ranks=2 --set "port=$port" --set "secret=$out/secret" "$@"
    "$program" "$@" --set rank=1 >"$file.1" 2>"$file.log" &
    other=$!
    "$program" "$@" --set rank=0 >"$file" 2>>"$file.log"
    code=$?
    wait $other || [ $code -ne 0 ] || code=1
    return $code
}

# ids FILE - of a reply as JSON
ids() { sed -n 's/.*"ids":\(\[[^]]*\]\).*/\1/p' "$1"; }
