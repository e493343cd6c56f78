#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   bench/studies/long_runs.sh PROGRAM OUT
#
# Trains two small tasks for 10,000 steps, and one for 5000 in which something changes at 60%, with
# PROGRAM (tasks, built in release mode). Draws OUT-10000-steps.svg and
# OUT-late-changes.svg from the losses on held-out examples, which stay in OUT-*.csv; a CSV that is
# there is not made anew. Takes some minutes on two idle cores. Needs gnuplot.
set -euo pipefail

program=$1 out=$2
optimizers=(adam one_bit_adam zero_one_adam lamb one_bit_lamb)

train() { # NAME arguments...
  local csv=$out-$1.csv named=()
  shift
  [[ -s $csv ]] && return
  for o in "${optimizers[@]}"; do named+=(--optimizer "$o"); done
  "$program" "${named[@]}" --curve "$csv" "$@"
}
for task in mlp zipf; do train "long-$task" --task $task --steps 10000 --seeds 1; done
late=(--task mlp --steps 5000)
train late-mlp-rate-10 "${late[@]}" --change rate --factor 10 --rate-factor 0.1
train late-mlp-rate-0.1 "${late[@]}" --change rate --factor 0.1
train late-mlp-gradients-10 "${late[@]}" --change gradients --factor 10
train late-mlp-gradients-0.1 "${late[@]}" --change gradients --factor 0.1
train late-mlp-data-1 "${late[@]}" --change data

# FILE WIDTH, then NAME title for each panel: a curve for each optimizer, the mean of the seeds
draw() {
  local file=$1 width=$2 colours=('#000000' '#2166ac' '#1b9e77' '#999999' '#d6604d') i plots
  shift 2
  {
    printf 'set terminal svg noenhanced size %d,380 dynamic background rgb "white"' "$width"
    printf ' font "sans-serif,12"\nset output "%s"\nset multiplot layout 1,%d\n' "$file" $(($# / 2))
    printf 'set logscale y\nset autoscale yfix\nset ytics (0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5)\n'
    printf 'set xtics 2500\nset xlabel "step"\nset grid\n'
    for (( ; $# > 0; )); do
      plots=()
      for i in "${!optimizers[@]}"; do
        echo "\$curve$i << end"
        awk -F, -v o="${optimizers[i]}" '$2 == o { s[$4] += $5; n[$4]++ }
          END { for (x in s) print x, s[x] / n[x] }' "$out-$1.csv" | sort -n
        printf 'end\n'
        plots+=("\$curve$i with lines lw 1.5 lc rgb '${colours[i]}' title '${optimizers[i]}'")
      done
      printf 'set title "%s"\nplot %s\n' "$2" "$(printf '%s, ' "${plots[@]}" | sed 's/, $//')"
      printf 'unset key\n' # the first panel's tells all
      shift 2
    done
  } | gnuplot
}
draw "$out-10000-steps.svg" 1000 long-mlp "mlp, loss on held-out examples" long-zipf "zipf"
draw "$out-late-changes.svg" 1700 late-mlp-rate-10 "mlp: the rate times 10 at 60%" \
  late-mlp-rate-0.1 "the rate times 0.1" late-mlp-gradients-10 "gradients times 10" \
  late-mlp-gradients-0.1 "gradients times 0.1" late-mlp-data-1 "other data"
