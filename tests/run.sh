#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the tests and runs them; installs what they need where it is missing (Debian, Ubuntu).
#
#   tests/run.sh [ctest argument...]            for example: tests/run.sh -L golden --verbose
#   tests/run.sh --all [ctest argument...]      all element types, recorded bits, examples, headers ... too
#   tests/run.sh -R NAME                        one test, and builds only that: allocations backend collective
#                                               compressor core faces golden laws laws_long mpi per_tensor rule
#                                               schedule sharded transport
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces
# ONEBIT_BUILD_DIR    where to build, instead of build/tests

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tier=quick examples=OFF build=build/tests time="5 minutes"
if [[ "${1:-}" == --all ]]; then
  tier=all examples=ON build=build/tests-all time="16 minutes"
  shift
fi
# One test: nothing else is built, and no optimizer that other tests share.
only=()
if [[ "${1:-}" == -R && "${2:-}" =~ ^[a-z_]+$ ]]; then
  only=(--target "test_$2")
  build=build/tests-one time="two to five minutes"
  ONEBIT_CMAKE_ARGS="-DONEBIT_TESTS_COMPILED=OFF -DONEBIT_CUDA=OFF ${ONEBIT_CMAKE_ARGS:-}"
  set -- -R "^$2(\\.[0-9]+)?\$" "${@:3}"
fi
build="${ONEBIT_BUILD_DIR:-$build}"

install_missing() {
  command -v dpkg-query >/dev/null || return 0 # not Debian: cmake names what it does not find
  local wanted=(g++ cmake doctest-dev nlohmann-json3-dev libopenmpi-dev openmpi-bin libeigen3-dev
    libcli11-dev)
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
if ! command -v nvcc >/dev/null && [[ ! -x /usr/local/cuda/bin/nvcc ]]; then
  echo "nvcc not found: building without CUDA"
fi

cores="$(nproc)"
# Much template code is compiled, and what it computes must not depend on the level anyway: -O1 where
# a test trains long, else none, and no debug information.
flags="-O1"
# shellcheck disable=SC2086 # CXX may have arguments
if [[ "$(${CXX:-c++} --version 2>/dev/null)" == *"Free Software"* ]]; then # g++ that seldom frees memory: a tenth less time
  flags+=" --param ggc-min-expand=1000 --param ggc-min-heapsize=1000000"
fi
configure=(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=None "-DCMAKE_CXX_FLAGS=$flags"
  -DONEBIT_BRIEF_OPTIONS=-O0
  -DONEBIT_BUILD_TESTS=ON -DONEBIT_TEST_TIER="$tier" -DONEBIT_BUILD_EXAMPLES="$examples"
  -DONEBIT_BUILD_BENCH=OFF -DONEBIT_TORCH=OFF)
if [[ ! -e "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then
  configure+=(-G Ninja)
fi
read -r -a more <<<"${ONEBIT_CMAKE_ARGS:-}" || true
"${configure[@]}" "${more[@]}"
echo "building the tests: about $time with their run on two cores, the first time"
cmake --build "$build" --parallel "$cores" "${only[@]}"
echo "running the tests"
status=0
CTEST_PARALLEL_LEVEL="${CTEST_PARALLEL_LEVEL:-$cores}" \
  ctest --test-dir "$build" --no-tests=error --output-on-failure "$@" || status=$?
# ctest names the tests that were skipped, but does not say why.
grep -h "no shaped network here" "$build/Testing/Temporary/LastTest.log" | sort -u || true
exit "$status"
