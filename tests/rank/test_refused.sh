#!/bin/bash
# Checkpoints that are broken, each in one way: `tandem pack` says so in one line and writes nothing.
. "$(dirname "$0")/lib.sh"

# le VALUE BYTES - a little-endian number
le()
{
    local i

    for ((i = 0; i < $2; i++)); do
        printf "\\$(printf %03o $(($1 >> 8 * i & 255)))"
    done
}

# tensors FILE "NAME TYPE SHAPE [=HEX]"... - a safetensors file; data are zeros, or the bytes behind =, then zeros
tensors()
{
    local file=$1 header='{' at=0 spec name type shape first size n data=$WORK/data

    shift
    : >"$data"
    for spec in "$@"; do
        read -r name type shape first <<<"$spec"
        case $type in
        *32) size=4 ;;
        *16) size=2 ;;
        *) size=1 ;;
        esac
        for n in ${shape//,/ }; do
            size=$((size * n))
        done
        header+="\"$name\":{\"dtype\":\"$type\",\"shape\":[$shape],\"data_offsets\":[$at,$((at + size))]},"
        at=$((at + size))
        n=0
        if [ -n "$first" ]; then
            first=${first#=}
            n=$((${#first} / 2))
            printf "$(sed 's/../\\x&/g' <<<"$first")" >>"$data"
        fi
        head -c $((size - n)) /dev/zero >>"$data"
    done
    header=${header%,}'}'
    le ${#header} 8 >"$file"
    printf %s "$header" >>"$file"
    cat "$data" >>"$file"
}

GATE='model.layers.0.mlp.gate_proj'
EXL3=("$GATE.trellis I16 8,8,48" "$GATE.suh F16 128" "$GATE.svh F16 128" "$GATE.mul1 I32 1 =2dd1dc83")

# folder NAME TENSOR... - a checkpoint of one layer of 128 values whose gate_proj is made of these tensors
folder()
{
    local l=model.layers.0 at=$WORK/$1

    shift
    mkdir -p "$at"
    cp "$MODEL/tokenizer.json" "$at"
    echo '{"model_type": "llama", "vocab_size": 4096, "hidden_size": 128, "num_hidden_layers": 1, "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128, "rms_norm_eps": 1e-6,
        "rope_theta": 10000, "max_position_embeddings": 64, "tie_word_embeddings": true}' >"$at/config.json"
    tensors "$at/model.safetensors" 'model.embed_tokens.weight BF16 4096,128' 'model.norm.weight BF16 128' \
        "$l.input_layernorm.weight BF16 128" "$l.post_attention_layernorm.weight BF16 128" \
        "$l.self_attn.q_proj.weight BF16 128,128" "$l.self_attn.k_proj.weight BF16 128,128" \
        "$l.self_attn.v_proj.weight BF16 128,128" "$l.self_attn.o_proj.weight BF16 128,128" \
        "$l.mlp.up_proj.weight BF16 128,128" "$l.mlp.down_proj.weight BF16 128,128" "$@"
}

# refused NAME PATTERN - one error line with the pattern, and no trace of a pack
refused()
{
    expect 65 "$2" "$TANDEM" pack "$WORK/$1" "$WORK/out-$1" --ranks 2
    same "$1: nothing is written" no "$([ -e "$WORK/out-$1" ] && echo yes || echo no)"
}

folder whole "${EXL3[@]}"
expect 0 'every digest holds' "$TANDEM" pack "$WORK/whole" "$WORK/packs" --ranks 2 --verify

folder suh "${EXL3[0]}" "$GATE.suh F16 112" "${EXL3[2]}" "${EXL3[3]}"
refused suh "model.safetensors: tensor $GATE.suh: type F16, shape .112., want F16 .128."
folder half "${EXL3[0]}" "${EXL3[1]}" "${EXL3[3]}"
refused half 'neither .*svh nor .*sv is there'
folder codebooks "${EXL3[@]}" "$GATE.mcg I32 1 =ed1faccb"
refused codebooks 'two codebooks in one group'
folder marker "${EXL3[@]:0:3}" "$GATE.mul1 I32 1 =2db1d683"
refused marker 'marker 0x83D6B12D, want 0x83DCD12D'
folder width "$GATE.trellis I16 8,8,72" "${EXL3[@]:1}"
refused width '72 words a tile is no width'
folder nan-suh "${EXL3[0]}" "$GATE.suh F16 128 =0000007e" "${EXL3[@]:2}"
refused nan-suh "$GATE.suh: element 1, offset [0-9]* of the file, is no number"
folder nan-scale "$GATE.weight F8_E4M3 128,128" "$GATE.weight_scale_inv F32 1,1 =0000c07f"
refused nan-scale "$GATE.weight_scale_inv: element 0, offset [0-9]*"
folder nan-code "$GATE.weight F8_E4M3 128,128 =00007f" "$GATE.weight_scale_inv F32 1,1 =0000803f"
refused nan-code "$GATE.weight: element 2, offset [0-9]*"
folder e8m0 "$GATE.weight I8 128,64" "$GATE.scale F8_E8M0 128,4 =7f7fff"
refused e8m0 "$GATE.scale: element 2, offset [0-9]*"
# gate_proj is cut by rows: the last scale lies in the second rank's share
folder late "$GATE.weight I8 128,64" "$GATE.scale F8_E8M0 128,4 =$(printf '7f%.0s' $(seq 511))ff"
refused late "$GATE.scale: element 511, offset [0-9]*"
folder global "$GATE.weight U8 128,64" "$GATE.weight_scale F8_E4M3 128,8" "$GATE.weight_scale_2 F32 1 =0000c07f"
refused global 'global scale nan'
folder leftover "$GATE.weight BF16 128,128" "$GATE.scale F8_E8M0 4,4"
refused leftover 'beside a plain weight'
folder bias "$GATE.weight BF16 128,128" "$GATE.bias BF16 128"
refused bias "model.safetensors: tensor $GATE.bias: a bias that this model does not add"

folder truncated "${EXL3[@]}"
truncate -s -1 "$WORK/truncated/model.safetensors"
refused truncated 'model.safetensors: '
folder tail "${EXL3[@]}"
printf x >>"$WORK/tail/model.safetensors"
refused tail 'model.safetensors: '
folder overlap "${EXL3[@]}"
sed -i 's/\("model.norm.weight":{[^}]*"data_offsets":\)\[1048576,1048832\]/\1[1048320,1048576]/' "$WORK/overlap/model.safetensors"
refused overlap 'model.safetensors: .*tensor'

folder outside "${EXL3[@]}"
echo '{"weight_map": {"model.norm.weight": "../whole/model.safetensors"}}' >"$WORK/outside/model.safetensors.index.json"
refused outside 'is not a plain name in this folder'
folder link "${EXL3[@]}"
mv "$WORK/link/model.safetensors" "$WORK/elsewhere.safetensors"
ln -s ../elsewhere.safetensors "$WORK/link/model.safetensors"
refused link 'a link out of the folder'
folder texts "${EXL3[@]}"
mv "$WORK/texts/config.json" "$WORK/elsewhere.json"
ln -s ../elsewhere.json "$WORK/texts/config.json"
refused texts 'config.json: a link out of the folder'
folder absent "${EXL3[@]}"
echo '{"weight_map": {"model.norm.weight": "model.safetensors", "nowhere": "model.safetensors"}}' \
    >"$WORK/absent/model.safetensors.index.json"
refused absent 'tensor nowhere is not in this file'

# A drafter with tensors that its config does not describe would draft worse and say nothing.
for name in mtp.1.markov_head.gate.weight mtp.2.attn.wkv.weight mtp.0.head.bias; do
    tensors "$WORK/more.safetensors" "$name BF16 4,4"
    expect 65 "tensor $name: the config describes no weight that it belongs to" "$TANDEM" pack "$MODEL" "$WORK/more" \
        --extra "$WORK/more.safetensors"
    same "nothing is left of $name" '' "$(find "$WORK/more" -type f 2>/dev/null)"
done
for name in mtp.1.ffn.more.bias_vl mtp.0.head.weight mtp.1.emb.tok_emb.weight layers.0.more.weight; do
    tensors "$WORK/more.safetensors" "$name BF16 4,4"
    expect 0 'not used' "$TANDEM" pack "$MODEL" "$WORK/more" --extra "$WORK/more.safetensors"
    rm -r "$WORK/more"
done

# Packs that are there are checked against what is asked for, not only against themselves.
folder other "$GATE.weight I8 128,64" "$GATE.scale F8_E8M0 128,4 =$(printf '7f%.0s' $(seq 512))"
expect 1 'rank0.pack: of another checkpoint' "$TANDEM" pack "$WORK/other" "$WORK/packs" --ranks 2 --verify
expect 1 'rank0.pack: of another checkpoint, split or layout' "$TANDEM" pack "$WORK/whole" "$WORK/packs" --ranks 2 --layout cuda --verify
expect 1 'rank0.pack: of another checkpoint, split' "$TANDEM" pack "$WORK/whole" "$WORK/packs" --ranks 1 --verify
expect 0 'every digest holds' "$TANDEM" pack "$WORK/whole" "$WORK/packs" --ranks 2 --verify

# What was there before stays there.
expect 65 'suh' "$TANDEM" pack "$WORK/suh" "$WORK/packs" --ranks 2
same 'packs of before stay' 2 "$(find "$WORK/packs" -name 'rank*.pack' | wc -l)"
mkdir "$WORK/out-suh"
expect 65 'suh' "$TANDEM" pack "$WORK/suh" "$WORK/out-suh"
same 'a folder of somebody stays' 'out-suh' "$(basename "$WORK"/out-suh*)"
same 'and is empty' '' "$(ls -A "$WORK/out-suh")"

finish
