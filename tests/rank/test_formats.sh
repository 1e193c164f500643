#!/bin/bash
# Whole programs on checkpoints in every format: the same commands, the same text for any layout of ranks.
. "$(dirname "$0")/lib.sh"

P=$ROOT/tests/vectors/prompts
CACHE=(--set "cache=$3/cache")

# ---- convert ---------------------------------------------------------------------------------------------

expect 0 'as fp8-mxfp4' "$TANDEM" convert "$MODEL" "$WORK/fp8" --to fp8-mxfp4
for name in config.json model.safetensors model.safetensors.index.json; do
    mkdir "$WORK/has-$name" && echo mine >"$WORK/has-$name/$name"
    expect 73 "OUT has a checkpoint already, .*/has-$name/$name;" "$TANDEM" convert "$MODEL" "$WORK/has-$name" --to fp8
    same "$name of another checkpoint stays, alone" "mine $name" "$(cat "$WORK/has-$name/$name") $(ls "$WORK/has-$name")"
done
expect 64 'no encoder' "$TANDEM" convert "$MODEL" "$WORK/no" --to exl3-3
expect 64 '--to' "$TANDEM" convert "$MODEL" "$WORK/no"
expect 65 'already' "$TANDEM" convert "$WORK/fp8" "$WORK/no" --to fp8
expect 66 'nowhere' "$TANDEM" convert "$WORK/nowhere" "$WORK/no" --to fp8
for name in model.safetensors model.safetensors.index.json config.json tokenizer.json; do
    mkdir -p "$WORK/folder-$name/$name/in"
    expect 73 "folder-$name/$name: " "$TANDEM" convert "$MODEL" "$WORK/folder-$name" --to fp8
done
cp -r "$MODEL" "$WORK/unread"
mkdir "$WORK/unread/chat_template.jinja"
expect 65 'unread/chat_template.jinja: ' "$TANDEM" convert "$WORK/unread" "$WORK/read" --to fp8
same 'what cannot be read is known before anything is written' no "$([ -e "$WORK/read" ] && echo yes || echo no)"
for name in rank0.pack.part rank0.pack.done; do
    mkdir "$WORK/link-$name"
    ln -s nowhere "$WORK/link-$name/$name"
    expect 73 "link-$name/$name: " "$TANDEM" pack "$MODEL" "$WORK/link-$name"
done
cp -r "$MODEL" "$WORK/own" && ln -s own "$WORK/alias"
for out in own ./own/. alias; do
    expect 64 'OUT .* is the folder of MODEL' "$TANDEM" convert "$WORK/own" "$WORK/$out" --to fp8
done
expect 64 'OUT .* is the folder of MODEL' "$TANDEM" convert "synth:$WORK/own" "$WORK/own" --to fp8
same 'a checkpoint is not converted in its place' '' "$(diff -r "$MODEL" "$WORK/own")"
same 'what is refused writes nothing' no "$([ -e "$WORK/no" ] && echo yes || echo no)"

# The first signal leaves nothing behind, a second one of either kind waits for nothing.
begun() { compgen -G "$WORK/cut/*" >/dev/null; }
cp -r "$MODEL" "$WORK/wide" && sed -i 's/"moe_intermediate_size": *[0-9]*/"moe_intermediate_size": 16384/' "$WORK/wide/config.json"
for signals in TERM INT 'INT TERM'; do
    "$TANDEM" convert "synth:$WORK/wide" "$WORK/cut" --to mxfp4 2>"$WORK/err" &
    p=$!
    comes $p 100 begun || note_failure 'the conversion does not begin'
    kill -STOP $p
    for s in $signals; do
        kill "-$s" $p
    done
    kill -CONT $p
    wait $p
    same "convert, $signals: exit code" 130 $?
    same "convert, $signals: a folder is left" "$([ "$signals" = 'INT TERM' ] && echo yes || echo no)" \
        "$([ -e "$WORK/cut" ] && echo yes || echo no)"
    rm -rf "$WORK/cut"
