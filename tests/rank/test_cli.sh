#!/usr/bin/env bash
# test_cli.sh - exit codes and one clear line for everything that can be wrong from outside; output formats.

set -u
. "$(dirname "$0")/lib.sh"

G=("$TANDEM" generate "${BASE[@]}")
TCP=(--set ranks=2 --set link=tcp)

# ---- the command line ---------------------------------------------------------------------------------

expect 0 '' "$TANDEM" --version
expect 0 '' "$TANDEM" --help
expect 64 'no command; tandem --help' "$TANDEM"
expect 64 'command "speak" is unknown' "$TANDEM" speak
for c in generate score tokenize detokenize pack inspect config demo; do
    expect 0 '' "$TANDEM" $c --help
    expect 64 'option --bogus' "$TANDEM" $c --bogus
done
expect 64 'wants one of --prompt' "${G[@]}"
expect 64 'wants one of --prompt' "$TANDEM" score "${BASE[@]}" --prompt a --ids b
expect 66 'b: open' "${G[@]}" --prompt a --ids b
expect 64 'option --prompt ' "${G[@]}" --prompt
expect 64 'wants 0 arguments besides options, got 1, "b" (a text with blanks' "${G[@]}" --prompt a b
expect 64 'wants 0 arguments besides options, got 1, "slots";' "$TANDEM" config slots
expect 64 '--prompts wants --against' "$TANDEM" score "${BASE[@]}" --prompts "$ROOT/configs/demo"
expect 65 "$WORK: a folder; packs are" "$TANDEM" inspect "$WORK"
expect 64 'max-tokens: want a whole number' "${G[@]}" --prompt a --max-tokens many
expect 64 'max-tokens: want a whole number' "${G[@]}" --prompt a --max-tokens -5
expect 64 'max-tokens: want a whole number' "${G[@]}" --prompt a --max-tokens 99999999999
expect 64 'temperature' "${G[@]}" --prompt a --temperature nan
expect 64 'temperature' "${G[@]}" --prompt a --temperature -1
expect 64 'temperature: want a number' "${G[@]}" --prompt a --temperature warm
expect 64 'top_p' "${G[@]}" --prompt a --top-p 1.5
expect 64 'min_p' "${G[@]}" --prompt a --min-p -0.1
expect 64 'top-k' "${G[@]}" --prompt a --top-k -1
expect 64 'logit_bias nan, want -1000' "${G[@]}" --prompt a --logit-bias 5=nan
expect 64 'logit_bias 1001, want -1000' "${G[@]}" --prompt a --logit-bias 5=1001
expect 64 'token 5 has two biases' "${G[@]}" --prompt a --logit-bias 5=1 --ban 5
expect 65 'biased token 4096, want 0 .. 4095' "${G[@]}" --prompt a --ban 4096
expect 64 'seed' "${G[@]}" --prompt a --seed -1
expect 64 'seed' "${G[@]}" --prompt a --seed 18446744073709551616
expect 64 'stop string is empty' "${G[@]}" --prompt a --stop ''
expect 64 'stop string is not UTF-8' "${G[@]}" --prompt a --stop $'a\xff'
expect 64 'draft' "${G[@]}" --prompt a --draft bogus
expect 64 'wants 2 arguments' "$TANDEM" pack "$MODEL"
expect 64 '' "$TANDEM" pack "$MODEL" "$WORK/p" --ranks 2 --rank 2

# ---- settings -----------------------------------------------------------------------------------------

printf 'ranks = 2\nbogus = 1\n' >"$WORK/bad.conf"
expect 66 'none.conf' "${G[@]}" --prompt a --config "$WORK/none.conf"
expect 78 'bad.conf.*bogus' "${G[@]}" --prompt a --config "$WORK/bad.conf"
expect 78 'bogus' "${G[@]}" --prompt a --set bogus=1
expect 78 'ranks' "${G[@]}" --prompt a --set ranks=0
expect 78 'context' "${G[@]}" --prompt a --set context=long
expect 78 'secret' "${G[@]}" --prompt a "${TCP[@]}"
expect 78 'model is not set; --set model=FOLDER' "$TANDEM" generate --prompt a
expect 78 'draft: the checkpoint has no mtp drafter' "${G[@]}" --prompt a --draft mtp
expect 0 '' "${G[@]}" --prompt a --max-tokens 4 --set experts=whole --set ranks=2
expect 78 'rank is 1' "${G[@]}" --prompt a --set ranks=2 --set rank=1
expect 78 '' "${G[@]}" --prompt a --set ranks=4
expect 78 'pin: want auto, off or two cores' "${G[@]}" --prompt a --set pin=first
expect 78 'pin: this process may not use the cores 0,4095; [0-9]* are allowed' "${G[@]}" --prompt a --set pin=0,4095
expect 78 'pin: .* are the cores of one rank' "${G[@]}" --prompt a --set ranks=2 --set pin=0,4095
expect 69 'comm nccl' "${G[@]}" --prompt a --set comm=nccl
for comm in peer nccl; do # every rank finds it by itself, so the code does not depend on who is first
    "${G[@]}" --prompt a --set comm=$comm --set ranks=2 >"$WORK/out" 2>"$WORK/err"
    same "comm $comm of two ranks: exit code" 69 $?
    same "comm $comm of two ranks: said" yes "$(grep -q "error: config: comm $comm with backend" "$WORK/err" && echo yes)"
done
expect 69 'error: cuda: ' "${G[@]}" --prompt a --set backend=cuda --set device=63 --set cache="$WORK/unasked"
same 'packs for a device that is not there' "$(find "$WORK/unasked" -name '*.pack' 2>/dev/null)" ''
expect 73 '' "${G[@]}" --prompt a --set cache=/dev/null/cache
expect 73 '' "${G[@]}" --prompt a --set log=/dev/null/log
ln -s nowhere "$WORK/nowhere-link"
for folder in /proc/none "$WORK/nowhere-link"; do # nothing is missing there, and nothing can be made
    expect 73 'No such file' "${G[@]}" --prompt a --set "cache=$folder"
    expect 73 'No such file' "${G[@]}" --prompt a --set "log=$folder"
    expect 73 'No such file' "$TANDEM" pack "$MODEL" "$folder"
    expect 73 'No such file' "$TANDEM" convert "$MODEL" "$folder" --to fp8
