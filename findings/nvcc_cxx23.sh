#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/nvcc_cxx23.sh
#
# nvcc 13.5.37, with g++ 12 as the host's compiler. nvcc takes -std=c++23 now (13.0 refuses the value), and g++ 12
# has a mode of that name. One expects C++23, or an error. nvcc says that the host's compiler does not support
# the flag, drops it, and compiles C++17, its default, in the host's code and the device's. The
# warning has no number, and -Werror all-warnings does not make it an error.
#
# Seen:     flags                                     expected       seen
#           g++-12 -std=c++23                         202100         202100
#           nvcc -std=c++20                           202002         202002
#           nvcc -std=c++23                           202100         201703, a warning
#           nvcc -std=c++23 -Werror all-warnings      an error       201703, a warning, exit status 0
# Fails if one of these changes.
#
# For users whose build gives nvcc c++23 with such a compiler: onebit's headers stop with "onebit needs
# -std=c++20"; other headers become C++17 without an error. Give nvcc c++20.
#
# Needs g++-12. Nothing is launched, so no device is needed.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 \
  nvidia-cuda-crt==13.5.37 nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
toolkit=$(echo "$work"/venv/lib/python3*/site-packages/nvidia/cu13)
export PATH="$toolkit/bin:$PATH"

cat >"$work/mode.cu" <<'CUDA'
#include <cstdio>

int main() { std::printf("%ld\n", __cplusplus); }
CUDA
# mode_of <compiler and flags>: __cplusplus, and whether something was said
mode_of() {
  "$@" "$work/mode.cu" -o "$work/mode" >"$work/said" 2>&1 || { echo "error" && return; }
  local warned=""
  if grep -qi warning "$work/said"; then warned=", a warning"; fi
  echo "$("$work/mode")$warned"
}

nvcc --version | grep release
host=$(mode_of g++-12 -std=c++23 -x c++)
twenty=$(mode_of nvcc -ccbin g++-12 -std=c++20)
plain=$(mode_of nvcc -ccbin g++-12 -std=c++23)
strict=$(mode_of nvcc -ccbin g++-12 -std=c++23 -Werror all-warnings)
echo "SEEN g++-12 -std=c++23: $host; nvcc -std=c++20: $twenty; -std=c++23: $plain; with -Werror: $strict"
[[ "$host" == 202100 && "$twenty" == 202002 ]]
[[ "$plain" == "201703, a warning" && "$strict" == "$plain" ]]
