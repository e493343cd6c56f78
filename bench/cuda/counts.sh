#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What the kernels of a step execute, counted on a CUDA device on the CPU: a table by algorithm and
# kernel, for one rank of 8 and 10^6 floats in one tensor. Needs nvcc, and no GPU. No times.
#
#   bench/cuda/counts.sh [DIRECTORY]        the device's own counts are kept in DIRECTORY
#
# ONEBIT_PTX_DEVICE   where that device's libcudart.so is, instead of building ../shared/ptx-device

set -euo pipefail
out="$(realpath -m "${1:-$(mktemp -d)}")"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH="$PATH:/usr/local/cuda/bin"

device="${ONEBIT_PTX_DEVICE:-}"
if [[ -z "$device" ]]; then
  if [[ ! -d ../shared/ptx-device ]]; then
    echo "skipped: no ../shared/ptx-device"
    exit 77
  fi
  device="$PWD/build/ptx-device"
  make -C ../shared/ptx-device --jobs="$(nproc)" BUILD="$device" >/dev/null
fi
mkdir -p build "$out"
# legible PTX: that is what is executed
nvcc -std=c++20 -O1 --no-compress -cudart shared -gencode arch=compute_90,code=compute_90 \
  -Iinclude bench/cuda/counts.cu -o build/counts -L"$device"
LD_LIBRARY_PATH="$device" PTXDEV_QUEUE=lazy build/counts "$out"

echo "By element of the vector: PTX instructions of all threads, the same if a warp's counts for 32,"
echo "and bytes in 32-byte sectors, read and written. By word: loads and syncs of a warp."
for name in one_bit_adam one_bit_lamb zero_one_adam adam lamb; do
  LC_ALL=C awk -F'\t' -v n=1000000 -v name="$name" -f bench/cuda/counts.awk "$out/$name.tsv"
done
