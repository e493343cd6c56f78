#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# All that needs a CUDA device, in one go: builds for the device of this machine, tests (backend,
# whole trainings, NCCL, the examples; with one GPU also two processes that share it over NCCL),
# looks for bad memory accesses and races with compute-sanitizer, measures, and looks at the two
# dearest kernels with Nsight Compute. Ends with a table. Installs nothing, but tells what is missing.
# A stage that could not run is a failure, with the name of what it lacks. Without a device it says
# so, and exits with 77.
#
#   tests/gpu.sh [--quick] [--out DIR] [STAGE...]
#   tests/gpu.sh --on-cpu DEVICE [--out DIR]
#
# STAGE        build, tests, processes, memcheck, racecheck, training, benchmarks, torch, profile:
#              these only, in this order, of what is built. Without a STAGE all of them. After the
#              build they take five minutes on an H200
# --on-cpu DEVICE   on a CUDA device made of the CPU, to try build, tests and benchmarks: DEVICE has
#              its libcudart.so and libnccl.so. Benchmarks run once, with small sizes: no figure
#              means anything. Results go to the build directory
# --quick      benchmarks without the large sizes
# --out DIR    where DATE-cuda.txt (all that was printed, by all calls of the day) and DATE-cuda.json
#              (the benchmarks) go, instead of bench/results
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces: -DCMAKE_PREFIX_PATH=DIR, say, where
#                     doctest and the other packages lie in DIR
# ONEBIT_BUILD_DIR    where to build, instead of build/gpu
# NCCL_ROOT           where NCCL is, instead of beside the toolkit or in python3's packages

# shellcheck disable=SC2317 # functions that `stage` calls
set -euo pipefail
here="$PWD"
ran="tests/gpu.sh $*"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/local/cuda/bin"

out="" cpu_device=""
bench=(bench/cuda/run.sh)
stages=()
while (($#)); do
  case "$1" in
    --quick) bench+=(--quick) ;;
    --on-cpu) cpu_device="$(realpath "$2")" && bench+=(--tiny) && shift ;;
    --out) out="$2" && shift ;;
    --out=*) out="${1#--out=}" ;;
    -h | --help) sed -n '/^# All that/,/^$/s/^# \{0,1\}//p' tests/gpu.sh && exit ;;
    build | tests | processes | memcheck | racecheck | training | benchmarks | torch | profile)
      stages+=("$1") ;;
    *) echo "unknown argument: $1" >&2 && exit 2 ;;
  esac
  shift
