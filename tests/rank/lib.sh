# lib.sh - what the shell tests share. Sourced with the arguments of the test: the program, the checkout, a scratch folder.

TANDEM=$1
ROOT=$2
WORK=$3/$(basename "$0" .sh)
MODEL=$ROOT/models/pocket-dsv41
failures=0
checks=0

rm -rf "$WORK"
mkdir -p "$WORK" || exit 1

# Packs are made once for all tests.
BASE=(--set "model=$MODEL" --set "cache=$3/cache")

note_failure()
{
    failures=$((failures + 1))
    printf 'FAILED: %s\n' "$*"
}

# expect CODE PATTERN COMMAND... - run a command; its exit code and a pattern that standard error must have ('' for any).
expect()
{
    local code=$1 pattern=$2 got

    shift 2
    checks=$((checks + 1))
    "$@" >"$WORK/out" 2>"$WORK/err"
    got=$?
    if [ "$got" -ne "$code" ]; then
        note_failure "exit $got, want $code: $*"
        sed 's/^/    /' "$WORK/err"
    elif [ -n "$pattern" ] && ! grep -q -e "$pattern" "$WORK/err"; then
        note_failure "no line with \"$pattern\": $*"
        sed 's/^/    /' "$WORK/err"
    elif [ "$code" -ne 0 ] && [ "$(grep -c 'error: ' "$WORK/err")" -ne 1 ]; then
        note_failure "want one error line: $*"
        sed 's/^/    /' "$WORK/err"
    fi
}

# same WHAT A B
same()
{
    checks=$((checks + 1))
    [ "$2" = "$3" ] || note_failure "$1: \"$2\" against \"$3\""
}

# field NAME FILE - a member of the JSON object in a file: a number, a string or an array as it stands there.
field()
{
    sed -n "s/.*\"$1\":\(\[[^]]*\]\|\"[^\"]*\"\|[^,}]*\).*/\1/p" "$2"
}

# free_port - a port of the loopback that nobody listens on; tests that run at the same time try different ones.
free_port()
{
    local port

    for _ in $(seq 100); do
        port=$((20000 + (RANDOM * 7 + $$) % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || {
            echo "$port"
            return
        }
    done
}

secret_file()
{
    (umask 077 && head -c 32 /dev/urandom >"$1")
}

# until_true TENTHS COMMAND... - try again until it succeeds
until_true()
{
    local n=$1

    shift
    while ! "$@"; do
        [ "$n" -gt 0 ] || return 1
        n=$((n - 1))
        sleep 0.1
    done
}

finish()
{
    printf '%d checks, %d failed\n' "$checks" "$failures"
    [ "$failures" -eq 0 ] || exit 1
    rm -rf "$WORK"
    exit 0
}
