#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   bench/studies/long_language_model/plot.sh OUT.svg ADAM.csv ONE_BIT_ADAM.csv
#
# Draws the held-out losses of two runs of long_language_model, and v over the true v of the second.
# Needs gnuplot.
set -euo pipefail
(($# == 3)) || {
  sed -n 's/^#   /usage: /p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
gnuplot <<END
set terminal svg noenhanced size 1000,380 dynamic background rgb "white" font "sans-serif,12"
set output "$1"
set datafile separator ","
set multiplot layout 1,2
set grid
set xtics 2500
set xlabel "step"
set title "held-out loss, nats per character"
plot "$2" using 1:4 every ::1 with lines lw 1.5 lc rgb "#000000" title "adam", \
     "$3" using 1:4 every ::1 with lines lw 1.5 lc rgb "#2166ac" title "one_bit_adam"
set title "v of one_bit_adam over the true v"
set logscale y
set ytics (0.25, 0.5, 0.71, 1, 1.41, 2, 4)
plot "$3" using 1:11 every ::1 with lines lw 1.5 lc rgb "#d6604d" title "99% quantile", \
     "$3" using 1:10 every ::1 with lines lw 1.5 lc rgb "#2166ac" title "median", \
     "$3" using 1:9 every ::1 with lines lw 1.5 lc rgb "#1b9e77" title "1% quantile"
END
