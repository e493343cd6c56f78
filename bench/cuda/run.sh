#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the benchmarks for CUDA devices and runs all of them; ends with a table of the figures that
# matter. Installs nothing. Without a device it says so, and exits with 77.
#
#   bench/cuda/run.sh [--quick | --tiny] [--json FILE] [Google Benchmark argument...]
#
# --quick        leaves the large sizes out, where memory is the limit
# --tiny         small sizes once: does everything run? Fails where something was not measured
# --json FILE    all results in one JSON file, in Google Benchmark's form
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces
# ONEBIT_BUILD_DIR    where to build, instead of build/bench-cuda
# ONEBIT_BUILT        not empty: the programs are there already

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
export PATH="$PATH:/usr/local/cuda/bin"
source bench/common.sh

json=""
arguments=()
tiny="" seconds=0.05
while (($#)); do
  case "$1" in
    --quick) export ONEBIT_BENCH_QUICK=1 ;;
    --tiny) export ONEBIT_BENCH_TINY=1 && tiny=1 seconds=0 ;;
    --json) json="$2" && shift ;;
    --json=*) json="${1#--json=}" ;;
    -h | --help) sed -n '/^# Builds/,/^$/s/^# \{0,1\}//p' bench/cuda/run.sh && exit ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
[[ -z "$json" || "$json" == /* ]] || json="$here/$json"

build="${ONEBIT_BUILD_DIR:-build/bench-cuda}"
if [[ -z "${ONEBIT_BUILT:-}" ]]; then
  configure=(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_TESTS=OFF
    -DONEBIT_BUILD_EXAMPLES=OFF -DONEBIT_BUILD_BENCH=ON -DONEBIT_CUDA=ON)
  if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    configure+=(-DCMAKE_CUDA_ARCHITECTURES=native)
  fi
  read -r -a more <<<"${ONEBIT_CMAKE_ARGS:-}" || true
  "${configure[@]}" "${more[@]}" >/dev/null
  cmake --build "$build" --parallel "$(nproc)" --target bench_cuda
fi

# -- running: each program writes one JSON file

results="$build/results-cuda"
rm -rf "$results"
mkdir -p "$results"
n_run=0
size=1048576,16777216,268435456 repetitions=0
[[ -z "${ONEBIT_BENCH_QUICK:-}" ]] || size=1048576,16777216
[[ -z "$tiny" ]] || size=16384 repetitions=3
exchange=(--transport nccl --compressor sign --size "$size" --repetitions "$repetitions"
  --collective "gather_scatter,all_gather,hierarchical,dense,dense_transport")
for name in passes steps exchange; do
  program="$build/bench/bench_cuda_$name"
  if [[ ! -x "$program" ]]; then
    echo "bench_cuda_$name was not built: it needs Google Benchmark, and exchange NCCL and CLI11 as well"
    continue
  fi
  status=0
  own=()
  [[ "$name" != exchange ]] || own=("${exchange[@]}")
  "$program" "${own[@]}" --benchmark_min_time="$seconds" --benchmark_out="$results/$name.json" \
    --benchmark_out_format=json "${arguments[@]}" || status=$?
  ((status == 0 || status == 77)) || exit "$status"
  ((status == 77)) || n_run=$((n_run + 1))
done
((n_run > 0)) || exit 77
if [[ -n "$tiny" ]] && grep -h '"error_message"' "$results"/*.json; then exit 1; fi

summarise "$results" "$json" bench/cuda/summary.awk
