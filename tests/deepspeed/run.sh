#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   tests/deepspeed/run.sh [folder]
#
# Moves jobs from DeepSpeed 0.19.6, the last release with 1-bit optimizers, to this library: trains with
# it on the CPU (1 and 2 ranks; fp32, bf16, fp16), saves, exports with examples/deepspeed_checkpoint,
# trains on from there, and compares with DeepSpeed's own jobs. Installs the pinned packages into
# build/deepspeed, or the folder, 5.5 GB (torch's wheel brings CUDA's). Fails where it cannot run.
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-"$source_dir/build/deepspeed"}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
python="$folder/venv/bin/python"

# Complete only if this file is there.
if [[ ! -e "$folder/venv/installed" ]]; then
  python3 -m venv --clear "$folder/venv"
  "$python" -m pip install --quiet -r "$source_dir/tests/deepspeed/requirements.txt"
  touch "$folder/venv/installed"
fi
"$python" -c 'import deepspeed, torch; print("DeepSpeed", deepspeed.__version__, "torch", torch.__version__)'

cmake -S "$source_dir" -B "$folder/build" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O0 -DONEBIT_CUDA=OFF \
  -DONEBIT_BUILD_TESTS=OFF -DONEBIT_BUILD_BENCH=OFF -DONEBIT_BUILD_EXAMPLES=ON >"$folder/build.log"
cmake --build "$folder/build" --target deepspeed_checkpoint >>"$folder/build.log"
program="$folder/build/examples/deepspeed_checkpoint/deepspeed_checkpoint"

# ranks <number> <arguments of train.py>: as a launcher starts them.
ranks() {
  local n=$1 rank pids=() failed=0
  shift
  export WORLD_SIZE=$n LOCAL_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
  export TORCH_EXTENSIONS_DIR="$folder/extensions" # DeepSpeed compiles one, with g++
  export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONPATH="$source_dir/tests/deepspeed/cupy_on_host"
  for ((rank = 0; rank < n; ++rank)); do
    RANK=$rank LOCAL_RANK=$rank timeout 1200 "$python" "$source_dir/tests/deepspeed/train.py" "$@" \
      >"$folder/train.$n.$rank.log" 2>&1 &
    pids+=($!)
  done
  for rank in "${!pids[@]}"; do
    wait "${pids[$rank]}" || {
      tail -n 30 "$folder/train.$n.$rank.log"
      failed=1
    }
  done
  return "$failed"
}

data="$folder/jobs"
rm -rf "$data"
mkdir -p "$data"
ranks 2 "$data"
ranks 1 "$data" alone

# The groups of the 16-bit jobs list matrices first.
printf '%s\n' first.weight second.weight first.bias second.bias >"$data/names"
# move <case> <type> <ranks> <optimizer of ours> <arguments of export.py>
move() {
  local case=$1 type=$2 n=$3 ours=$4 at="$data/$1"
  shift 4
  "$python" "$source_dir/examples/deepspeed_checkpoint/export.py" "$at/checkpoint" "$at/exported" "$@" \
    >"$at/export.log"
  "$program" "$at/exported" "$type" "$n" "$at/data.f32" "$at/moved.f32"
  "$program" "$at/exported" "$type" "$n" "$at/data.f32" "$at/ours.f32" "$ours"
}
move warm_up fp32 2 one_bit_adam
move alone fp32 1 one_bit_adam
move fp32 fp32 2 one_bit_adam
move twice fp32 2 one_bit_adam
move bf16 bf16 2 one_bit_adam --names "$data/names"
move fp16 fp16 2 one_bit_adam --names "$data/names"
move zero_one fp32 2 zero_one_adam
move lamb fp32 2 one_bit_lamb

# Groups that are not in the order of the model are refused, not taken for another.
if "$python" "$source_dir/examples/deepspeed_checkpoint/export.py" "$data/bf16/checkpoint" "$data/refused" \
  2>"$data/refused.log"; then
  echo "export.py takes groups in the wrong order" >&2
  exit 1
fi
grep -q 'does not round to its parameter; list the optimizer' "$data/refused.log"

"$python" "$source_dir/tests/deepspeed/compare.py" "$data"