done
build="${ONEBIT_BUILD_DIR:-build/gpu}"
[[ -n "$out" ]] || { [[ -n "$cpu_device" ]] && out="$build" || out="bench/results"; }
[[ "$out" == /* || "$out" == bench/results || "$out" == "$build" ]] || out="$here/$out"

test_seconds=150
if [[ -z "${NCCL_ROOT:-}" ]] && command -v python3 >/dev/null; then
  NCCL_ROOT="$(python3 -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])' 2>/dev/null || true)"
fi
[[ -z "${NCCL_ROOT:-}" ]] || export NCCL_ROOT LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$NCCL_ROOT/lib"
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

status=0
missing() { echo "missing: $1 ($2)" && status=1; }
has_header() {
  echo "#include <$1>" | g++ -std=c++20 -E -x c++ "${@:2}" - >/dev/null 2>&1
}
wants() {
  local stage
  ((${#stages[@]})) || return 0
  for stage in "${stages[@]}"; do [[ "$stage" != "$1" ]] || return 0; done
  return 1
}
read -r -a cmake_args <<<"${ONEBIT_CMAKE_ARGS:-}" || true
if wants build; then
  for tool in nvcc cmake g++; do
    command -v "$tool" >/dev/null || missing "$tool" "nothing can be built"
  done
  include=(-I/usr/local/cuda/include -I/usr/include/eigen3 "-I${NCCL_ROOT:-/usr}/include")
  for argument in "${cmake_args[@]}"; do
    [[ "$argument" != -DCMAKE_PREFIX_PATH=* ]] ||
      include+=("-I${argument#*=}/include" "-I${argument#*=}/include/eigen3")
  done
  for pair in doctest/doctest.h:doctest-dev benchmark/benchmark.h:libbenchmark-dev \
    CLI/CLI.hpp:libcli11-dev Eigen/Dense:libeigen3-dev nlohmann/json.hpp:nlohmann-json3-dev \
    nccl.h:libnccl-dev; do
    has_header "${pair%:*}" "${include[@]}" ||
      missing "${pair%:*}" "${pair#*:}, or ONEBIT_CMAKE_ARGS=-DCMAKE_PREFIX_PATH=DIR"
  done
  ((status == 0)) || exit "$status"
fi

# -- from here on everything is kept

mkdir -p "$out"
stem="$out/$(date +%F)-cuda"
exec > >(tee -a "$stem.txt") 2>&1
logger=$!
recap=()
# stage <name> <command...>, where it is wanted: goes on after a failure, which the end tells. 77 says
# that it could not run here, and is a failure too.
stage() {
  local name="$1" start=$SECONDS rc=0 word=ok
  wants "$name" || return 0
  shift
  if [[ -n "$cpu_device" && ! "$name" =~ ^(build|tests|benchmarks)$ ]]; then
    recap+=("$(printf '%-28s %6s  not on a CPU' "$name" "")")
    return
  fi
  echo "==> gpu: $name"
  "$@" || rc=$?
  if ((rc == 77)); then
    word="DID NOT RUN"
    status=1
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

build_all() {
  local generator=()
  if [[ ! -e "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DONEBIT_CUDA=ON \
    "${architecture[@]}" "-DCMAKE_CUDA_FLAGS_RELEASE=-O2 -DNDEBUG" -DONEBIT_BUILD_TESTS=ON \
    -DONEBIT_TEST_TIER=all -DONEBIT_BUILD_BENCH=ON -DONEBIT_BUILD_EXAMPLES=ON \
    -DONEBIT_INSTALL=OFF -DONEBIT_TESTS_COMPILED=OFF "${cmake_args[@]}" || return
  cmake --build "$build" --parallel "$(nproc)" --target onebit_device_probe test_cuda test_nccl \
    test_nccl_trainings language_model language_model_cuda language_model_cuda_gradient_check \
    embed_cuda llmc bench_cuda
}
run_tests() {
  local tests='cuda|nccl|nccl_trainings|examples\.language_model_cuda.*|examples\.(embed_cuda|llmc)'
  local log rc=0
  log="$(mktemp)"
  ONEBIT_BUILT=1 ctest --test-dir "$build" --no-tests=error --output-on-failure --timeout "$test_seconds" \
    -R "^($tests)\$" 2>&1 | tee "$log" || rc=$?
  # there is a device: what says that there is none is mistaken
  if grep -q '\*\*\*Skipped' "$log"; then rc=1; fi
  rm -f "$log"
  return "$rc"
}
# in_two_processes <seconds> <log folder> <command...>: as two ranks over NCCL that share device 0, each
# of which passes for a host of its own; ends with what rank 0 printed.
in_two_processes() {
  local seconds="$1" logs="$2" rank rc=0 running=()
  shift 2
  for rank in 0 1; do
    NCCL_HOSTID="onebit$rank" NCCL_SOCKET_IFNAME=lo ONEBIT_NCCL_RANK="$rank" \
      ONEBIT_NCCL_IDS="$logs/id" RANK="$rank" WORLD_SIZE=2 LOCAL_RANK=0 \
      timeout "$seconds" "$@" >"$logs/$rank" 2>&1 &
    running+=("$!")
  done
  for rank in 0 1; do wait "${running[rank]}" || rc=$?; done
  tail -n 30 "$logs/0"
  ((rc == 0)) || tail -n 30 "$logs/1"
  return "$rc"
}
processes() {
  local logs rc=0
  logs="$(mktemp -d)"
  in_two_processes 120 "$logs" "$build/tests/test_nccl_trainings" --duration=true || rc=$?
  local way
  for way in "step by step" "from graphs" "in a step that waits"; do
    rm -rf "$logs" && mkdir "$logs"
    in_two_processes 40 "$logs" "$build/tests/test_nccl_trainings" --no-skip \
      "--test-case=nccl lost rank: $way" || rc=$?
  done
  rm -rf "$logs"
  return "$rc"
}
training() {
  local logs rc=0
  logs="$(mktemp -d)"
  in_two_processes 80 "$logs" "$build/examples/language_model/language_model_cuda" --id-file "$logs/id" \
    --steps 400 --algorithm adam --algorithm one_bit_adam \
    --algorithm zero_one_adam --algorithm lamb --algorithm one_bit_lamb --out "$logs" || rc=$?
  rm -rf "$logs"
  return "$rc"
}
# Slow, so not every training: the backend's own tests, graphs, and the bad gradients.
sanitized() {
  command -v compute-sanitizer >/dev/null || { missing compute-sanitizer "$1" && return 77; }
  local log rc=0
  log="$(mktemp)"
  timeout 120 compute-sanitizer --tool "$1" --error-exitcode 9 "$build/tests/test_cuda" \
    '--test-case=cuda: buffers*,cuda: memory*,cuda stream: a replayed*,cuda trainings: a bad*' \
    >"$log" 2>&1 || rc=$?
  tail -n 25 "$log"
  # what it says of a machine that it cannot work on is no fault of ours
  if grep -qi "device not supported\|unable to find the\|failed to initialize" "$log"; then rc=77; fi
  rm -f "$log"
  return "$rc"
}
measure() { ONEBIT_BUILT=1 ONEBIT_BUILD_DIR="$build" timeout 240 "${bench[@]}" --json "$stem.json"; }
# torch's fused AdamW on as many floats as `benchmarks` gives Adam by hand.
torch() {
  python3 -c 'import torch' 2>/dev/null || { missing torch "its fused AdamW" && return 77; }
  timeout 100 python3 bench/cuda/torch_adamw.py
}
profile() {
  command -v ncu >/dev/null || { missing ncu "Nsight Compute" && return 77; }
  local pass log rc=0
  log="$(mktemp)"
  for pass in encode update; do
    timeout 60 ncu --clock-control none --kernel-name regex:run_on_warps --launch-skip 2 \
      --launch-count 1 --section SpeedOfLight --section MemoryWorkloadAnalysis \
      --section WarpStateStats --section Occupancy --section LaunchStats \
      "$build/bench/bench_cuda_passes" "--benchmark_filter=/$pass/.*67108864" \
      --benchmark_min_time=0 >"$log" 2>&1 || rc=$?
    cat "$log"
    if grep -q "No kernels were profiled\|ERR_NVGPUCTRPERM" "$log"; then rc=1; fi
  done
  rm -f "$log"
  return "$rc"
}

stage build build_all
if ((status == 0)); then
  stage tests run_tests
  stage processes processes
  stage memcheck sanitized memcheck
  stage racecheck sanitized racecheck
  stage training training
  stage benchmarks measure
  stage torch torch
  stage profile profile
fi

echo "==> gpu: summary, on ${device//$'\n'/; }"
printf '%s\n' "${recap[@]}"
echo "gpu: $( ((status == 0)) && echo "${stages[*]:-all} passed" || echo "FAILED") in $SECONDS s; see $stem.txt"
[[ -z "$cpu_device" ]] || echo "gpu: on the CPU: nothing above is a time of a GPU"
exec >&- 2>&-
wait "$logger" 2>/dev/null || true
exit "$status"
