#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   examples/libtorch/get_torch.sh [folder]
#
# Puts libtorch into build/torch, or the folder, where CMake finds it: the newest wheel of torch, and the
# two of CUDA's that its part for the host asks for, unpacked. 1.5 GB. Needs python3 with pip.
set -euo pipefail

folder=${1:-"$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/build/torch"}
if [[ -e "$folder/torch/lib/libtorch_cpu.so" ]]; then
  echo "there is one in $folder"
  exit 0
fi
if [[ -d "$folder" ]] && ! rmdir "$folder"; then
  echo "get_torch.sh: name a folder that is not there, or is empty" >&2
  exit 1
fi
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
python3 -m pip download --quiet --no-deps --dest "$wheels" torch
python3 -m zipfile -e "$wheels"/torch-*.whl "$folder.part"
toolkit=$(sed -n 's/^Requires-Dist: cuda-toolkit\[.*\]==\([0-9.]*\).*/\1/p' \
  "$folder.part"/torch-*.dist-info/METADATA | head -n 1)
if [[ -n "$toolkit" ]]; then
  python3 -m pip download --quiet --dest "$wheels" "cuda-toolkit[cudart,cupti]==$toolkit"
  for wheel in "$wheels"/nvidia_*.whl; do
    python3 -m zipfile -e "$wheel" "$folder.part"
  done
fi
rm -f "$folder.part"/torch/lib/libtorch_cuda*.so "$folder.part"/torch/lib/libtorch_nvshmem.so \
  "$folder.part"/torch/lib/libtorch_python.so
mv "$folder.part" "$folder"
sed -n "s/^__version__ = '\(.*\)'/libtorch \1/p" "$folder/torch/version.py"
