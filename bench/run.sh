#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the benchmarks and runs all of them; installs what they need where it is missing (Debian,
# Ubuntu). Ends with a table of the figures that matter. Takes about five minutes.
#
#   bench/run.sh [--quick] [--json FILE] [Google Benchmark argument...]
#
# --quick        leaves the large sizes out: a minute, and no figures at memory speed
# --json FILE    all results in one JSON file, in Google Benchmark's form
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces
# ONEBIT_BUILD_DIR    where to build, instead of build/bench

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

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

install_missing() {
  command -v dpkg-query >/dev/null || return 0 # not Debian: cmake names what it does not find
  local wanted=(g++ cmake libbenchmark-dev libopenmpi-dev openmpi-bin)
  command -v ninja >/dev/null || wanted+=(make)
  local package missing=()
  for package in "${wanted[@]}"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get)
  if ((EUID != 0)); then
    if ! sudo -n true 2>/dev/null; then
      echo "run this first: sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
      exit 1
    fi
    apt=(sudo "${apt[@]}")
  fi
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
}

install_missing
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
run exchange 0.05 "$programs/bench_exchange"
if [[ -x "$programs/bench_exchange_mpi" ]] && command -v mpirun >/dev/null; then
  for ranks in 2 4; do
    run "exchange_mpi_$ranks" 0 mpi "$ranks" "$programs/bench_exchange_mpi"
  done
fi

# -- results: Google Benchmark writes one key per line, so awk is all that is needed

files=()
for file in "$results"/*.json; do
  if [[ -s "$file" ]] && grep -q '"name"' "$file"; then files+=("$file"); fi
done
if ((${#files[@]} == 0)); then
  echo "no benchmark was run"
  exit
fi
if [[ -n "$json" ]]; then
  { # the context of the first file, the benchmarks of all
    sed '/"benchmarks": \[/q' "${files[0]}"
    first=1
    for file in "${files[@]}"; do
      ((first)) || echo "    ,"
      first=0
      awk '/^  \]/ { inside = 0 } inside; /"benchmarks": \[/ { inside = 1 }' "$file"
    done
    printf '  ]\n}\n'
  } >"$json"
fi
cat "${files[@]}" | awk -f bench/summary.awk
