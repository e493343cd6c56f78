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
# export_of <checkpoint> <folder> <arguments of export.py>
export_of() { "$python" "$source_dir/examples/deepspeed_checkpoint/export.py" "$@"; }
# move <case> <type> <ranks> <optimizer of ours> <arguments of export.py>
move() {
  local type=$2 n=$3 ours=$4 at="$data/$1"
  shift 4
  export_of "$at/checkpoint" "$at/exported" "$@" >"$at/export.log"
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
move zero_one_twice fp32 2 zero_one_adam --resumed 60

# refused <what is wrong> <a part of the message> <arguments of export.py>
refused() {
  local what=$1 message=$2
  shift 2
  if export_of "$@" 2>"$data/refused.log" || ! grep -q -- "$message" "$data/refused.log"; then
    cat "$data/refused.log" >&2
    echo "export.py does not say: $message" >&2
    exit 1
  fi
  echo "  ok   refused: $what"
}

# Groups that are not in the order of the model are refused, not taken for another.
refused "groups in the wrong order" 'does not round to its parameter; list the optimizer' \
  "$data/bf16/checkpoint" "$data/refused"

# Of a job of ZeroOneAdam that was resumed: a guess is called one, and wrong steps are refused.
export_of "$data/zero_one_twice/checkpoint" "$data/zero_one_twice/guessed" 2>&1 >"$data/guessed.log" |
  tee "$data/guessed.told"
grep -q 'DeepSpeed has resumed this job, last at step [56].*give the steps of all resumes' "$data/guessed.told"
refused "steps at which nothing was resumed" '--resumed: after a resume at step 100 the optimizer would' \
  "$data/zero_one_twice/checkpoint" "$data/refused" --resumed 100

# A model that is split over ranks: the files are those of a whole one, and say that they are parts.
"$python" - "$data/fp32/checkpoint" "$data/parts" <<'PYTHON'
import pathlib
import sys

import torch

whole, parts = map(pathlib.Path, sys.argv[1:])
(parts / "step").mkdir(parents=True)
(parts / "latest").write_text("step")
state = torch.load(whole / (whole / "latest").read_text() / "mp_rank_00_model_states.pt", weights_only=True)
for rank in range(2):
    torch.save({**state, "mp_world_size": 2}, parts / "step" / f"mp_rank_{rank:02}_model_states.pt")
PYTHON
refused "a folder with two parts of a model" \
  'split over 2 model-parallel ranks.*mp_rank_00_model_states.pt, mp_rank_01_model_states.pt; run export.py 2 times' \
  "$data/parts" "$data/refused"
export_of "$data/parts/step/mp_rank_01_model_states.pt" "$data/parts/exported" >"$data/parts/export.log"
cmp "$data/parts/exported/parameters.f32" "$data/fp32/exported/parameters.f32"

"$python" "$source_dir/tests/deepspeed/compare.py" "$data"
