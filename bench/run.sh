#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the benchmarks and runs all of them; installs what they need where it is missing (Debian,
# Ubuntu). Ends with a table of the figures that matter. Takes about five minutes.
#
#   bench/run.sh [--quick] [--json FILE] [Google Benchmark argument...]
#
# --quick        leaves the large sizes out: a minute, and no figures at memory speed
# --json FILE    all results in one JSON file, in Google Benchmark's form, and the exchanges as a picture beside
#                it, FILE.svg, where gnuplot is
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces
# ONEBIT_BUILD_DIR    where to build, instead of build/bench

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/common.sh

json=""
arguments=()
while (($#)); do
  case "$1" in
    --quick) export ONEBIT_BENCH_QUICK=1 ;;
    --json) json="$2" && shift ;;
    --json=*) json="${1#--json=}" ;;
    -h | --help) sed -n '/^# Builds/,/^$/s/^# \{0,1\}//p' bench/run.sh && exit ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
[[ -z "$json" || "$json" == /* ]] || json="$here/$json"

wanted=(g++ cmake libbenchmark-dev libcli11-dev libopenmpi-dev openmpi-bin)
command -v ninja >/dev/null || wanted+=(make)
install_missing "${wanted[@]}"
build="${ONEBIT_BUILD_DIR:-build/bench}"
configure=(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_TESTS=OFF
  -DONEBIT_BUILD_EXAMPLES=OFF -DONEBIT_BUILD_BENCH=ON -DONEBIT_CUDA=OFF)
if [[ ! -e "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then
  configure+=(-G Ninja)
fi
read -r -a more <<<"${ONEBIT_CMAKE_ARGS:-}" || true
"${configure[@]}" "${more[@]}" >/dev/null
cmake --build "$build" --parallel "$(nproc)"

# -- running: each program writes one JSON file

results="$build/results"
rm -rf "$results"
mkdir -p "$results"
run() { # result, seconds per benchmark, command
  local out="$results/$1.json" seconds="$2"
  shift 2
  "$@" --benchmark_min_time="$seconds" --benchmark_out="$out" --benchmark_out_format=json \
    "${arguments[@]}"
}
mpi() { # ranks, program; the ring is the fastest of Open MPI's allreduces for large vectors
  mpirun --oversubscribe -np "$1" --mca mpi_yield_when_idle 1 \
    --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4 "${@:2}"
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

programs="$build/bench"
run passes 0.2 "$programs/bench_passes"
run steps 1 "$programs/bench_steps"
sizes=65536,262144,1048576
[[ -n "${ONEBIT_BENCH_QUICK:-}" ]] || sizes+=,4194304,16777216,67108864
exchange=("$programs/bench_exchange" --size "$sizes" --compressor sign --collective
  gather_scatter,all_gather,dense,dense_transport,dense_transport_bf16)
run exchange 0 "${exchange[@]}" --ranks 2,4
if [[ "$("${exchange[0]}" --help)" == *mpi* ]] && command -v mpirun >/dev/null; then
  for ranks in 2 4; do
    run "exchange_mpi_$ranks" 0 mpi "$ranks" "${exchange[@]}" --transport mpi
  done
fi

summarise "$results" "$json" bench/summary.awk
if [[ -n "$json" ]] && command -v gnuplot >/dev/null; then bench/plot.sh "${json%.json}.svg" "$json"; fi
