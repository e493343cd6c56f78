#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# All that needs a CUDA device, in one go of less than 8 minutes: builds for the device of this
# machine, tests (backend, whole trainings, NCCL, the example), looks for bad memory accesses with
# compute-sanitizer, and measures. Ends with a table. Installs nothing, but tells what is missing.
# Without a device it says so, and exits with 77.
#
#   tests/gpu.sh [--quick] [--out DIR]
#   tests/gpu.sh --on-cpu DEVICE [--out DIR]
#
# --on-cpu DEVICE   on a CUDA device made of the CPU, to try this script and the programs: DEVICE has
#              its libcudart.so and libnccl.so. Benchmarks run once, with small sizes: no figure
#              means anything. Results go to the build directory
# --quick      benchmarks without the large sizes
# --out DIR    where DATE-cuda.txt (all that was printed) and DATE-cuda.json (the benchmarks) go,
#              instead of bench/results
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces
# ONEBIT_BUILD_DIR    where to build, instead of build/gpu
# ONEBIT_BUILT        not empty: that directory is configured and built already

# shellcheck disable=SC2317 # functions that `stage` calls
set -euo pipefail
here="$PWD"
ran="tests/gpu.sh $*"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/local/cuda/bin"

out="" cpu_device=""
bench=(bench/cuda/run.sh)
while (($#)); do
  case "$1" in
    --quick) bench+=(--quick) ;;
    --on-cpu) cpu_device="$(realpath "$2")" && bench+=(--tiny) && shift ;;
    --out) out="$2" && shift ;;
    --out=*) out="${1#--out=}" ;;
    -h | --help) sed -n '/^# All that/,/^$/s/^# \{0,1\}//p' tests/gpu.sh && exit ;;
    *) echo "unknown argument: $1" >&2 && exit 2 ;;
  esac
  shift
