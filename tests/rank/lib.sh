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

# What this test's processes have just said: their last lines. Of the first failures alone, which are the causes of others,
# and a log shows only its end.
show_errors()
{
    local f

    [ "$failures" -le 3 ] || return
    for f in $(find "$WORK" -maxdepth 1 -name 'err*' -size +0 -mmin -1 | sort); do
        printf '  %s:\n' "${f##*/}"
        tail -n 12 "$f" | cut -c 1-400 | sed 's/^/    /'
    done
}

note_failure()
{
    failures=$((failures + 1))
    printf 'FAILED: %s\n' "$*"
    show_errors
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
    elif [ -n "$pattern" ] && ! grep -q -e "$pattern" "$WORK/err"; then
        note_failure "no line with \"$pattern\": $*"
    elif [ "$code" -ne 0 ] && [ "$(grep -c 'error: ' "$WORK/err")" -ne 1 ]; then
        note_failure "want one error line: $*"
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

# free_port - a port of the loopback that nobody listens on, and no test that runs at the same time has taken.
PORTS=${TMPDIR:-/tmp}/tandem-ports-$(id -u)
mkdir -p "$PORTS"
free_port()
{
    local port owner

    for _ in $(seq 100); do
        port=$((20000 + (RANDOM * 7 + $$) % 12000))
        if read -r owner 2>/dev/null <"$PORTS/$port"; then
            alive "$owner" && continue
            rm -f "$PORTS/$port"
        fi
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue
        (set -C && echo $$ >"$PORTS/$port") 2>/dev/null || continue
        echo "$port"
        return
    done
}

secret_file()
{
    (umask 077 && head -c 32 /dev/urandom >"$1")
}

alive() { kill -0 "$1" 2>/dev/null && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null; }

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

# comes PID TENTHS COMMAND... - the same of something that the process does: not when it has ended without it
comes()
{
    local pid=$1 n=$2

    shift 2
    while [ "$n" -gt 0 ] && alive "$pid"; do
        "$@" && return
        n=$((n - 1))
        sleep 0.1
    done
    "$@"
}

# crash NAME CODE PID... - a signal of its own has ended a rank: that is what there is to say, and the others are ended
crash()
{
    case $2 in
    132 | 134 | 135 | 136 | 139)
        note_failure "$1: ended by SIG$(kill -l "$2")"
        shift 2
        kill -KILL "$@" 2>/dev/null
        wait "$@" 2>/dev/null
        finish
        ;;
    esac
}

finish()
{
    grep -lsx $$ "$PORTS"/* | xargs -r rm -f
    printf '%d checks, %d failed\n' "$checks" "$failures"
    [ "$failures" -eq 0 ] || exit 1
    rm -rf "$WORK"
    exit 0
}
