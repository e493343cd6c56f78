#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/mpich_lost_messages.sh [folder with a virtual environment that has the packages]
#
# MPICH 5.0.2 (wheel of PyPI), two ranks on one host, each in a user namespace of its own, as rootless
# containers that are started one for each rank. Messages above some kilobytes are read out of the
# sender's memory there, which the kernel refuses. MPI_Sendrecv returns that error. Nonblocking
# collectives do not: MPI_Wait of MPI_Ialltoall, MPI_Iallgather and MPI_Iallreduce returns
# MPI_SUCCESS, and nothing of the other rank is in the buffer. Small messages arrive.
#
# Seen, of 64 KiB from the other rank:
#     call               one namespace     one for each rank: expected     seen
#     MPI_Sendrecv       arrives           arrives, or an error            an error
#     MPI_Ialltoall      arrives           arrives, or an error            MPI_SUCCESS, nothing arrives
#     MPI_Iallgather     arrives           arrives, or an error            MPI_SUCCESS, nothing arrives
#     MPI_Iallreduce     arrives           arrives, or an error            MPI_SUCCESS, nothing arrives
# Fails if one of these changes.
#
# For users with a container for each rank: MPIR_CVAR_CH4_CMA_ENABLE=0 helps, and so do shared user and PID
# namespaces. onebit::mpi sums over its ranks when it is built, and throws if nothing arrives.
#
# Needs a C compiler, and a kernel that lets this user make user namespaces.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet mpich==5.0.2
fi
cat >"$work/seen.c" <<'C'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { n = 16384 };
static int sent[2 * n], got[2 * n];

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, code = MPI_SUCCESS, arrived = 0;
  MPI_Comm all;
  MPI_Request request;
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  MPI_Comm_set_errhandler(all, MPI_ERRORS_RETURN);
  MPI_Comm_rank(all, &rank);
  for (int i = 0; i < 2 * n; ++i) {
    sent[i] = rank + 1;
    got[i] = -1;
  }
  const char* names[] = {"MPI_Sendrecv", "MPI_Ialltoall", "MPI_Iallgather", "MPI_Iallreduce"};
  const int what = atoi(argv[1]);
  if (what == 0) {
    code = MPI_Sendrecv(sent, n, MPI_INT, 1 - rank, 0, got, n, MPI_INT, 1 - rank, 0, all,
                        MPI_STATUS_IGNORE);
  } else {
    if (what == 1) code = MPI_Ialltoall(sent, n, MPI_INT, got, n, MPI_INT, all, &request);
    if (what == 2) code = MPI_Iallgather(sent, n, MPI_INT, got, n, MPI_INT, all, &request);
    if (what == 3) code = MPI_Iallreduce(sent, got, n, MPI_INT, MPI_SUM, all, &request);
    if (code == MPI_SUCCESS) code = MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  for (int i = 0; i < 2 * n; ++i) arrived += got[i] == (what == 3 ? 3 : 2 - rank);
  if (rank == 0) {
    printf("%s: %s, %d of %d arrived\n", names[what], code == MPI_SUCCESS ? "MPI_SUCCESS" : "error",
           arrived, n);
  }
  MPI_Finalize();
}
C
"$venv/bin/mpicc" "$work/seen.c" -o "$work/seen" -Wl,-rpath,"$venv/lib"
unset MPIR_CVAR_CH4_CMA_ENABLE
one="" each="" apart=(unshare --user --map-root-user)
"${apart[@]}" true || { echo "this user may not make user namespaces" >&2; exit 1; }
for what in 0 1 2 3; do
  one+="$(timeout 60 "$venv/bin/mpirun" -np 2 "$work/seen" "$what" 2>>"$work/log")"$'\n'
  each+="$(timeout 60 "$venv/bin/mpirun" -np 2 "${apart[@]}" "$work/seen" "$what" 2>>"$work/log" |
    grep arrived)"$'\n'
done
sed -n '/./s/^/SEEN one namespace: /p' <<<"$one"
sed -n '/./s/^/SEEN one each: /p' <<<"$each"
[[ "$(grep -c "MPI_SUCCESS, 16384 of 16384" <<<"$one")" == 4 ]] || { cat "$work/log" >&2; exit 1; }
# sums of what lies in memory are right by chance in a few places
[[ "$(sed -E 's/, [0-9]{1,2} of 16384 arrived//' <<<"$each")" == "MPI_Sendrecv: error
MPI_Ialltoall: MPI_SUCCESS
MPI_Iallgather: MPI_SUCCESS
MPI_Iallreduce: MPI_SUCCESS" ]]