done

expect 0 '' "$TANDEM" generate "${CACHE[@]}" --set "model=$WORK/fp8" --prompt 'Found what?' --max-tokens 16 --json
fp8=$(field ids "$WORK/out")
expect 0 '' "$TANDEM" generate "${CACHE[@]}" --set "model=$WORK/fp8" --prompt 'Found what?' --max-tokens 16 --json \
    --set draft=none
same 'drafts change nothing in FP8' "$fp8" "$(field ids "$WORK/out")"

# The released numerics: drafted is serial, on one rank and on two, in text of its own.
for ranks in 1 2; do
    expect 0 '' "$TANDEM" generate "${CACHE[@]}" --set "model=$WORK/fp8" --set numerics=released --set ranks=$ranks \
        --prompt 'Count from 1 to 60.' --max-tokens 40 --json --set depth=5
    released=$(field ids "$WORK/out")
    rounds=$(field rounds "$WORK/out")
    expect 0 '' "$TANDEM" generate "${CACHE[@]}" --set "model=$WORK/fp8" --set numerics=released --set ranks=$ranks \
        --prompt 'Count from 1 to 60.' --max-tokens 40 --json --set draft=none
    same "released, $ranks ranks: drafts change nothing" "$released" "$(field ids "$WORK/out")"
    same "released, $ranks ranks: it drafts" yes "$([ "$rounds" -lt 30 ] && echo yes || echo "$rounds rounds")"
done
expect 0 'the inputs of' "$TANDEM" generate "${CACHE[@]}" --set "model=$WORK/fp8" --set numerics=released --prompt a --max-tokens 1
expect 0 'the same as bf16' "$TANDEM" generate "${CACHE[@]}" --set "model=$MODEL" --set numerics=released --prompt a --max-tokens 1

# Experts left out: said, drafted is serial, and refused where there are none.
lossy=(--set "model=$MODEL" --set expert_top_p=60 --prompt 'Once upon a time there was a king' --max-tokens 40 --json)
expect 0 '' "$TANDEM" generate "${CACHE[@]}" "${lossy[@]}" --set expert_top_p=100
whole=$(field ids "$WORK/out")
expect 0 'expert_top_p 60: lossy' "$TANDEM" generate "${CACHE[@]}" "${lossy[@]}"
same 'expert_top_p gives a text of its own' other "$([ "$whole" = "$(field ids "$WORK/out")" ] && echo same || echo other)"
left=$(field ids "$WORK/out")
expect 0 '' "$TANDEM" generate "${CACHE[@]}" "${lossy[@]}" --set draft=none --set ranks=1
same 'experts left out: drafts change nothing' "$left" "$(field ids "$WORK/out")"
mkdir "$WORK/llama"
cat >"$WORK/llama/config.json" <<'EOF'
{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
  "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
  "max_position_embeddings": 128, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false }
EOF
expect 78 'has no experts' "$TANDEM" generate "${CACHE[@]}" --set "model=synth:$WORK/llama" --set context=128 --set draft=none \
    --set expert_top_p=60 --prompt a --max-tokens 1

# Top-1 agreement with the bf16 weights on the golden prompts, in percent.
expect 0 '' "$TANDEM" score "${CACHE[@]}" --set "model=$MODEL" --against "$WORK/fp8" --prompts "$P"
cat "$WORK/out"
same 'texts' 7 "$(wc -l <"$WORK/out")"
agree=$(sed -n 's/^top-1 agreement .*: \([0-9]*\)\..*/\1/p' "$WORK/out")
same 'FP8 and MXFP4 choose as bf16 does, mostly' yes "$([ "${agree:-0}" -ge 85 ] && echo yes)"
expect 0 '' "$TANDEM" score "${CACHE[@]}" --set "model=$MODEL" --against "$MODEL" --prompts "$P"
same 'a model agrees with itself' 1 "$(grep -c '^top-1 agreement .*: 100.00% of' "$WORK/out")"