done
build="${ONEBIT_BUILD_DIR:-build/gpu}"
[[ -n "$out" ]] || { [[ -n "$cpu_device" ]] && out="$build" || out="bench/results"; }
[[ "$out" == /* || "$out" == bench/results || "$out" == "$build" ]] || out="$here/$out"

test_seconds=150
architecture=(-DCMAKE_CUDA_ARCHITECTURES=native)
if [[ -n "$cpu_device" ]]; then
  device="a CPU that executes PTX ($cpu_device)"
  export LD_LIBRARY_PATH="$cpu_device${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  export PTXDEV_QUEUE="${PTXDEV_QUEUE:-lazy}" PTXDEV_DEVICES="${PTXDEV_DEVICES:-4}"
  test_seconds=500
  # it reads PTX out of the programs, and has no driver of its own
  architecture=(-DCMAKE_CUDA_ARCHITECTURES=90-virtual -DCMAKE_CUDA_RUNTIME_LIBRARY=Shared
    -DCMAKE_CUDA_FLAGS=--no-compress)
elif ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: no CUDA device (nvidia-smi finds none)"
  exit 77
else
  device="$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader)"
fi

# -- what is here

missing() { echo "missing: $1 ($2)"; }
for tool in nvcc cmake g++; do
  if ! command -v "$tool" >/dev/null; then
    missing "$tool" "nothing can be built"
    exit 1
  fi
done
has_header() {
  echo "#include <$1>" | g++ -std=c++20 -E -x c++ "${@:2}" - >/dev/null 2>&1
}
with_tests=ON with_bench=ON
include=(-I/usr/local/cuda/include)
read -r -a cmake_args <<<"${ONEBIT_CMAKE_ARGS:-}" || true
for argument in "${cmake_args[@]}"; do
  [[ "$argument" != -DCMAKE_PREFIX_PATH=* ]] || include+=("-I${argument#*=}/include")
done
has_header doctest/doctest.h "${include[@]}" ||
  { missing doctest "no tests: doctest-dev, or -DCMAKE_PREFIX_PATH" && with_tests=OFF; }
has_header benchmark/benchmark.h "${include[@]}" ||
  { missing "Google Benchmark" "no benchmarks: libbenchmark-dev" && with_bench=OFF; }
for pair in CLI/CLI.hpp:libcli11-dev Eigen/Dense:libeigen3-dev nlohmann/json.hpp:nlohmann-json3-dev; do
  has_header "${pair%:*}" "${include[@]}" -I/usr/include/eigen3 ||
    missing "${pair%:*}" "no trainer: ${pair#*:}"
done
has_header nccl.h "${include[@]}" || missing NCCL "no tests of it, no trainer, no exchanges"
sanitizer="$(command -v compute-sanitizer || true)"
[[ -n "$sanitizer" || -n "$cpu_device" ]] || missing compute-sanitizer "no check of memory accesses"

# -- from here on everything is kept

mkdir -p "$out"
stem="$out/$(date +%F)-cuda"
exec > >(tee "$stem.txt") 2>&1
logger=$!
status=0
recap=()
# stage <name> <command...>: goes on after a failure, which the end tells; 77 is skipped.
stage() {
  local name="$1" start=$SECONDS rc=0 word=ok
  shift
  echo "==> gpu: $name"
  "$@" || rc=$?
  if ((rc == 77)); then
    word=skipped
  elif ((rc != 0)); then
    word="FAILED ($rc)"
    status=1
  fi
  recap+=("$(printf '%-28s %4d s  %s' "$name" $((SECONDS - start)) "$word")")
}

echo "command: $ran"
echo "date:    $(date -u '+%F %T') UTC"
echo "device:  ${device//$'\n'/; }"
nvcc --version | tail -n 2 | head -n 1
echo "commit:  $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"

configure() {
  [[ -z "${ONEBIT_BUILT:-}" ]] || return 77
  local generator=()
  if [[ ! -e "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DONEBIT_CUDA=ON \
    "${architecture[@]}" "-DCMAKE_CUDA_FLAGS_RELEASE=-O2 -DNDEBUG" \
    "-DONEBIT_BUILD_TESTS=$with_tests" -DONEBIT_TEST_TIER=all \
    "-DONEBIT_BUILD_BENCH=$with_bench" -DONEBIT_BUILD_EXAMPLES=ON \
    -DONEBIT_INSTALL=OFF -DONEBIT_TESTS_COMPILED=OFF "${cmake_args[@]}"
}
has_target() { cmake --build "$build" --target help | grep -E "(^|[ /])$1(:|\$| )" >/dev/null; }
build_all() {
  [[ -z "${ONEBIT_BUILT:-}" ]] || return 77
  local target targets=()
  for target in onebit_device_probe test_cuda test_nccl test_nccl_trainings language_model \
    language_model_cuda language_model_cuda_gradient_check embed_cuda bench_cuda; do
    if has_target "$target"; then targets+=("$target"); fi
  done
  ((${#targets[@]})) || return 77
  cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}"
}
run_tests() {
  [[ "$with_tests" == ON ]] || return 77
  local tests='cuda|nccl|nccl_trainings|examples\.language_model_cuda.*|examples\.embed_cuda'
  [[ -n "$cpu_device" ]] || tests+='|cuda\.(spills|fast_math_fails)' # of the compiler alone
  local log rc=0
  log="$(mktemp)"
  ctest --test-dir "$build" --no-tests=error --output-on-failure --timeout "$test_seconds" \
    -R "^($tests)\$" 2>&1 | tee "$log" || rc=$?
  # there is a device: what says that there is none is mistaken
  if grep -q '\*\*\*Skipped' "$log"; then rc=1; fi
  rm -f "$log"
  return "$rc"
}
# Slow, so not every training: the backend's own tests, graphs, and the bad gradients.
memcheck() {
  [[ -z "$cpu_device" && -n "$sanitizer" && -x "$build/tests/test_cuda" ]] || return 77
  timeout 120 "$sanitizer" --tool memcheck --leak-check no --error-exitcode 9 \
    "$build/tests/test_cuda" \
    '--test-case=cuda: buffers*,cuda: memory*,cuda stream: a replayed*,cuda trainings: a bad*'
}
# What the sanitizer says of a machine that it cannot work on is no fault of ours.
memcheck_where_it_works() {
  local log rc=0
  log="$(mktemp)"
  memcheck >"$log" 2>&1 || rc=$?
  tail -n 25 "$log"
  if grep -qi "device not supported\|unable to find the\|failed to initialize" "$log"; then rc=77; fi
  if ((rc == 124)); then echo "compute-sanitizer: out of time" && rc=77; fi
  rm -f "$log"
  return "$rc"
}
measure() {
  [[ "$with_bench" == ON ]] || return 77
  ONEBIT_BUILT=1 ONEBIT_BUILD_DIR="$build" timeout 240 "${bench[@]}" --json "$stem.json"
}

stage "configure" configure
((status == 0)) && stage "build" build_all
if ((status == 0)); then
  stage "tests" run_tests
  stage "compute-sanitizer memcheck" memcheck_where_it_works
  stage "benchmarks" measure
fi

echo "==> gpu: summary, on ${device//$'\n'/; }"
printf '%s\n' "${recap[@]}"
echo "gpu: $( ((status == 0)) && echo "all passed" || echo "FAILED") in $SECONDS s; see $stem.txt"
[[ -z "$cpu_device" ]] || echo "gpu: on the CPU: nothing above is a time of a GPU"
exec >&- 2>&-
wait "$logger" 2>/dev/null || true
exit "$status"
