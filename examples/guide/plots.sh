#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Draws the figures of choosing.md: the language model, 400 steps, 4 ranks, with other values of an
# option. Points are means of the seeds 1, 2, 3, bars reach from the least to the most. Takes half an
# hour for all on two cores; validation losses are the same on every machine.
#
#   examples/guide/plots.sh [freeze | rate | warm_up | beta2 | clip | buckets]...
#
# ONEBIT_SEEDS      "1 2 3"
# ONEBIT_BUILD_DIR  where to build and to keep the trainings, instead of build/network

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build="${ONEBIT_BUILD_DIR:-build/network}"
read -r -a seeds <<<"${ONEBIT_SEEDS:-1 2 3}"
work="$build/plots"
figures=("$@")
((${#figures[@]})) || figures=(freeze rate warm_up beta2 clip buckets)

mkdir -p "$work"
cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_TESTS=OFF -DONEBIT_BUILD_BENCH=ON \
  -DONEBIT_BUILD_EXAMPLES=ON -DONEBIT_CUDA=OFF >/dev/null
cmake --build "$build" --parallel "$(nproc)" --target language_model >&2
bible -f 'gen1:1-rev22:21' | sed 's/^[^ ]* //' >"$work/text"

# run <name> <arguments...>: the trainings of all seeds, unless they are there; their curves in
# name.SEED.
run() {
  local name="$1" seed
  shift
  for seed in "${seeds[@]}"; do
    [[ -s "$work/$name.$seed" ]] && continue
    "$build/examples/language_model/language_model" --steps 400 --ranks 4 --text "$work/text" \
      --seed "$seed" --out "$work/out" "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && exit 1; }
    mv "$work/out/curves.csv" "$work/$name.$seed"
  done
}

# curve <name> <algorithm>: step, mean, least and most validation loss of the seeds.
curve() {
  local seed files=()
  for seed in "${seeds[@]}"; do files+=("$work/$1.$seed"); done
  awk -F , -v algorithm="$2" '
    $1 == algorithm && $4 != "" {
      s = $2
      if (!n[s]++) { order[++k] = s; least[s] = most[s] = $4 }
      sum[s] += $4
      if ($4 < least[s]) least[s] = $4
      if ($4 > most[s]) most[s] = $4
    }
    END { for (i = 1; i <= k; ++i) { s = order[i]; print s, sum[s] / n[s], least[s], most[s] } }' \
    "${files[@]}"
}

# last <figure> <value>: the same of the last step, for each algorithm of the figure, into a table.
last() {
  local algorithm
  for algorithm in "${algorithms[@]}"; do
    echo "$2 $(curve "$1-$2" "$algorithm" | tail -n 1)" >>"$work/$1.$algorithm.dat"
  done
}

style='set terminal svg noenhanced size 620,340 dynamic background rgb "white" font "sans-serif,12"'
style+='; set grid linecolor rgb "#dddddd"; set key outside right top'
style+='; set ylabel "validation loss, nats per character"'

room='set offsets 0.3, 0.3, graph 0.05, graph 0.05'

# over <figure> <label of x> <values...>: final losses over an option's values.
over() {
  local figure="$1" label="$2" algorithm plots="" value
  shift 2
  for algorithm in "${algorithms[@]}"; do rm -f "$work/$figure.$algorithm.dat"; done
  for value in "$@"; do last "$figure" "$value"; done
  for algorithm in "${algorithms[@]}"; do
    plots+="${plots:+, }'$work/$figure.$algorithm.dat' using 0:3:4:5:xtic(1) with yerrorlines \
      lw 2 pt 7 ps 0.5 title '$algorithm'"
  done
  gnuplot -e "$style; set output 'examples/guide/$figure.svg'; set xlabel '$label'; $room; plot $plots"
}

# train <figure> <option> <values...>: with all algorithms of the figure. The first value is what the
# trainer does by itself, trained once for all figures.
train() {
  local figure="$1" option="$2" algorithm value seed arguments=()
  run default --algorithm adam --algorithm one_bit_adam --algorithm zero_one_adam
  for seed in "${seeds[@]}"; do cp "$work/default.$seed" "$work/$figure-$3.$seed"; done
  shift 3
  for algorithm in "${algorithms[@]}"; do arguments+=(--algorithm "$algorithm"); done
  for value in "$@"; do run "$figure-$value" "${arguments[@]}" "$option" "$value"; done
}

freeze() {
  local plots="" value
  algorithms=(one_bit_adam)
  train freeze --freeze-after 40 10 20 80
  for value in 10 20 40 80; do
    curve "freeze-$value" one_bit_adam | sed -n "0~2p" >"$work/freeze.$value.dat"
    plots+="'$work/freeze.$value.dat' using 1:2:3:4 with yerrorlines lw 2 pt 7 ps 0.4 \
      title 'freeze after $value', "
  done
  curve freeze-40 adam >"$work/freeze.never.dat"
  gnuplot -e "$style; set output 'examples/guide/freeze.svg'; set xlabel 'step'; set xrange [0:410]; \
    plot $plots '$work/freeze.never.dat' using 1:2 with lines lw 2 lc rgb 'black' title 'adam'"
}
rate() {
  algorithms=(adam one_bit_adam zero_one_adam)
  train rate --learning-rate 0.002 0.001 0.004
  over rate "learning rate" 0.001 0.002 0.004
}
warm_up() {
  algorithms=(one_bit_adam zero_one_adam)
  train warm_up --rate-warm-up 0.1 0.0025 0.3
  over warm_up "share of the steps in which the learning rate rises" 0.0025 0.1 0.3
}
beta2() {
  algorithms=(adam one_bit_adam)
  train beta2 --beta2 0.99 0.9 0.97 0.999
  over beta2 "beta2" 0.9 0.97 0.99 0.999
}
clip() {
  algorithms=(one_bit_adam)
  train clip --max-grad-norm 0 0.3 1
  over clip "max_grad_norm (0: not clipped)" 0.3 1 0
}
# The loss, and what buckets are for: the exchange of 2^24 floats, as bench/network.sh measured it.
buckets() {
  local rate
  algorithms=(one_bit_adam zero_one_adam)
  train buckets --bucket-elements 0 8192 65536
  over buckets "bucket_elements (0: one bucket)" 8192 65536 0
  for rate in 1gbit 2.7gbit; do
    sed -n 's/.*"exchange": "\(gather_scatter\|bucketed_[0-9]*\)".*"n": 16777216,.*"ms": \([0-9.]*\), "ms_least": \([0-9.]*\), "ms_most": \([0-9.]*\),.*/\1 \2 \3 \4/p' \
      "bench/results/2026-11-21-network-$rate.json" |
      sed 's/bucketed_/2^/; s/gather_scatter/one/' | sort -V >"$work/exchange.$rate.dat"
  done
  gnuplot -e "$style; set terminal svg size 900,340; set output 'examples/guide/buckets.svg'; \
    set multiplot layout 1,2; set key inside top right; set xlabel 'bucket_elements (0: one bucket)'; \
    $room; plot for [a in 'one_bit_adam zero_one_adam'] '$work/buckets.'.a.'.dat' \
      using 0:3:4:5:xtic(1) with yerrorlines lw 2 pt 7 ps 0.5 title a; \
    set ylabel 'ms, an exchange of 2^24 floats'; set yrange [0:*]; set xlabel 'elements of a bucket'; \
    plot for [r in '1gbit 2.7gbit'] '$work/exchange.'.r.'.dat' using 0:2:3:4:xtic(1) \
      with yerrorlines lw 2 pt 7 ps 0.5 title r"
}

for figure in "${figures[@]}"; do
  case "$figure" in
    freeze | rate | warm_up | beta2 | clip | buckets) "$figure" ;;
    *) echo "plots.sh: no figure $figure" >&2 && exit 2 ;;
  esac
  echo "examples/guide/$figure.svg"
done
