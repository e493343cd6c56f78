#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What the kernels of a step execute, counted on a CUDA device on the CPU, by kernel and step, for
# one rank of 8 and ELEMENTS (10^6) floats in one tensor. Needs nvcc, nlohmann_json and that device,
# which is no part of this repository, and no GPU. No times.
# bench/studies/roofline prints the counts, and what they take at least on named devices.
#
#   bench/cuda/counts.sh [FILE [ELEMENTS]]        instead of bench/results/cuda-counts.json
#   bench/cuda/counts.sh bench/results/cuda-counts-large.json 8388608        tiles of full size: minutes
#
# ONEBIT_PTX_DEVICE   where that device's libcudart.so is, instead of building ../shared/ptx-device
# ONEBIT_BUILT        the program, which is there already

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH="$PATH:/usr/local/cuda/bin"
out="$(realpath -m "${1:-bench/results/cuda-counts.json}")"

device="${ONEBIT_PTX_DEVICE:-}"
if [[ -z "$device" ]]; then
  if [[ ! -d ../shared/ptx-device ]]; then
    echo "skipped: no ../shared/ptx-device"
    exit 77
  fi
  device="$PWD/build/ptx-device"
  make -C ../shared/ptx-device --jobs="$(nproc)" BUILD="$device" >/dev/null
fi
program="${ONEBIT_BUILT:-}"
if [[ -z "$program" ]]; then
  program=build/counts
  mkdir -p build
  # legible PTX: that is what is executed
  nvcc -std=c++20 -O1 --no-compress -DONEBIT_PTX_WITHOUT_FTZ -cudart shared -gencode arch=compute_90,code=compute_90 \
    -Iinclude bench/cuda/counts.cu -o "$program" -L"$device"
fi
LD_LIBRARY_PATH="$device" PTXDEV_QUEUE=lazy "$program" "$out" "${@:2}"