done

limited() # KiB that a file may have, then a command
{
    (ulimit -f "$1" && shift && exec "$@")
}

expect 73 'File too large' limited 100 "$TANDEM" pack "$MODEL" "$WORK/limited"
expect 73 'File too large' limited 100 "$TANDEM" convert "$MODEL" "$WORK/limited-fp8" --to fp8
same 'what is beyond the limit of files leaves nothing' '' "$(find "$WORK" -path '*/limited*' -type f)"
expect 64 'no key bogus' "$TANDEM" config --get bogus
"$TANDEM" config --set slots=2 --set context=1000 >"$WORK/a.conf"
"$TANDEM" config --config "$WORK/a.conf" >"$WORK/b.conf"
same 'config reads its own output' "$(cat "$WORK/a.conf")" "$(cat "$WORK/b.conf")"
same 'default.conf has every key' "$("$TANDEM" config | sed -n 's/^\([a-z_]*\) =.*/\1/p')" \
    "$(sed -n 's/^#\([a-z_]*\) =.*/\1/p' "$ROOT/configs/default.conf")"
sed 's/^#\([a-z_]* =.*\)/\1/' "$ROOT/configs/default.conf" >"$WORK/default.conf"
same 'default.conf has the defaults' "$("$TANDEM" config)" "$("$TANDEM" config --config "$WORK/default.conf")"
same 'default.conf explains as config does' "$("$TANDEM" config | sed -n 's/^# default: \(.*\)/# (default \1)/; /^# /p')" \
    "$(sed '1,/^$/d; /^# /!d' "$ROOT/configs/default.conf")"