# Mixing weights rounded to bf16: only where it is asked for, and no pack of what is stored.
expect 0 '' "$TANDEM" pack "$MODEL" "$WORK/mixes" --mixes bf16
expect 0 'every digest holds' "$TANDEM" pack "$MODEL" "$WORK/mixes" --mixes bf16 --verify
expect 1 'another checkpoint' "$TANDEM" pack "$MODEL" "$WORK/mixes" --verify
expect 64 'stored or bf16' "$TANDEM" pack "$MODEL" "$WORK/mixes" --mixes f16
"$TANDEM" inspect "$WORK/mixes/rank0.pack" >"$WORK/out" 2>&1
same 'mixes' '16 0' "$(grep -c 'hc_[a-z]*_fn .* bf16 ' "$WORK/out") $(grep -c 'hc_[a-z]*_fn .* f32 ' "$WORK/out")"
expect 0 '' "$TANDEM" score "${CACHE[@]}" --set "model=$MODEL" --against "$WORK/mixes" --prompts "$P"
cat "$WORK/out"
agree=$(sed -n 's/^top-1 agreement .*: \([0-9]*\)\..*/\1/p' "$WORK/out")
same 'rounded mixes choose as stored ones do, mostly' yes "$([ "${agree:-0}" -ge 95 ] && echo yes)"

# ---- packs -----------------------------------------------------------------------------------------------

for layout in cpu cuda both; do
    expect 0 'every digest holds' "$TANDEM" pack "$WORK/fp8" "$WORK/$layout" --ranks 2 --layout $layout --verify
    expect 0 '' "$TANDEM" generate --set "model=$WORK/$layout" --set ranks=2 --set partials=fp32 --set numerics=fp32 \
        --prompt 'Found what?' --max-tokens 12 --json
    eval "$layout=\$(field ids \"\$WORK/out\")"
done
same 'a layout changes nothing' "$cpu" "$cuda"
same 'two layouts change nothing' "$cpu" "$both"
expect 0 'every digest holds' "$TANDEM" pack "$WORK/fp8" "$WORK/whole" --ranks 2 --experts whole --verify
expect 0 '' "$TANDEM" generate --set "model=$WORK/whole" --set ranks=2 --set partials=fp32 --set numerics=fp32 \
    --prompt 'Found what?' --max-tokens 12 --json
same 'experts whole or by width' "$cpu" "$(field ids "$WORK/out")"
expect 0 '' "$TANDEM" pack "$WORK/fp8" "$WORK/mixed" --ranks 2 --rank 0
expect 0 '' "$TANDEM" pack "$WORK/fp8" "$WORK/mixed" --ranks 2 --rank 1 --experts whole
expect 1 'another set than the first one: split, layout differ' "$TANDEM" pack "$WORK/fp8" "$WORK/mixed" --ranks 2 --verify
expect 0 '' "$TANDEM" inspect "$WORK/both/rank0.pack" --gbps 100
same 'both layouts of a matrix' 2 "$(grep -c '^layers.0.attn.wq_b.weight ' "$WORK/out")"
same 'one of a vector' 1 "$(grep -c '^layers.0.attn_norm.weight ' "$WORK/out")"
cut=$(grep '^sum ' "$WORK/out")
expect 0 '' "$TANDEM" inspect "$WORK/cpu/rank0.pack" --gbps 100
same 'a window reads one layout' "$cut" "$(grep '^sum ' "$WORK/out")"
same 'floor = bytes / speed' yes "$(awk '/^sum /{d = $4 - $3 / 100; print (d < 1e-3 && d > -1e-3) ? "yes" : d}' "$WORK/out")"
# Rows that stay where they are give the same text, as long as they are there.
expect 0 'every digest holds' "$TANDEM" pack "$WORK/fp8" "$WORK/linked" --ranks 2 --engram link --verify
expect 0 '' "$TANDEM" generate --set "model=$WORK/linked" --set ranks=2 --set partials=fp32 --set numerics=fp32 \
    --prompt 'Found what?' --max-tokens 12 --json
