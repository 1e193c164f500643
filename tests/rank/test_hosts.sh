#!/usr/bin/env bash
# test_hosts.sh - launch.sh across two machines: two network namespaces with an sshd in one of them.

set -u
# shellcheck source=tests/rank/lib.sh
. "$(dirname "$0")/lib.sh"

skip()
{
    echo "skipped: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip 'network namespaces need root'
for tool in ip sshd ssh ssh-keygen setpriv; do
    PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || skip "$tool is not installed"
done
A=tandem-a-$$
B=tandem-b-$$
server=
clean()
{
    [ -z "$server" ] || kill "$server" 2>/dev/null
    ip netns del "$A" 2>/dev/null
    ip netns del "$B" 2>/dev/null
}
trap clean EXIT
{ ip netns add $A && ip netns add $B; } 2>"$WORK/err" || skip "no network namespaces here: $(cat "$WORK/err")"
ip link add ta$$ netns $A type veth peer name tb$$ netns $B 2>"$WORK/err" || skip "no virtual cable here: $(cat "$WORK/err")"
ip -n $A addr add 192.0.2.1/24 dev ta$$
ip -n $B addr add 192.0.2.2/24 dev tb$$
for n in "$A ta$$" "$B tb$$"; do
    # shellcheck disable=SC2086 # two words
    set -- $n "$@"
    ip -n "$1" link set lo up
    ip -n "$1" link set "$2" up
    shift 2
done

ssh-keygen -q -t ed25519 -N '' -f "$WORK/host" && ssh-keygen -q -t ed25519 -N '' -f "$WORK/user"
mkdir -p "$WORK/home0" "$WORK/home1" /run/sshd
cat >"$WORK/sshd" <<EOT
ListenAddress 192.0.2.2
Port 22
HostKey $WORK/host
AuthorizedKeysFile $WORK/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
PidFile none
Banner $WORK/banner
SetEnv HOME=$WORK/home1
EOT
echo 'What ssh says by itself is no run: 1 2 3' >"$WORK/banner"
cat >"$WORK/ssh" <<EOT
IdentityFile $WORK/user
UserKnownHostsFile $WORK/known
GlobalKnownHostsFile /dev/null
EOT
ip netns exec $B "$(PATH=$PATH:/usr/sbin command -v sshd)" -D -e -f "$WORK/sshd" 2>"$WORK/sshd.log" &
server=$!

secret_file "$WORK/secret"
cat >"$WORK/pair.conf" <<EOT
ranks = 2
link = tcp
hosts = 192.0.2.1, 192.0.2.2
port = 18515
model = $MODEL
cache = $3/cache
secret = $WORK/secret
threads = 1
depth = 2
connect_timeout_ms = 20s
pin = off
EOT

BUILD=$4
launch() # launch WORD... - on the machine of rank 0
{
    ip netns exec $A env HOME="$WORK/home0" TANDEM_BUILD="$BUILD" "$ROOT/launch.sh" --ssh "ssh -F $WORK/ssh" \
        --config "${conf:-$WORK/pair.conf}" "$@"
}
notes() { find "$WORK"/home?/.local/state/tandem -name '*.[0-9]' 2>/dev/null; }
left() { pgrep -f "config $WORK/" >/dev/null; }
# said PATTERN FILE - yes, or what is in it instead
said() { if grep -q "$1" "$2"; then echo yes; else cat "$2"; fi; }
# ended TENTHS - yes, or what runs in spite of it
ended() { if until_true "$1" gone; then echo yes; else pgrep -af "config $WORK/"; fi; }
ASK=(generate --json --prompt 'Once upon a time' --temperature 0)

# ---- a machine that nobody knows is not talked to --------------------------------------------------------------------

until_true 50 grep -q 'Server listening' "$WORK/sshd.log" || skip "sshd does not listen: $(cat "$WORK/sshd.log")"
expect 69 'no way to 192.0.2.2: Host key verification failed' launch "${ASK[@]}"
printf '192.0.2.2 %s\n' "$(cut -d' ' -f1,2 "$WORK/host.pub")" >"$WORK/known"
checks=$((checks + 1))
launch status >"$WORK/out" 2>"$WORK/err" || skip "no login: $(cat "$WORK/sshd.log" "$WORK/err")"

# ---- both ranks from one machine --------------------------------------------------------------------------------------

"$TANDEM" "${ASK[@]}" "${BASE[@]}" --set depth=2 --set ranks=2 --set link=loop --max-tokens 12 >"$WORK/loop" 2>/dev/null
expect 0 '^r1 ' launch "${ASK[@]}" --max-tokens 12
same 'text over two machines' "$(field ids "$WORK/loop")" "$(field ids "$WORK/out")"
same 'nothing is left' '' "$(notes)"
# both machines are one here, so that elsewhere in this test nobody is placed
launch --set pin=auto --set log_level=debug "${ASK[@]}" --max-tokens 4 >"$WORK/out" 2>"$WORK/err"
same 'a rank that is alone on its machine is placed, or there is one core' 2 \
    "$(grep -c '^r[01] pin: round on core\|^r[01] pin: .* leave no core' "$WORK/err")"
launch --dry-run "${ASK[@]}" >"$WORK/out" 2>"$WORK/err"
same 'a dry run names both' 'here: |192.0.2.2: |' "$(sed -n 's/^\([^ ]*: \).*rank=[01] $/\1/p' "$WORK/out" | tr '\n' '|')"

# ---- what differs is said before anything loads ------------------------------------------------------------------------

mkdir -p "$WORK/root1"
conf=$WORK/moved.conf
{ echo "#launch 1 root=$WORK/root1" && cat "$WORK/pair.conf"; } >"$conf"
expect 78 "192.0.2.2 has no" launch "${ASK[@]}"
(cd "$WORK/root1" && ln -s "$ROOT"/* . && rm -rf build src && mkdir -p "$(dirname "${TANDEM#"$ROOT"/}")")
case $TANDEM in
"$ROOT"/*)
    echo other >"$WORK/root1/${TANDEM#"$ROOT"/}"
    expect 78 'differs on 192.0.2.2' launch "${ASK[@]}"
    ;;
esac
conf=

# ---- preflight ------------------------------------------------------------------------------------------------------------

launch preflight >"$WORK/out" 2>"$WORK/err"
same 'preflight of a pair that fits' 0 $?
same 'its verdict' yes "$(said '^fit' "$WORK/out")"
same 'the largest message went both ways' yes "$(said '^ok   meet  *| 262144 bytes each way over tcp.*| 262144 bytes' "$WORK/out")"
conf=$WORK/pair2.conf
{ echo "#launch 1 depth=3" && cat "$WORK/pair.conf"; } >"$conf"
launch preflight >"$WORK/out" 2>"$WORK/err"
same 'preflight of one that does not' 1 $?
same 'the line that must change' yes \
    "$(said 'not fit: setting depth differs: 2 on rank 0, 3 on rank 1' "$WORK/out")"
launch "${ASK[@]}" >"$WORK/out" 2>"$WORK/err"
same 'ranks that differ refuse each other' 78 $?
same 'by name' yes "$(said 'config differs: depth is 2 here, 3 on rank 1' "$WORK/err")"
conf=

# ---- endings ----------------------------------------------------------------------------------------------------------------

# nothing_runs - as launch.sh sees it, which looks at the processes of a run on both machines
nothing_runs() { ! launch status 2>&1 | grep -q 'rank [01] of run .* is process'; }

# begin - a long answer under way on both machines, when the last one has gone
begin()
{
    until_true 20 nothing_runs || note_failure 'the last run has not gone'
    rm -f "$WORK/err" # of the last one
    touch "$WORK/err"
    launch "${ASK[@]}" --set ignore_eos=on --max-tokens 6000 >"$WORK/out" 2>"$WORK/err" &
    group=$!
    comes $group 150 grep -q 'r1 .*world of 2 is complete' "$WORK/err" || note_failure 'no group'
    sleep 1
}
rank_of() { pgrep -f -- "^[^ ]*tandem generate .*config $WORK/.*--set rank=$1"; }
gone() { ! left; }

begin
launch status >"$WORK/status" 2>&1
same 'status finds both ranks' 2 "$(grep -c 'rank [01] of run .* is process' "$WORK/status")"
pkill -o -TERM -f "^bash .*launch.sh --ssh ssh -F $WORK/ssh .*6000"
wait $group
same 'TERM drains both' 0 $?
same 'nothing is left after TERM' yes "$(ended 30)"

begin
kill -KILL "$(rank_of 1)"
wait $group
same 'rank 1 is killed over there' yes "$(case $? in 70 | 137) echo yes ;; esac)"
same 'and said' yes "$(said 'r0 error: group: .*rank 1 is gone' "$WORK/err")"

begin
pkill -o -KILL -f "^bash .*launch.sh --ssh ssh -F $WORK/ssh .*6000"
wait $group 2>/dev/null
same 'launch.sh is killed: both ranks end' yes "$(ended 60)"

begin
launch stop >"$WORK/stop" 2>&1
wait $group
same 'stop ends both' yes "$(ended 60)"
same 'stop says what it ended' yes "$(said 'ending rank [01] of run' "$WORK/stop")"
launch logs >"$WORK/logs" 2>&1
same 'the last lines of rank 1 are kept' yes "$(said '192.0.2.2: r1 ' "$WORK/logs")"

finish
