#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Draws a table that `tasks` printed, with gnuplot: for each row the loss of each optimizer over its
# baseline's mean, bars from the least seed to the most. What is beyond half or twice is a triangle
# at the edge.
#
#   bench/studies/run.sh tasks > TABLE.md && bench/studies/plot.sh OUT.svg TABLE.md

set -euo pipefail
(($# == 2)) || {
  sed -n '/^# Draws/,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}
command -v gnuplot >/dev/null || {
  echo "plot.sh: gnuplot is missing; install gnuplot-nox" >&2
  exit 1
}
awk -F ' *[|] *' -v out="$1" '
  $2 == "task" { for (i = 3; i < NF; ++i) name[i] = $i; last = NF - 1; next }
  !last || $2 ~ /^-|^bytes sent/ || NF - 1 != last { next }
  {
    label = $2
    shared = label # the setting in the title, if all rows have the same one
    sub(/^.*, [0-9]+ ranks/, "", shared)
    match(label, /, [0-9]+ ranks/)
    shared = substr(label, RSTART + 2)
    setting[++n] = shared
    if (shared != setting[1]) settings_differ = 1
    row[n] = substr(label, 1, RSTART - 1)
    for (i = 3; i <= last; ++i) {
      split($i, number, /[ (),]+/) # mean, least, "to", most, ratio
      mean = number[1] + 0
      ratio = number[5] + 0
      if (number[5] == "" || number[5] == "steps") ratio = 1
      has[i] = 1
      # gnuplot reads no infinity
      if (number[1] ~ /inf|nan/ || number[5] ~ /inf|nan/ || ratio > 2) beyond[i] = beyond[i] n " 2 9\n"
      else if (ratio < 0.5) beyond[i] = beyond[i] n " 0.5 11\n"
      else
        within[i] = within[i] n " " ratio " " ratio * number[2] / mean " " \
          (number[4] ~ /inf|nan/ ? 2 : ratio * number[4] / mean) "\n"
    }
  }
  END {
    if (!n) {
      print "plot.sh: no table of tasks in this file" > "/dev/stderr"
      exit 1
    }
    printf "set terminal svg noenhanced size %d,480 dynamic background rgb \"white\" font \"sans,13\"\n", 300 + 130 * n
    printf "set output \"%s\"\n", out
    print "set logscale y; set yrange [0.48:2.08]; set xrange [0.5:" n + 0.5 "]; set grid ytics; set key above horizontal left; set bmargin 6"
    print "set ytics (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2)"
    print "set linetype 5 lc rgb \"#8c510a\"" # gnuplot has yellow
    print "set ylabel \"loss over the baseline\""
    if (!settings_differ) printf "set xlabel \"%s\" offset 0,-1.5\n", setting[1]
    line = "set xtics ("
    for (r = 1; r <= n; ++r) {
      text = row[r] (settings_differ ? ", " setting[r] : "")
      gsub(/, /, ",\\n", text)
      line = line (r > 1 ? ", " : "") "\"" text "\" " r
      if (r < n) printf "set arrow from %g, graph 0 to %g, graph 1 nohead lc rgb \"#dddddd\"\n", r + 0.5, r + 0.5
    }
    print line ")"
    count = last - 2
    line = ""
    for (i = 3; i <= last; ++i) {
      at = sprintf("($1 + %g)", (i - 3 - (count - 1) / 2) * 0.8 / count)
      printf "$w%d << end\n%send\n$b%d << end\n%send\n", i, within[i], i, beyond[i]
      # an empty block cannot be drawn; its name still belongs in the key
      line = line (line == "" ? "plot " : ", ") "NaN with points lt " i - 2 " pt 7 title \"" name[i] "\""
      if (within[i] != "")
        line = line ", $w" i " using " at ":3:(0):($4 - $3) with vectors nohead lw 1.5 lt " i - 2 " notitle, $w" i \
          " using " at ":2 with points lt " i - 2 " pt 7 ps 0.45 notitle"
      if (beyond[i] != "")
        line = line ", $b" i " using " at ":2:3 with points lt " i - 2 " pt variable ps 1 notitle"
    }
    print line
  }' "$2" | gnuplot
echo "plot.sh: wrote $1"