same 'linked rows change nothing' "$cpu" "$(field ids "$WORK/out")"
expect 0 '' "$TANDEM" inspect "$WORK/linked/rank1.pack"
same 'it says where they are' yes "$(grep -q "^layers.*engram.embed.weight .* 0 .* rows in $WORK/fp8/" "$WORK/out" && echo yes)"
same 'the pack is smaller' yes "$([ "$(stat -c %s "$WORK/linked/rank0.pack")" -lt "$(stat -c %s "$WORK/cpu/rank0.pack")" ] && echo yes)"
mv "$WORK/fp8/model.safetensors" "$WORK/fp8/away"
expect 66 'stays in' "$TANDEM" generate --set "model=$WORK/linked" --set ranks=2 --prompt a
mv "$WORK/fp8/away" "$WORK/fp8/model.safetensors"
# A checkpoint without the tables takes them, and nothing else, from a shard of another.
mkdir "$WORK/less"
cp "$WORK/fp8"/* "$WORK/less"
names=$(head -c $((8 + $(od -An -tu8 -N8 "$WORK/less/model.safetensors"))) "$WORK/less/model.safetensors" | tail -c +9 |
    grep -oE '"[^"]+": *\{ *"dtype"' | cut -d'"' -f2 | grep -v 'engram\.embed')
echo "{\"weight_map\": {$(sed 's/.*/"&": "model.safetensors"/' <<<"$names" | paste -sd,)}}" >"$WORK/less/model.safetensors.index.json"
expect 65 'layers.1.engram.embed.weight: not in the checkpoint.*--extra' "$TANDEM" pack "$WORK/less" "$WORK/no"
expect 0 'every digest holds' "$TANDEM" pack "$WORK/less" "$WORK/joined" --extra "$MODEL/model.safetensors" --verify
expect 0 '' "$TANDEM" inspect "$WORK/joined/rank0.pack"
same 'tables of the other' 2 "$(grep -c '^layers.*engram.embed.weight .* bf16 ' "$WORK/out")"
same 'all else of its own' 2 "$(grep -c '^layers.*engram.wkv.weight .* fp8 ' "$WORK/out")"
expect 64 'engram' "$TANDEM" pack "$MODEL" "$WORK/no" --engram move
expect 65 'no file that could be linked' "$TANDEM" pack "synth:$WORK/fp8" "$WORK/no" --engram link
same 'no folder is left' no "$([ -e "$WORK/no" ] && echo yes || echo no)"
expect 64 'layout' "$TANDEM" pack "$MODEL" "$WORK/no" --layout gpu
expect 64 'experts' "$TANDEM" pack "$MODEL" "$WORK/no" --experts half
expect 64 'gbps' "$TANDEM" inspect "$WORK/cpu/rank0.pack" --gbps 0
expect 66 'nofile' "$TANDEM" pack "$MODEL" "$WORK/nopack" --extra "$WORK/nofile"

# ---- formats without a download --------------------------------------------------------------------------

mkdir "$WORK/only"
cp "$MODEL/config.json" "$WORK/only"
synth()
{
    expect 0 '' "$TANDEM" generate "${CACHE[@]}" --set "model=synth+$1:$WORK/only" --set ranks=2 --set draft=none \
        --set experts=$2 --prompt 'Any text.' --max-tokens 2 --json
    same "$1, experts $2" 2 "$(field ids "$WORK/out" | tr ',' '\n' | wc -l)"
}
for format in fp8-128 mxfp4 nvfp4-ct exl3-2.5 exl3-4-3inst exl3-v41; do
    synth $format width
done
synth exl3-3-mcg whole
synth nvfp4 whole
expect 78 'in blocks of 32, those of' "$TANDEM" generate "${CACHE[@]}" --set "model=synth+fp8-128:$WORK/only" \
    --set numerics=released --prompt a
expect 65 'fp9' "$TANDEM" generate "${CACHE[@]}" --set "model=synth+fp9:$WORK/only" --prompt a

finish
