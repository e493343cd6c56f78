#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Where does compression pay? Model sizes x compute per step (the batch) x bandwidths x methods, each
# cell executed: whole steps of onebit's optimizers against a 16-bit ring that hides behind the
# backward pass (bench_grid_mpi), among nodes joined by shaped links (network.sh: needs root). Prints
# where they gain, and how often the advisor, by its own measurements of the same network, says so.
# Takes ten minutes for 2 ranks on two cores.
#
#   bench/grid.sh [option...]
#
# --ranks N          nodes, of one rank each (2)
# --rates LIST       of every port (100mbit,1gbit,2.7gbit,10gbit,40gbit)
# --sizes LIST       parameters, as powers of two (18,20,22)
# --compute LIST     forward and backward, ns per parameter (1,4,16,64)
# --seconds S        aim of measuring per cell (3)
# --out PREFIX       writes PREFIX.json, PREFIX.txt and PREFIX.svg (build/network/results/grid)
# --from FILE.json   measures nothing, and prints and draws what was measured
#
# What a port lets pass at full speed after a pause (--burst of network.sh) is small where it is slow,
# so that short messages are not as if there were no limit; a busy machine then gives less than the
# rate: what the advisor measured stands in the table.

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/common.sh

absolute() { [[ "$1" == /* ]] && echo "$1" || echo "$here/$1"; }
ranks=2 rates=100mbit,1gbit,2.7gbit,10gbit,40gbit sizes=18,20,22 compute=1,4,16,64 seconds=3
build="${ONEBIT_BUILD_DIR:-build/network}"
out="$build/results/grid" from=""
command="bench/grid.sh${*:+ $*}"
while (($#)); do
  case "$1" in
    -h | --help) sed -n '/^# Where does/,/^$/s/^# \{0,1\}//p' bench/grid.sh && exit ;;
    --ranks) ranks="$2" ;;
    --rates) rates="$2" ;;
    --sizes) sizes="$2" ;;
    --compute) compute="$2" ;;
    --seconds) seconds="$2" ;;
    --out) out="$(absolute "$2")" ;;
    --from) from="$(absolute "$2")" ;;
    *) echo "grid.sh: unknown argument $1; see --help" >&2 && exit 2 ;;
  esac
  shift 2
done

mkdir -p "$(dirname "$out")"
if [[ -z "$from" ]]; then
  install_missing g++ cmake make iproute2 util-linux libopenmpi-dev openmpi-bin gnuplot-nox \
    libcli11-dev
  cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_TESTS=OFF \
    -DONEBIT_BUILD_EXAMPLES=OFF -DONEBIT_BUILD_BENCH=ON -DONEBIT_CUDA=OFF >/dev/null
  cmake --build "$build" --parallel "$(nproc)" --target bench_grid_mpi >&2
  : >"$out.json"
  for rate in ${rates//,/ }; do
    case "$rate" in 100mbit) burst=32kb ;; 1gbit) burst=128kb ;; 40gbit) burst=1mb ;; *) burst=256kb ;; esac
    bench/network.sh "$rate" "$ranks" --burst "$burst" --timeout 3600 --run \
      "$build/bench/bench_grid_mpi" --rate="$rate" --sizes="$sizes" --compute="$compute" \
      --seconds="$seconds" --json="$out.$rate.json" >&2
    cat "$out.$rate.json" >>"$out.json"
    rm "$out.$rate.json"
  done
  from="$out.json"
fi

{
  echo "command: $command"
  echo
  awk -v data="$out.dat" '
  function value(name,   text) {
    if (!match($0, "\"" name "\": *\"?[^,\"}]+")) return ""
    text = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: *"?/, "", text)
    return text
  }
  function side(gain, least) { return gain + 0 >= least }
  function best(of, by, gain) { if (gain + 0 > of[cell, by]) of[cell, by] = gain + 0 }
  function share(part, all) { return sprintf("%d of %d, %.1f %%", part, all, 100 * part / all) }
  function times(x) { return x + 0 < 10 ? sprintf("%.2f", x) : sprintf("%.0f", x) }
  {
    rate = value("rate"); n = value("n"); c = value("compute_ns"); by = value("algorithm")
    cell = rate SUBSEP n SUBSEP c
    if (!(cell in seen)) { seen[cell] = 1; cells[++n_cells] = cell }
    if (!(rate in gbit)) rates[++n_rates] = rate
    gbit[rate] += value("gbit"); n_gbit[rate]++
    if (!(n in is_size)) { is_size[n] = 1; sizes[++n_sizes] = n }
    if (!(c in is_compute)) { is_compute[c] = 1; computes[++n_computes] = c }
    ranks = value("ranks")
    run = value("run_gain"); said = value("predicted_run_gain")
    if (by ~ /^papers/) { ++n_papers; papers += side(run, 1.05); papers_lose += !side(run, 0.95); next }
    best(measured, by, run); best(predicted, by, said)
    best(measured, "any", run); best(predicted, "any", said)
    tie = side(run, 0.95) && !side(run, 1.05) # about as fast: its sign is chance
    ++methods
    right += side(run, 1) == side(said, 1)
    ties += tie
    decided += !tie
    right_decided += !tie && side(run, 1) == side(said, 1)
    right_step += side(value("step_gain"), 1) == side(value("predicted_step_gain"), 1)
    gains += side(run, 1.05); loses += !side(run, 0.95)
    off[methods] = said / run > 1 ? said / run : run / said
  }
  END {
    printf "%d ranks; %d cells, %d with their methods, against a 16-bit ring that hides: %s gain more than " \
      "5 %%, %s lose more\n\n", ranks, n_cells, methods, share(gains, methods), share(loses, methods)
    for (r = 1; r <= n_rates; ++r) {
      rate = rates[r]
      printf "%s (the advisor measured %.3g Gbit/s): 1-bit Adam, 0/1 Adam, whole runs;" \
        " (predicted)\n%-14s", rate, gbit[rate] / n_gbit[rate], "compute"
      for (i = 1; i <= n_sizes; ++i) printf "  2^%-20.0f", log(sizes[i]) / log(2)
      printf "\n"
      for (j = 1; j <= n_computes; ++j) {
        printf "%4g ns/param. ", computes[j]
        for (i = 1; i <= n_sizes; ++i) {
          cell = rate SUBSEP sizes[i] SUBSEP computes[j]
          split("one_bit_adam zero_one_adam", of, " ")
          text = ""; text2 = ""
          for (k = 1; k <= 2; ++k) {
            text = text sprintf("%5s", times(measured[cell, of[k]]))
            text2 = text2 sprintf("%s%s", k > 1 ? " " : "", times(predicted[cell, of[k]]))
          }
          printf "  %-22s", text " (" text2 ")"
          print r, i, j, measured[cell, "one_bit_adam"], measured[cell, "zero_one_adam"],
            predicted[cell, "one_bit_adam"], rate, log(sizes[i]) / log(2), computes[j] >data
        }
        printf "\n"
      }
      printf "\n"
      print "\n" >data
    }
    for (i = 1; i <= n_cells; ++i) {
      cell = cells[i]
      pays += side(measured[cell, "any"], 1.1) == side(predicted[cell, "any"], 1.1)
      right_sign = side(measured[cell, "one_bit_adam"], 1) == side(predicted[cell, "one_bit_adam"], 1)
      adam += right_sign
      tie = side(measured[cell, "one_bit_adam"], 0.95) && !side(measured[cell, "one_bit_adam"], 1.05)
      adam_ties += tie
      adam_decided += !tie && right_sign
      n_pays += side(measured[cell, "any"], 1.1)
      n_adam += side(measured[cell, "one_bit_adam"], 1)
    }
    print "cells in which the best method is worth it (1.1 times):  " share(n_pays, n_cells)
    print "    the advisor says so, or not, rightly:                " share(pays, n_cells)
    print "cells in which 1-bit Adam, by its best exchange, gains:  " share(n_adam, n_cells)
    print "    the advisor is right about the sign:                 " share(adam, n_cells)
    print "    the same without " adam_ties " between 0.95 and 1.05:            " share(adam_decided, n_cells - adam_ties)
    print "the same of the papers" " schedule (a warm-up of 15 %):     " share(papers, n_papers) \
      " gain more than 5 %, " papers_lose " lose more"
    print "cells x methods, sign of a whole run:                    " share(right, methods)
    print "    the same without the " ties " between 0.95 and 1.05:       " share(right_decided, decided)
    print "cells x methods, sign of a compressed step:              " share(right_step, methods)
    for (i = 1; i <= methods; ++i)  # insertion sort
      for (j = i; j > 1 && off[j] < off[j - 1]; --j) { x = off[j]; off[j] = off[j - 1]; off[j - 1] = x }
    printf "gain of a run, predicted and measured: half within a factor of %.2f, 9 of 10 within %.2f, all within %.2f\n",
      off[int((methods + 1) / 2)], off[int(methods * 0.9)], off[methods]
  }' "$from"
} | tee "$out.txt"
gnuplot -e "data='$out.dat'; out='$out.svg'" bench/grid.gp
rm "$out.dat"
