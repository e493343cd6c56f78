#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   ./examples/run.sh [language_model | image_classifier | fine_tuning] [arguments]
#
# Builds the program, the language model unless said otherwise, in build/examples, after installing
# what is missing for it, and trains with every optimizer; with a GPU and a CUDA toolkit, and no
# arguments, also the language model on the GPU. All further arguments go to the program:
# see ./examples/run.sh --help (bench/studies/run.sh runs our studies so, too.)
set -euo pipefail

program=language_model folder=examples
if [[ ${1-} =~ ^(language_model|image_classifier|fine_tuning)$ ]]; then
  program=$1
  shift
elif [[ ${1-} =~ ^(ablations|long_language_model|noise|outer_steps|roofline|tasks)$ ]]; then
  program=$1 folder=bench/studies
  shift
fi

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir="$source_dir/build/examples"

# package, and the command or file that tells that it is there, however it was installed
needed=(
  "cmake cmake"
  "g++ g++"
  "make make"
  "libeigen3-dev /usr/include/eigen3/Eigen/Core"
  "libcli11-dev /usr/include/CLI/CLI.hpp"
  "nlohmann-json3-dev /usr/include/nlohmann/json.hpp"
  "libopenmpi-dev mpicxx"
  "openmpi-bin mpirun"
)
if [[ $program == language_model ]]; then
  needed+=("bible-kjv bible" "gnuplot-nox gnuplot")
elif [[ $program =~ ^(ablations|fine_tuning|long_language_model|outer_steps)$ ]]; then
  needed+=("bible-kjv bible")
elif [[ $program == image_classifier ]]; then
  needed+=("dataset-fashion-mnist /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
fi
missing=()
for line in "${needed[@]}"; do
  read -r package sign <<<"$line"
  if [[ $sign == /* ]]; then
    [[ -e $sign ]] || missing+=("$package")
  else
    command -v "$sign" >/dev/null || missing+=("$package")
  fi
done

if ((${#missing[@]} > 0)); then
  as_root=()
  if ((EUID != 0)); then
    as_root=(sudo)
    [[ -t 0 ]] || as_root+=(-n) # nobody is there to type a password
  fi
  if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    echo "run.sh: some packages are missing; install them with" >&2
    echo "  sudo apt-get update &&" \
      "sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "installing ${missing[*]}" >&2
  "${as_root[@]}" apt-get -qq update >/dev/null
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
fi

export PATH="$PATH:/usr/local/cuda/bin"
if ! command -v nvcc >/dev/null; then
  echo "nvcc not found: building without CUDA" >&2
fi

log="$build_dir/build.log"
mkdir -p "$build_dir"
echo "building $program: a minute or two on two cores, the first time" >&2
if ! {
  cmake -S "$source_dir" -B "$build_dir" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_EXAMPLES=ON \
    -DONEBIT_BUILD_TESTS=OFF -DONEBIT_BUILD_BENCH=OFF -DONEBIT_CUDA=OFF -DONEBIT_TORCH=OFF &&
    cmake --build "$build_dir" --target "$program" --parallel
} >"$log" 2>&1; then
  cat "$log" >&2
  echo "run.sh: the build failed; this was $log" >&2
  exit 1
fi

arguments=()
if [[ $program == language_model ]]; then
  arguments=(--out "$build_dir") # later options win, so one given by the user overrides it
fi
"$build_dir/$folder/$program/$program" "${arguments[@]}" "$@"

# The trainers above run on the host. With a GPU and a CUDA toolkit, another one runs there too.
if [[ $program == language_model && $# -eq 0 ]] && command -v nvcc >/dev/null &&
  command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
  build_dir+=-cuda
  log="$build_dir/build.log"
  mkdir -p "$build_dir"
  echo "building language_model_cuda: some minutes, the first time" >&2
  if ! {
    cmake -S "$source_dir" -B "$build_dir" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_EXAMPLES=ON \
      -DONEBIT_BUILD_TESTS=OFF -DONEBIT_BUILD_BENCH=OFF -DONEBIT_CUDA=ON \
      -DCMAKE_CUDA_ARCHITECTURES=native &&
      cmake --build "$build_dir" --target language_model_cuda --parallel
  } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "run.sh: the build for the GPU failed (is NCCL installed?); this was the end of $log" >&2
    exit 1
  fi
  echo "Adam and 1-bit Adam on the GPU:"
  "$build_dir/examples/language_model/language_model_cuda" --out "$build_dir"
fi
