#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# How long, and how many bytes, until a model has learnt? Trains the language model of the examples
# (bench_time_to_loss_mpi) on four nodes joined by links of RATE (network.sh: needs root), with Adam
# of MPI's averages, of fewer bits, with 1-bit Adam, 0/1 Adam and outer steps. Prints the seconds
# and the bytes to a loss, and beside each training what its bytes over RATE and its computing
# predict; draws the loss over both. Takes 5 to 15 minutes on two cores.
#
#   bench/time_to_loss.sh RATE [option...]       for example: bench/time_to_loss.sh 100mbit
#
# RATE               of every port, as tc writes it
# --steps N          of each training (800)
# --every N          steps from one validation to the next; a multiple of 20 (40)
# --rounds N         trainings with each contender, the quickest of which counts (1): what disturbs
#                    a machine only ever adds
# --again NAME       trains with NAME alone, and adds that to what OUT.json has
# --burst SIZE       what a port lets pass at full speed after a pause (by RATE, 16kb to 256kb)
# --text FILE        what the training learns (the King James Bible)
# --out PREFIX       writes PREFIX.json, PREFIX.txt and PREFIX.svg (build/network/results/time-to-loss-RATE)
# --from FILE.json   trains nothing, and prints and draws what was measured
# --bench PROGRAM    a bench_time_to_loss_mpi that is built already: nothing is built or installed

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/common.sh