for c in "$ROOT"/configs/*.conf; do
    expect 0 '' "$TANDEM" config --config "$c"
done

# Only commands that run ranks look at what ranks need.
pair_conf=(--config "$ROOT/configs/two-rank-local.conf")
printf '0 1 2\n' >"$WORK/ids"
expect 0 '' "$TANDEM" tokenize "${pair_conf[@]}" "${BASE[@]}" --prompt 'a b'
expect 0 '' "$TANDEM" detokenize "${pair_conf[@]}" "${BASE[@]}" --ids "$WORK/ids"
expect 0 '' "$TANDEM" config "${pair_conf[@]}"
expect 78 'secret' "${G[@]}" "${pair_conf[@]}" --prompt a
expect 0 '' "${G[@]}" "${pair_conf[@]}" --prompt a --get ranks
same 'one setting of a command' 2 "$(cat "$WORK/out")"
launch=(env "TANDEM_BUILD=$4" "$ROOT/launch.sh")
expect 0 '' "${launch[@]}" "${pair_conf[@]}" "${BASE[@]}" tokenize --prompt 'a b'
same 'the launcher prints ids' '0 71 285' "$(cat "$WORK/out")"
for command in status stop; do
    expect 0 'nothing runs' env -u HOME "${launch[@]}" --set ranks=2 --set "port=$(free_port)" $command # as a service has none
done
"${launch[@]}" --ssh false --set ranks=2 --set link=tcp --set hosts=127.0.0.1,192.0.2.77 --set secret=s --set "port=$(free_port)" \
    status >"$WORK/out" 2>"$WORK/err"
same 'a machine that cannot be asked: exit code of status' 69 $?
same 'it is not said that nothing runs there' '' "$(cat "$WORK/err")"
# what rank 0 may want to read
printf '#!/bin/sh\nhead -c 8 >>"%s/eaten"\nexit 255\n' "$WORK" >"$WORK/ssh" && chmod +x "$WORK/ssh"
for command in 'logs' 'status' 'stop' 'preflight' 'generate --ids /dev/stdin'; do
    # shellcheck disable=SC2086 # words
    echo '0 1 2' | "${launch[@]}" --ssh "$WORK/ssh" --set ranks=2 --set link=tcp --set hosts=127.0.0.1,192.0.2.77 "${BASE[@]}" \
        --set secret=s --set "port=$(free_port)" $command >"$WORK/out" 2>"$WORK/err"
    same "$command: ssh gets nothing of standard input" 'yes 0' \
        "$([ -e "$WORK/eaten" ] && echo yes) $(wc -c <"$WORK/eaten")"
    rm -f "$WORK/eaten"
done
expect 64 'not --sanitize again' "$ROOT/check.sh" --sanitize again
{ echo '#launch 1 depth=3' && cat "${pair_conf[1]}"; } >"$WORK/launch.conf"
for option in '--config ' --config=; do
    # shellcheck disable=SC2086 # two words or one
    (cd "$WORK" && "${launch[@]}" ${option}launch.conf --dry-run generate --prompt a) >"$WORK/out"
    same "$option: settings of rank 1" 1 "$(grep -c "config $WORK/launch.conf .* --set depth=3 --set rank=1" "$WORK/out")"
done
for case in 'bench ranks=1' 'bench link=loop' 'preflight link=loop' 'tokenize ranks=1'; do
    expect 0 '' "${launch[@]}" --dry-run --set ranks=2 --set "${case#* }" "${case% *}"
    same "a dry run of $case" yes "$(grep -q '^here: ' "$WORK/out" && ! grep -qv '^here: ' "$WORK/out" && echo yes)"
done
expect 64 'stop starts none' "${launch[@]}" --dry-run stop
expect 0 '' "${launch[@]}" --help
same "help of the launcher's options, then of commands" '--dry-run usage:' "$(grep -o -e '--dry-run' -e '^usage:' "$WORK/out" | xargs)"
for command in 'generate --prompt a' status; do
    # shellcheck disable=SC2086 # a command and its option
    expect 64 "stands before ${command%% *}" "${launch[@]}" --set hosts=192.0.2.1,192.0.2.2 --set secret=s $command \
        --config "$WORK/launch.conf"
done
# The launcher takes no value of an option for an option.
for v in --set --config 'type --help now' --help --config=x; do
    expect 0 '' "${launch[@]}" --set ranks=1 "${BASE[@]}" generate --max-tokens 2 --prompt "$v" --stop --set
    same "the prompt $v is no request for help" 0 "$(grep -c '^usage' "$WORK/out")"
    expect 66 "${v%=*}" "${launch[@]}" --set ranks=1 "${BASE[@]}" generate --ids "$v"
done
expect 0 '' "${launch[@]}" "${pair_conf[@]}" "${BASE[@]}" generate --help
same 'help is one text' 1 "$(grep -c '^usage' "$WORK/out")"
# A standard stream that is closed: nothing that is opened later takes its place.
streams=("${launch[@]}" "${pair_conf[@]}" "${BASE[@]}" generate --prompt a --max-tokens 8)
for case in '0 <&-' '73 >&-' '0 2>&-' '73 <&- >&-' '73 <&- >&- 2>&-'; do
    # shellcheck disable=SC2016 # for the inner shell
    bash -c "\"\$@\" ${case#* }" sh "${streams[@]}" --set "port=$(free_port)" >"$WORK/out" 2>"$WORK/err"
    same "two ranks with ${case#* }: exit code" "${case% ${case#* }}" $?
done
for case in 'loop 3' 'shm 2'; do # what every link carries that can join the ranks, without a model
    links=${case#* }
    expect 0 '' "${launch[@]}" --set ranks=2 --set "link=${case% *}" --set "port=$(free_port)" bench --transport
    [ "$(grep -c 'over rdma' "$WORK/out")" -eq 0 ] || links=$((links + 1))
    same "sizes, lags and frames over $links links" "$((5 * links)) $links $((3 * links))" \
        "$(grep -c ' + .* + ' "$WORK/out") $(grep -c '^lag: rank 1' "$WORK/out") $(
            grep -c '^mailbox: there\|^mailbox: seen by rank 1\|ranks over' "$WORK/out")"
done
expect 78 'plan_form: want one of flag, imm, tcp' "${G[@]}" --set plan_form=pigeon --prompt a
expect 0 '' "$TANDEM" bench --transport --only loop --set ranks=2
same 'one link of them' 5 "$(grep -c ' + .* + ' "$WORK/out")"
expect 78 '--only rdma with link loop, want' "$TANDEM" bench --transport --only rdma --set ranks=2
expect 64 'link pigeon: this build has' "$TANDEM" bench --transport --only pigeon --set ranks=2
expect 78 'wants ranks' "$TANDEM" bench --transport --set ranks=1
expect 64 '--only wants --transport' "$TANDEM" bench --only loop
expect 64 'a.json: only --compare reads files' "$TANDEM" bench a.json b.json
expect 64 'option --bogus' "${launch[@]}" "${pair_conf[@]}" "${BASE[@]}" generate --prompt a --bogus

# ---- models -------------------------------------------------------------------------------------------

# variant NAME FILE - the test model with one file left out, for the caller to put another there
variant()
{
    mkdir "$WORK/$1"
    cp "$MODEL"/* "$WORK/$1/"
    rm "$WORK/$1/$2"
}

try=("$TANDEM" generate --set "cache=$WORK/cache" --prompt a --set)
expect 66 'none' "${try[@]}" "model=$WORK/none"
mkdir "$WORK/empty"
expect 66 'config.json' "${try[@]}" "model=$WORK/empty"
expect 65 '' "${try[@]}" "model=$MODEL/model.safetensors"
variant cut_config config.json
head -c 300 "$MODEL/config.json" >"$WORK/cut_config/config.json"
expect 65 'config.json' "${try[@]}" "model=$WORK/cut_config"
variant other_type config.json
sed 's/deepseek_v41/other_model/; s/DeepseekV41/OtherModel/' "$MODEL/config.json" >"$WORK/other_type/config.json"
expect 65 'other_model' "${try[@]}" "model=$WORK/other_type"
n=0
for edit in 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0/' 's/"rms_norm_eps": [^,]*/"rms_norm_eps": -1e-6/' \
    's/"hc_eps": [^,]*/"hc_eps": 0/' 's/"routed_scaling_factor": [^,]*/"routed_scaling_factor": 0/' \
    's/"routed_scaling_factor": [^,]*/"routed_scaling_factor": 1e300/' 's/"swiglu_limit": [^,]*/"swiglu_limit": -1/' \
    's/"rms_norm_eps": [^,]*/"rms_norm_eps": 1e-300/' 's/"model_type": "deepseek_v41_text"/"model_type": "llama"/'; do
    n=$((n + 1))
    variant "value$n" config.json
    sed "$edit" "$MODEL/config.json" >"$WORK/value$n/config.json"
    key=${edit#s/\"}
    expect 65 "${key%%\"*}" "${try[@]}" "model=$WORK/value$n"
done
variant no_tokenizer tokenizer.json
expect 66 'tokenizer.json' "${try[@]}" "model=$WORK/no_tokenizer"
variant bad_tokenizer tokenizer.json
echo '{"model": 7}' >"$WORK/bad_tokenizer/tokenizer.json"
expect 65 'tokenizer.json' "${try[@]}" "model=$WORK/bad_tokenizer"
variant no_weights model.safetensors
expect 66 '' "${try[@]}" "model=$WORK/no_weights"
variant cut_weights model.safetensors
head -c 1000000 "$MODEL/model.safetensors" >"$WORK/cut_weights/model.safetensors"
expect 65 'model.safetensors' "${try[@]}" "model=$WORK/cut_weights"
variant bad_header model.safetensors
head -c 5000 /dev/zero | tr '\0' '{' >"$WORK/bad_header/model.safetensors"
expect 65 'model.safetensors' "${try[@]}" "model=$WORK/bad_header"

# ---- packs --------------------------------------------------------------------------------------------

expect 0 '' "$TANDEM" pack "$MODEL" "$WORK/packs" --ranks 2
expect 0 'every digest holds' "$TANDEM" pack "$MODEL" "$WORK/packs" --ranks 2 --verify
expect 0 '' "$TANDEM" inspect "$WORK/packs/rank1.pack"
expect 0 '' "$TANDEM" generate --set "model=$WORK/packs" --set ranks=2 --prompt a --max-tokens 4
expect 78 'rank 0 of 2' "$TANDEM" generate --set "model=$WORK/packs" --prompt a --max-tokens 4
expect 73 '' "$TANDEM" pack "$MODEL" /dev/null/packs
expect 66 '' "$TANDEM" pack "$WORK/none" "$WORK/packs2"
mkdir "$WORK/odd"
cp "$MODEL/tokenizer.json" "$WORK/odd" && echo '[]' >"$WORK/odd/config.json"
expect 65 "error: $WORK/odd: config.json: want an object" "$TANDEM" pack "$WORK/odd" "$WORK/packs2"
cp "$MODEL/config.json" "$WORK/odd" && echo '[]' >"$WORK/odd/tokenizer.json"
expect 65 "error: $WORK/odd: tokenizer.json: " "$TANDEM" tokenize --set "model=$WORK/odd" --prompt a
roof() { expect "$1" "$2" "$TANDEM" roofline "${@:3}"; }
devices=$ROOT/configs/devices
roof 0 '' "$WORK/packs/rank1.pack" "$devices/gb10.json" "$devices/kernels.json"
for part in 'window of 1 rows' 'window of 16 rows' 'draft pass' 'exchanges' 'experts'; do
    grep -q "$part" "$WORK/out" || note_failure "the roofline has no $part"
done
roof 0 '' "$WORK/packs/rank1.pack" "$devices/h200.json" "$devices/kernels.json" --json
roof 65 'name' "$WORK/packs/rank1.pack" "$devices/kernels.json" "$devices/kernels.json"
roof 66 'none.json' "$WORK/packs/rank1.pack" "$WORK/none.json" "$devices/kernels.json"
for key in exchange_us pass_ms window_2_ms experts_3; do
    sed "s/\"sms\"/\"$key\": -1, &/" "$devices/h200.json" >"$WORK/below.json"
    roof 65 "below.json: $key: -1 is below 0" "$WORK/packs/rank1.pack" "$WORK/below.json" "$devices/kernels.json"
done
sed 's/"experts_us": */&-/' "$devices/kernels.json" >"$WORK/below.json"
sed 's/"experts_again": */&1e300, "was": /' "$devices/kernels.json" >"$WORK/above.json"
roof 65 'experts_again: 1e+300 is no share' "$WORK/packs/rank1.pack" "$devices/h200.json" "$WORK/above.json"
roof 65 'experts_us: -.* is below 0' "$WORK/packs/rank1.pack" "$devices/h200.json" "$WORK/below.json"
roof 64 'want one of them' "$WORK/packs/rank1.pack" "$devices/h200.json" "$devices/kernels.json" --fit a --measured b
bytes_of() { sed "s/\"sms\"/\"experts_1\": $1, &/" "$devices/h200.json" >"$WORK/counted.json" && roof 0 '' "$WORK/packs/rank1.pack" "$WORK/counted.json" "$devices/kernels.json" --json && field bytes "$WORK/out"; }
same 'more experts than there are take no more bytes' "$(bytes_of 6)" "$(bytes_of 60)"
expect 0 '' "$TANDEM" bench --window --kernels "${BASE[@]}" --set window_max=2 --set context=96 --json
same 'each window says what of it is idle' 2 "$(grep -o '"nodes":[0-9]*,"idle":[0-9.]*' "$WORK/out" | wc -l)"
same 'each row of a window was measured' 2 "$(grep -o '"rows":[0-9]*,"window_us"' "$WORK/out" | wc -l)"
grep -q '"op":"hc_site"' "$WORK/out" || note_failure 'the ops of a window are not there'
expect 78 'a context of 32, want more than 32' "$TANDEM" bench --window "${BASE[@]}" --set window_max=1 --set context=32
expect 0 '' "$TANDEM" bench --kernels "${BASE[@]}" --set window_max=1 --set context=96
grep -qE 'bf16 us: .*(has none|has no CUDA)' "$WORK/out" || note_failure 'why there is no product of the library is not said'
expect 0 '' "$TANDEM" bench --profile "${BASE[@]}" --set window_max=1 --set context=96 --json
same 'experts are queued once' 1 "$(grep -o '"op":"moe"' "$WORK/out" | wc -l)"
expect 0 '' "$TANDEM" bench --window "${BASE[@]}" --set ranks=2 --set window_max=2 --set context=96 --json
same 'a rank of two is measured alone' 2 "$(grep -o '"rows":[0-9]*,"window_us"' "$WORK/out" | wc -l)"
grep -q '"ranks":2' "$WORK/out" || note_failure 'whose rank was measured is not said'
expect 0 '' "$TANDEM" bench --window "${BASE[@]}" --set window_max=1 --set context=600 --set prefill_chunk=512 --json
same 'a prompt of one chunk was measured' 1 "$(grep -o '"rows":512,"prompt_us":[0-9.]*[1-9]' "$WORK/out" | wc -l)"

# What is fitted to a measured rank says of it what was measured: of one row exactly.
measured() { expect 0 '' "$TANDEM" bench --window --kernels --json "${BASE[@]}" --set "model=$WORK/packs" --set ranks=2 --set window_max=4 --set context=96; }
measured && cp "$WORK/out" "$WORK/measured.json"
pack=$WORK/packs/rank0.pack
roof 0 '' "$pack" "$devices/h200.json" "$devices/kernels.json" --fit "$WORK/measured.json"
cp "$WORK/out" "$WORK/fitted.json"
roof 0 '' "$pack" "$devices/h200.json" "$WORK/fitted.json" --measured "$WORK/measured.json"
grep -qE 'window of 1 rows .* [+-]0\.[0-9]%' "$WORK/out" || note_failure "not what it was fitted to: $(grep 'of 1 rows' "$WORK/out")"
grep -qE 'window of 4 rows .*%' "$WORK/out" || note_failure 'the window of four rows is not beside what was measured'
roof 65 'windows' "$pack" "$devices/h200.json" "$devices/kernels.json" --fit "$devices/h200.json"
roof 66 'none.json' "$pack" "$devices/h200.json" "$devices/kernels.json" --measured "$WORK/none.json"
expect 0 '' "$TANDEM" bench --window --kernels --json "${BASE[@]}" --set "model=$WORK/packs" --set ranks=2 --set window_max=1 --set context=96
sed 's/"op":"moe"/"op":"other"/g' "$WORK/out" >"$WORK/one_row.json"
roof 0 '' "$pack" "$devices/h200.json" "$devices/kernels.json" --fit "$WORK/one_row.json"
same 'what was not measured stays' "$(sed -n 's/.*"experts_issue": *\([0-9.]*\).*/\1/p' "$devices/kernels.json")" "$(field experts_issue "$WORK/out")"

# Of lines and windows that a device with known figures would show, a fit from other steps finds windows that are these.
known=$devices/kernels.json
figure() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" "$known"; }
shown() { # OP WHAT STEP ROW: as each figure says at 1, 2 and 8 rows
    for rows in 1 2 8; do
        awk -v r=$rows -v s="$3" -v k="$4" -v o="$1" -v w="$2" 'BEGIN { printf ",{\"op\":\"%s\",\"what\":\"%s\",\"rows\":%d,\"calls\":3,\"us\":%f,\"bytes\":0,\"weights\":0}", o, w, r, s + k * (r - 1) }'
    done
}
roof 0 '' "$pack" "$devices/h200.json" "$known" --json
{
    grep -o '"rows":[0-9]*,"us":[0-9.]*' "$WORK/out" | sed 's/"us"/"window_us"/; s/.*/{&,"experts":0}/' >"$WORK/windows"
    printf '{"pass_us":%s,"windows":[' "$(tail -n 1 "$WORK/windows" | sed 's/.*"window_us":\([0-9.]*\).*/\1/')"
    head -n -1 "$WORK/windows" | paste -sd,
    printf '],"kernels":[%s' "$(shown matmul '' "$(figure product_us)" "$(figure product_row_us)" | cut -c2-)"
    shown matmuls a "$(figure list_us)" "$(figure list_row_us)"
    shown matmuls 'a + b' "$(awk -v a="$(figure list_us)" -v b="$(figure joined_us)" 'BEGIN { print a + b }')" "$(figure list_row_us)"
    for pair in moe:experts hc_site:site route:route attend:attend row_keeps:keep rmsnorm:norm select:select stage:rest; do
        shown "${pair%:*}" '' "$(figure "${pair#*:}_us")" "$(figure "${pair#*:}_row_us")"
    done
    printf ']}\n'
} >"$WORK/shown.json"
sed 's/_us": /_us": 3/' "$known" >"$WORK/other.json"
roof 0 '' "$pack" "$devices/h200.json" "$WORK/other.json" --fit "$WORK/shown.json"
cp "$WORK/out" "$WORK/found.json"
roof 0 '' "$pack" "$devices/h200.json" "$WORK/found.json" --measured "$WORK/shown.json"
same 'nine windows and the pass are found again' 10 "$(grep -cE '[+-]0\.[0-3]%$' "$WORK/out")"
roof 0 '' "$pack" "$devices/h200.json" "$WORK/other.json" --measured "$WORK/shown.json"
same 'other steps are other windows' 0 "$(grep -cE '[+-]0\.[0-3]%$' "$WORK/out")"
expect 64 'rank 0, alone' "$TANDEM" bench --window "${BASE[@]}" --set ranks=2 --set rank=1
expect 66 '' "$TANDEM" inspect "$WORK/none.pack"
expect 65 '' "$TANDEM" inspect "$MODEL/model.safetensors"
printf 'XXXX' | dd of="$WORK/packs/rank1.pack" bs=1 seek=1000000 conv=notrunc 2>/dev/null
expect 1 '' "$TANDEM" pack "$MODEL" "$WORK/packs" --ranks 2 --verify
head -c 1000000 "$WORK/packs/rank0.pack" >"$WORK/cut.pack"
expect 65 '' "$TANDEM" inspect "$WORK/cut.pack"

# ---- prompts and ids ----------------------------------------------------------------------------------

ids()
{
    printf "$1" >"$WORK/ids"
    shift
    "${G[@]}" --ids "$WORK/ids" "$@"
}

expect 66 'none' "${G[@]}" --ids "$WORK/none"
expect 66 'none' "${G[@]}" --prompt-file "$WORK/none"
expect 65 'no ids' ids '' --max-tokens 4
expect 65 'no ids' ids ' \n\t ' --max-tokens 4
expect 65 'byte 2 is part of no token id' ids '1 x' --max-tokens 4
expect 65 'part of no token id' ids '1 -2' --max-tokens 4
expect 65 'part of no token id' ids '1 2.5' --max-tokens 4
expect 65 'part of no token id' ids '1 2\0003' --max-tokens 4
expect 65 'number 2 is 4096, the vocabulary has 4096' ids '0 4096' --max-tokens 4
expect 65 'number 1 is 99999999999999999999, ' ids '99999999999999999999' --max-tokens 4
expect 65 'prompt is empty' "${G[@]}" --prompt '' --no-bos
expect 0 '' "$TANDEM" tokenize "${BASE[@]}" --prompt '' --no-bos
same 'no tokens' '' "$(cat "$WORK/out")"
expect 0 '' "$TANDEM" tokenize "${BASE[@]}" --prompt '' --no-bos --json
same 'no tokens in JSON' '[]' "$(field ids "$WORK/out")"
piped() { printf '0 1 2\n' | "$@"; }
expect 0 '' piped "$TANDEM" detokenize "${BASE[@]}" --ids /dev/stdin
same 'ids from a pipe' "$(printf '0 1 2' >"$WORK/ids" && "$TANDEM" detokenize "${BASE[@]}" --ids "$WORK/ids")" "$(cat "$WORK/out")"
expect 0 '' piped "${launch[@]}" "${pair_conf[@]}" "${BASE[@]}" --set "port=$(free_port)" generate --ids /dev/stdin --max-tokens 2
expect 65 '' "${G[@]}" --ids "$WORK"
printf 'a\xffb' >"$WORK/bytes"
expect 65 'bytes: prompt byte 1 is not UTF-8' "${G[@]}" --prompt-file "$WORK/bytes"
expect 65 'bytes: prompt byte 1 is not UTF-8' "${G[@]}" --prompt a --prompt-file "$WORK/bytes"
expect 65 'error: prompt 2: prompt byte 1 is not UTF-8' "${G[@]}" --prompt a --prompt $'a\xffb'
mkdir "$WORK/texts" && cp "$WORK/bytes" "$WORK/texts/b.txt" && seq 99 >"$WORK/texts/a.txt"
expect 65 'texts/b.txt: prompt byte 1 is not UTF-8' "$TANDEM" demo "${BASE[@]}" --prompts "$WORK/texts"
rm "$WORK/texts/b.txt"
for command in demo bench "score --against $MODEL"; do
    # shellcheck disable=SC2086 # words
    expect 65 'error: a: prompt has [0-9]* tokens, the context holds 64' "$TANDEM" $command "${BASE[@]}" --set context=64 \
        --prompts "$WORK/texts"
done
expect 65 'a.txt: prompt has [0-9]* tokens' "$TANDEM" score "${BASE[@]}" --set context=64 --prompt-file "$WORK/texts/a.txt"

small=(--set context=20 --set prefill_chunk=16 --json --set ignore_eos=on)
twenty='0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19'
expect 65 'prompt has 21 tokens, the context holds 20' ids "$twenty 20" "${small[@]}"
expect 65 'error: prompt 2: prompt has [0-9]* tokens' "${G[@]}" --prompt a --prompt "$twenty" "${small[@]}"
expect 0 '' ids "$twenty" "${small[@]}"
same 'a prompt that fills the context' '[] "length" 0' \
    "$(field ids "$WORK/out") $(field finish "$WORK/out") $(field rounds "$WORK/out")"
expect 0 '' ids "${twenty% *}" "${small[@]}"
same 'room for one token' '"length" 1' "$(field finish "$WORK/out") $(field completion_tokens "$WORK/out")"
expect 0 '' ids "0 1 2 3 4" "${small[@]}"
same 'a reply up to the end of the context' '"length" 15' \
    "$(field finish "$WORK/out") $(field completion_tokens "$WORK/out")"
expect 0 '' "${G[@]}" --prompt '' --max-tokens 3 --json
same 'an empty prompt is the begin token' 1 "$(field prompt_tokens "$WORK/out")"
expect 0 '' "${G[@]}" --prompt a --max-tokens 0 --json
same 'no tokens asked for' '[] "length"' "$(field ids "$WORK/out") $(field finish "$WORK/out")"

# ---- output -------------------------------------------------------------------------------------------

out_to()
{
    local to=$1

    shift
    "$@" >"$to"
}

expect 73 'cannot write' out_to /dev/full "${G[@]}" --prompt a --max-tokens 4
expect 73 'cannot write' out_to /dev/full "${G[@]}" --prompt a --max-tokens 4 --json
expect 73 'cannot write' out_to /dev/full "$TANDEM" config

expect 0 '' "${G[@]}" --prompt 'Once upon a time' --max-tokens 8 --json
reply=$(field text "$WORK/out")
same 'ids are counted' 8 "$(field ids "$WORK/out" | tr ',' '\n' | wc -l)"
field ids "$WORK/out" | tr -d '[]' | tr ',' ' ' >"$WORK/ids"
expect 0 '' "$TANDEM" detokenize "${BASE[@]}" --ids "$WORK/ids"
same 'ids are the text' "$reply" "\"$(cat "$WORK/out")\""
expect 0 '' "${G[@]}" --prompt 'Once upon a time' --max-tokens 8
same 'text streams as it is in JSON' "$reply" "\"$(cat "$WORK/out")\""

expect 0 '' "$TANDEM" tokenize "${BASE[@]}" --prompt 'Grüße, 你好 😀'
cp "$WORK/out" "$WORK/ids"
expect 0 '' "$TANDEM" detokenize "${BASE[@]}" --ids "$WORK/ids"
same 'there and back' 'Grüße, 你好 😀' "$(cat "$WORK/out")"
expect 0 '' "$TANDEM" tokenize "${BASE[@]}" --prompt '<｜User｜>'
same 'a typed marker is text' no "$(grep -qw 3 "$WORK/out" && echo yes || echo no)"
expect 0 '' "$TANDEM" tokenize "${BASE[@]}" --prompt '<｜User｜>' --markers
same 'a marker that was asked for' '0 3' "$(cat "$WORK/out")"

expect 0 '' "$TANDEM" tokenize "${BASE[@]}" --prompt 'Once upon a time'
cp "$WORK/out" "$WORK/ids"
expect 0 'scored' "$TANDEM" score "${BASE[@]}" --ids "$WORK/ids" --top 3
same 'a line a position' "$(wc -w <"$WORK/ids")" "$(wc -l <"$WORK/out")"
tail -1 "$WORK/out" >"$WORK/last"
same 'nothing follows the last token' null "$(field logprob "$WORK/last")"
best=$(sed 's/.*"top":\[\[\([0-9]*\),.*/\1/' "$WORK/last")
expect 0 '' "$TANDEM" score "${BASE[@]}" --set ranks=2 --set numerics=fp32 --ids "$WORK/ids" --top 1
expect 0 '' "${G[@]}" --ids "$WORK/ids" --max-tokens 1 --json
same 'the likeliest token is the greedy one' "[$best]" "$(field ids "$WORK/out")"

for _ in $(seq 400); do cat "$WORK/ids"; done | tr '\n' ' ' >"$WORK/long"
: >"$WORK/scores"
scored() { [ "$(wc -l <"$WORK/scores")" -gt 5 ]; }
"$TANDEM" score "${BASE[@]}" --ids "$WORK/long" >"$WORK/scores" 2>"$WORK/err" &
asked=$!
comes $asked 200 scored || note_failure "no scores come"
kill -TERM $asked
wait $asked
same 'scores that a signal cut short are no success' 1 $?
same 'and say so' 1 "$(grep -c "error: score: interrupted after $(wc -l <"$WORK/scores") of $(wc -w <"$WORK/long") positions" "$WORK/err")"

# Neither proof nor table: what a signal cut short is no success.
for command in demo bench; do
    "$TANDEM" $command "${BASE[@]}" --prompts "$ROOT/configs/demo" --max-tokens 4000 --set ignore_eos=on >"$WORK/out" 2>"$WORK/err" &
    asked=$!
    comes $asked 200 grep -q 'costs: ' "$WORK/err" || note_failure "$command does not start"
    sleep 0.5
    kill -TERM $asked
    wait $asked
    same "$command that a signal cut short" 1 $?
    same 'and says so' 1 "$(grep -c "error: $command: interrupted, nothing was compared" "$WORK/err")"
done

# A drafter that has lost weights costs speed and no text, so each rank says what it has.
expect 0 'r1 draft dspark: 2 stages, block 5, 72 tensors, [0-9.]* MB of this rank' "${G[@]}" --set ranks=2 --set depth=2 \
    --prompt a --max-tokens 1

# Prices: measured once, kept, read again; a file that the setting names must be there and be one.
priced=("${G[@]}" --prompt a --max-tokens 4 --set context=500 --set "cache=$WORK/priced")
expect 0 'costs: kept in' "${priced[@]}"
kept=$(echo "$WORK"/priced/costs-*.json)
same 'for a device of this name' 1 "$(grep -c 'backend [a-z]*, device 0 [^ ,].*, graphs' "$kept")"
expect 0 'costs: measured by an earlier start' "${priced[@]}"
same 'nothing is measured then' 0 "$(grep -c 'costs: windows' "$WORK/err")"
expect 0 'costs: kept in' "${priced[@]}" --set context=600
for speed in overlap=off early_ingest=on cache_quant=off pin=off spin_us=0 stripe_min=1KiB rails=2 plan_form=tcp hosts=127.0.0.1 \
    graph_max=7 engram_io=pread engram_cache=1MiB trace_numerics=on; do
    expect 0 'costs: kept in' "${priced[@]}" --set "$speed"
done
expect 0 "costs: from $kept" "${priced[@]}" --set "costs=$kept"
expect 66 "$WORK/none.json" "${priced[@]}" --set "costs=$WORK/none.json"
expect 66 "$WORK/none.json" "${priced[@]}" --set depth=2 --set "costs=$WORK/none.json"
for bad in '' '{' '[1]' '{"window_us":[1]}' '{"window_us":[1,2]}' '{"window_us":[1,0],"draft_us":[1]}' \
    '{"window_us":[1,2],"draft_us":["x"]}' '{"window_us":[1,2],"draft_us":[1,1,1,1,1]}'; do
    printf %s "$bad" >"$WORK/bad.json"
    expect 78 "costs $WORK/bad.json" "${priced[@]}" --set "costs=$WORK/bad.json"
done
echo '{' >"$kept"
expect 0 'measured again' "${priced[@]}"
expect 0 'costs: measured by an earlier start' "${priced[@]}"

mkdir "$WORK/log"
expect 0 '' "${G[@]}" --set ranks=2 --set "log=$WORK/log" --prompt 'Once upon a time' --max-tokens 16 --json
rounds=$(field rounds "$WORK/out")
for r in 0 1; do
    same "a line a round of rank $r" "$((rounds + 1))" "$(wc -l <"$WORK/log/rank$r.jsonl")"
    same "the sums of rank $r" 16 "$(tail -1 "$WORK/log/rank$r.jsonl" | sed 's/.*"tokens":\([0-9]*\).*/\1/')"
done
landed() { sed -n 's/.*"a":\([0-9]*\),"landed":\([0-9]*\).*/\1 \2/p' "$1"; }
same 'both ranks log the same outcomes' "$(landed "$WORK/log/rank0.jsonl")" "$(landed "$WORK/log/rank1.jsonl")"

"${G[@]}" --set ranks=2 --set "log=$WORK/asked" --prompt a --max-tokens 6000 --set ignore_eos=on >/dev/null 2>"$WORK/err" &
asked=$!
both_logged() { [ -s "$WORK/asked/rank0.jsonl" ] && [ -s "$WORK/asked/rank1.jsonl" ]; }
comes $asked 200 both_logged || note_failure "no round is logged"
kill -USR1 "$asked"
comes $asked 200 grep -q 'r1 rounds: ' "$WORK/err" || note_failure "a signal gives no report"
kill -TERM $asked
wait "$asked"
same 'a report changes nothing' 0 $?
same 'each rank reports when asked and at its end' '2 2' "$(grep -c 'r0 rounds: ' "$WORK/err") $(grep -c 'r1 rounds: ' "$WORK/err")"
same 'the phases of both ranks' 2 "$(grep -l '"window.forward"' "$WORK"/asked/rank[01].phases.json | wc -l)"

expect 0 '' "$TANDEM" report "$WORK/log" --out "$WORK/page.html"
same 'the report counts the rounds' "$rounds" "$(sed -n 's/^- \([0-9]*\) rounds gave 16 tokens.*/\1/p' "$WORK/out")"
same 'it has a column a rank' 'ms a round rank 0 rank 1' "$(grep '^ms a round' "$WORK/out" | xargs)"
same 'the page is whole' '</html>' "$(tail -1 "$WORK/page.html")"
head -c 700 "$WORK/log/rank0.jsonl" >"$WORK/cut.jsonl"
expect 0 '' "$TANDEM" report "$WORK/cut.jsonl" "$WORK/log/rank1.jsonl" --out "$WORK/page.html"
same 'a log that is cut off is named' 1 "$(grep -c "cut.jsonl: line [0-9]*: column" "$WORK/out")"
expect 65 'no line' "$TANDEM" report "$ROOT/launch.sh" --out "$WORK/page.html"
expect 66 'nowhere' "$TANDEM" report "$WORK/nowhere.jsonl"
expect 66 'no rank<r>.jsonl' "$TANDEM" report "$ROOT/configs"
kept=$(cksum <"$WORK/log/rank1.jsonl")
expect 64 'rank1.jsonl is one of the logs' "$TANDEM" report "$WORK/log" --out "$WORK/log/rank1.jsonl"
same 'a page takes no log away' "$kept" "$(cksum <"$WORK/log/rank1.jsonl")"
expect 64 'wants 1 to 8' "$TANDEM" report
expect 73 'No such file' "$TANDEM" report "$WORK/log" --out "$WORK/nowhere/page.html"

# ---- groups -------------------------------------------------------------------------------------------

secret_file "$WORK/secret"
port=$(free_port)
pair=("${G[@]}" --prompt a --max-tokens 4 "${TCP[@]}" --set "secret=$WORK/secret" --set "port=$port")
"${pair[@]}" >/dev/null 2>"$WORK/waiting" &
waiting=$!
listening() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }
comes $waiting 200 listening || note_failure "rank 0 does not listen"
expect 69 "$port: .*another group runs, or set port" "${pair[@]}"
secret_file "$WORK/other"
expect 77 '' "${pair[@]}" --set rank=1 --set "secret=$WORK/other"
cp "$WORK/secret" "$WORK/open"
chmod 644 "$WORK/open"
expect 77 'open' "${pair[@]}" --set rank=1 --set "secret=$WORK/open"
expect 66 'none' "${pair[@]}" --set rank=1 --set "secret=$WORK/none"
(umask 077 && head -c 5000 /dev/urandom >"$WORK/long" && head -c 31 /dev/urandom >"$WORK/short" && mkfifo "$WORK/fifo")
expect 78 'long: 5000 bytes, at most 4096' "${pair[@]}" --set rank=1 --set "secret=$WORK/long"
expect 78 'short has 31 bytes, want at least 32' "${pair[@]}" --set rank=1 --set "secret=$WORK/short"
for secret in "$WORK/fifo" "$WORK"; do
    expect 78 "$secret: not a regular file" "${pair[@]}" --set rank=1 --set "secret=$secret"
done
expect 78 'Not a directory' "${pair[@]}" --set rank=1 --set "secret=$WORK/short/secret"
same 'strangers do not end rank 0' yes "$(kill -0 $waiting && echo yes)"
kill -TERM $waiting
wait $waiting
same 'a signal while rank 1 is missing' 0 $?
same 'it is said once' 1 "$(grep -c 'interrupted while waiting for rank 1' "$WORK/waiting")"
"${pair[@]}" --set rank=1 >/dev/null 2>"$WORK/waiting" &
waiting=$!
sleep 0.5
kill -TERM $waiting
wait $waiting
same 'a signal while rank 0 is missing' 0 $?
same 'it is said once' 1 "$(grep -c 'interrupted while waiting for rank 0' "$WORK/waiting")"

# differ KEY=VALUE - rank 1 has another value: both end with 78 and name the key
differ()
{
    "${pair[@]}" >/dev/null 2>"$WORK/waiting" &
    waiting=$!
    expect 78 "${1%=*}" "${pair[@]}" --set rank=1 --set "$1"
    wait $waiting
    same "rank 0 when rank 1 has $1" 78 $?
    same "rank 0 names $1" 1 "$(grep -c "error: .*${1%=*}" "$WORK/waiting")"
}
differ depth=3
differ slots=2
differ context=4000

# a folder with the pack of one rank alone, as its machine may have it
for r in 0 1; do
    expect 0 '' "$TANDEM" pack "$MODEL" "$WORK/only$r" --ranks 2 --rank $r
done
"${pair[@]}" --set "model=$WORK/only0" >"$WORK/text" 2>"$WORK/waiting" &
waiting=$!
expect 0 '' "${pair[@]}" --set rank=1 --set "model=$WORK/only1"
wait $waiting
same 'each rank has its own pack alone' 0 $?
expect 66 'only1/rank0.pack: ' "${G[@]}" --prompt a --set "model=$WORK/only1" --set ranks=2
expect 0 '' "$TANDEM" tokenize --set "model=$WORK/only1" --prompt a

# the same settings, other weights on rank 1
cp -r "$MODEL" "$WORK/weights"
dd if=/dev/zero of="$WORK/weights/model.safetensors" bs=1M seek=4 count=12 conv=notrunc 2>/dev/null
"${pair[@]}" >/dev/null 2>"$WORK/waiting" &
waiting=$!
expect 78 'packs differ: replicated weights ' "${pair[@]}" --set rank=1 --set "model=$WORK/weights" --set "cache=$WORK/weights.cache"
same 'no weight is loaded' 0 "$(grep -c 'draft \|rounds:' "$WORK/err")"
wait $waiting
same 'rank 0 when the packs differ' 78 $?
same 'rank 0 names them' 1 "$(grep -c 'error: .*packs differ: replicated weights ' "$WORK/waiting")"

finish
