#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Draws what bench_exchange measured (bench/run.sh --json FILE, or --benchmark_out=FILE), with gnuplot: how
# many times quicker than the transport's bare allreduce each contender is, over the number of floats. One
# picture for each transport and number of ranks; bars: from the 10th to the 90th percentile.
#
#   bench/plot.sh OUT.svg FILE.json...

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." 2>/dev/null || true
(($# >= 2)) || {
  sed -n '/^# Draws/,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 1
}
command -v gnuplot >/dev/null || {
  echo "plot.sh: gnuplot is missing; install gnuplot-nox" >&2
  exit 1
}
out="$1"
shift
awk -f bench/benchmark.awk -f <(cat <<'AWK'
function in_words(s) {
  sub(/^bare_allreduce$/, "the same again: its noise", s)
  gsub(/<|>/, " ", s)
  gsub(/_/, " ", s)
  sub(/ $/, "", s)
  return s
}
function flush_one(    parts, panel, series) {
  if (name == "" || v["run_type"] == "aggregate" || !("speed_up" in v)) return
  split(name, parts, "/")
  panel = parts[2] ", " parts[3]
  sub(/ranks:/, "", panel)
  panel = panel " ranks"
  series = in_words(parts[1])
  if (!(panel in panels)) panel_names[++n_panels] = panel
  panels[panel] = 1
  if (!(series in all_series)) series_names[++n_series] = series
  all_series[series] = 1
  points[panel, series] = points[panel, series] elements(name) " " v["speed_up"] " " v["speed_up_10"] \
    " " v["speed_up_90"] "\n"
}
END {
  flush_one()
  if (n_panels == 0) {
    print "plot.sh: no contender of bench_exchange in these files" >"/dev/stderr"
    exit 1
  }
  rows = int((n_panels + 1) / 2)
  columns = n_panels > 1 ? 2 : 1
  printf "set terminal svg noenhanced size %d,%d dynamic background rgb \"white\" font \"sans,13\"\n", \
    560 * columns, 380 * rows
  printf "set output \"%s\"\n", out
  printf "set multiplot layout %d,%d\n", rows, columns
  print "set logscale xy; set logscale x 2; set format x \"2^%L\"; set grid; set key below"
  print "set xlabel \"floats\"; set ylabel \"times as quick as the bare allreduce\""
  print "set ytics (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)"
  print "set offsets graph 0.03, graph 0.03, 0, 0"
  for (p = 1; p <= n_panels; ++p) {
    printf "set title \"%s\"\n", panel_names[p]
    line = ""
    for (s = 1; s <= n_series; ++s) {
      data = points[panel_names[p], series_names[s]]
      if (data == "") continue
      printf "$d%d_%d << EOD\n%sEOD\n", p, s, data
      line = line (line == "" ? "plot " : ", ") sprintf("$d%d_%d using 1:2 with linespoints lt %d lw 2 pt 7 ps 0.6 title \"%s\", $d%d_%d using 1:2:3:4 with yerrorbars lt %d pt 0 notitle", p, s, s, series_names[s], p, s, s)
    }
    print line
  }
  print "unset multiplot"
}
AWK
) -v out="$out" "$@" | gnuplot
echo "plot.sh: wrote $out"