absolute() { [[ "$1" == /* ]] && echo "$1" || echo "$here/$1"; }
usage() { sed -n '/^# How long/,/^$/s/^# \{0,1\}//p' bench/time_to_loss.sh; }
ranks=4 rate="" steps=800 every=40 rounds=1 again="" burst="" text="" out="" from="" program=""
build="${ONEBIT_BUILD_DIR:-build/network}"
while (($#)); do
  case "$1" in
    -h | --help) usage && exit ;;
    --steps) steps="$2" && shift ;;
    --every) every="$2" && shift ;;
    --rounds) rounds="$2" && shift ;;
    --again) again="$2" && shift ;;
    --burst) burst="$2" && shift ;;
    --text) text="$(absolute "$2")" && shift ;;
    --out) out="$(absolute "$2")" && shift ;;
    --from) from="$(absolute "$2")" && shift ;;
    --bench) program="$(absolute "$2")" && shift ;;
    -*) echo "time_to_loss.sh: unknown option $1; see --help" >&2 && exit 2 ;;
    *) rate="$1" ;;
  esac
  shift
done
[[ -n "$rate" || -n "$from" ]] || { usage >&2 && exit 2; }
out="${out:-$(realpath -m "$build")/results/time-to-loss-$rate}"
[[ -z "$from" || "$from" == "$out.json" ]] || out="${from%.json}"
mkdir -p "$(dirname "$out")"

if [[ -z "$from" ]]; then
  if [[ -z "$program" ]]; then
    install_missing g++ cmake make iproute2 util-linux libopenmpi-dev openmpi-bin gnuplot-nox \
      libcli11-dev libeigen3-dev nlohmann-json3-dev bible-kjv
    cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_TESTS=OFF \
      -DONEBIT_BUILD_EXAMPLES=ON -DONEBIT_BUILD_BENCH=ON -DONEBIT_CUDA=OFF >/dev/null
    cmake --build "$build" --parallel "$(nproc)" --target bench_time_to_loss_mpi >&2
    program="$(realpath "$build")/bench/bench_time_to_loss_mpi"
  fi
  # As little as a busy machine allows: what a port lets pass for nothing is as much as a small message.
  [[ -n "$burst" ]] || case "$rate" in
    100mbit) burst=16kb ;; 1gbit) burst=64kb ;; *) burst=256kb ;;
  esac
  arguments=(--steps "$steps" --every "$every" --rounds "$rounds" --json "$out.points")
  [[ -z "$text" ]] || arguments+=(--text "$text")
  earlier=""
  if [[ -n "$again" ]]; then
    arguments+=(--only "$again")
    earlier="$(sed -n '/"contender"/{ s/,$//; p; }' "$out.json")"
  fi
  command="bench/time_to_loss.sh $rate --steps $steps --every $every --rounds $rounds"
  load="$(cut -d ' ' -f 1-3 /proc/loadavg)"
  bench/network.sh "$rate" "$ranks" --burst "$burst" --timeout 3600 --run "$program" \
    "${arguments[@]}" >&2
  {
    if [[ -n "$again" ]]; then
      sed '/"points"/q' "$out.json"
    else
      printf '{\n"command": "%s", "date": "%s", "rate": "%s", "bits_per_second": %s, "ranks": %d, ' \
        "$command" "$(date -u +%F)" "$rate" "$(bits_of "$rate")" "$ranks"
      printf '"cores": %d, "burst": "%s", "load": "%s",\n"points": [\n' "$(nproc)" "$burst" "$load"
    fi
    { [[ -z "$earlier" ]] || echo "$earlier" && cat "$out.points"; } | sed '$!s/$/,/'
    printf ']\n}\n'
  } >"$out.new"
  mv "$out.new" "$out.json"
  rm "$out.points"
  from="$out.json"
fi

# A training begins where the step is 0; of several with one contender the quickest counts. Between
# two validations the loss is taken to fall evenly.
awk -v data="$out.dat" '
  function value(name,   text) {
    if (!match($0, "\"" name "\": *(\"[^\"]*\"|[^,}]+)")) return ""
    text = substr($0, RSTART, RLENGTH)
    sub(/^[^:]*: */, "", text)
    gsub(/"/, "", text)
    return text
  }
  # the value of y at the loss, in the best training of a contender; "" if it is not reached
  function at_loss(c, y, loss,   i, t, share) {
    t = best[c]
    for (i = 1; i < n[t]; ++i) {
      if (losses[t, i] > loss) continue
      share = (losses[t, i - 1] - loss) / (losses[t, i - 1] - losses[t, i])
      return y[t, i - 1] + share * (y[t, i] - y[t, i - 1])
    }
    return ""
  }
  function cell(x, form) { return x == "" ? "-" : sprintf(form, x) }
  /"bits_per_second"/ {
    bits = value("bits_per_second")
    header = value("date") ", " value("rate") " on every port, burst " value("burst") ", " \
      value("ranks") " nodes of one rank, which share " value("cores") " cores; load before " value("load")
    command = value("command")
  }
  /"contender"/ {
    if (value("step") == 0) {
      name[++trainings] = value("contender")
      n[trainings] = 0
    }
    t = trainings
    i = n[t]++
    losses[t, i] = value("validation_loss") + 0
    seconds[t, i] = value("seconds") + 0
    mb[t, i] = value("bytes") / 1e6
    slowest[t] = value("computing_of_slowest_seconds") + 0
    computing[t] = value("computing_seconds") + 0
    waiting[t] = value("waiting_seconds") + 0
    core[t] = value("backward_seconds") / (value("backward_core_seconds") + 1e-9)
    last[t] = i
    steps = value("step") + 0
  }
  END {
    for (t = 1; t <= trainings; ++t) {
      c = name[t]
      if (!(c in best)) order[++contenders] = c
      if (!(c in best) || seconds[t, last[t]] < seconds[best[c], last[best[c]]]) best[c] = t
    }
    print "command: " command
    print header
    print steps " steps; the quickest of the trainings with each contender\n"
    print "Where the time went, in seconds. Turns: seconds of forward and backward for each in which" \
      " the rank had a core;\n2 if four ranks share two idle cores, more if other programs run. Predicted:" \
      " the computing of the rank that\ntakes longest up to each exchange, plus MB over the rate.\n"
    printf "%-28s %8s %8s = %9s + %8s %7s %10s %10s %10s %9s\n", "", "loss", "seconds", "computing",
      "waiting", "turns", "MB sent", "MB / rate", "predicted", "deviation"
    for (k = 1; k <= contenders; ++k) {
      t = best[order[k]]
      i = last[t]
      network = mb[t, i] * 8e6 / bits
      predicted = slowest[t] + network
      printf "%-28s %8.4f %8.1f = %9.1f + %8.1f %7.2f %10.1f %10.1f %10.1f %8.0f%%\n", order[k],
        losses[t, i], seconds[t, i], computing[t], waiting[t], core[t], mb[t, i], network, predicted,
        100 * (seconds[t, i] / predicted - 1)
    }
    adam = losses[best[order[1]], last[best[order[1]]]]
    printf "\nSeconds and MB sent to a validation loss: within 1%% and 5%% of the last one of %s\n\n",
      order[1]
    printf "%-28s %10s %10s %12s %10s   %s\n", "", sprintf("to %.4f", 1.01 * adam), "MB",
      sprintf("to %.4f", 1.05 * adam), "MB", "seconds of each training"
    for (k = 1; k <= contenders; ++k) {
      c = order[k]
      all = ""
      for (t = 1; t <= trainings; ++t) {
        if (name[t] == c) all = all sprintf(" %.1f (turns %.1f)", seconds[t, last[t]], core[t])
      }
      printf "%-28s %10s %10s %12s %10s  %s\n", c, cell(at_loss(c, seconds, 1.01 * adam), "%.1f"),
        cell(at_loss(c, mb, 1.01 * adam), "%.1f"), cell(at_loss(c, seconds, 1.05 * adam), "%.1f"),
        cell(at_loss(c, mb, 1.05 * adam), "%.1f"), all
      print "\"" c "\"" >data
      for (i = 1; i < n[best[c]]; ++i) {
        print seconds[best[c], i], mb[best[c], i], losses[best[c], i] >data
      }
      print "\n" >data
    }
  }' "$from" | tee "$out.txt"

gnuplot <<END
set terminal svg noenhanced size 1200,420 dynamic background rgb "white" font "sans-serif,13"
set output "$out.svg"
contenders = $(grep -c '^"' "$out.dat")
set multiplot layout 1,2 title "$(sed -n 's/.*"rate": "\([^"]*\)".*/\1/p' "$from") on every port, four nodes"
set logscale x
set grid linecolor rgb "#dddddd"
set format x "%g"
set ylabel "validation loss (nats per character)"
set linetype 1 lc rgb "#000000"
set linetype 2 lc rgb "#888888"
set linetype 3 lc rgb "#cc79a7"
set linetype 4 lc rgb "#d55e00"
set linetype 5 lc rgb "#0072b2"
set linetype 6 lc rgb "#009e73"
unset key
set lmargin at screen 0.06
set rmargin at screen 0.39
set xlabel "seconds of training"
plot for [k = 0:contenders - 1] "$out.dat" index k using 1:3 with linespoints lw 2 pt 7 ps 0.35 \
  title columnheader(1)
set lmargin at screen 0.46
set rmargin at screen 0.79
set key at screen 0.995, screen 0.9 samplen 1.5
set xlabel "MB sent by a rank"
plot for [k = 0:contenders - 1] "$out.dat" index k using 2:3 with linespoints lw 2 pt 7 ps 0.35 \
  title columnheader(1)
unset multiplot
END
rm "$out.dat"
echo "$out.json, .txt and .svg"
