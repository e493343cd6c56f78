#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Draws what bench/network.sh measured, with gnuplot: how many times quicker than MPI's ring
# allreduce every exchange is. Of one file, over the number of floats; of several, over the
# bandwidth, for one number of floats.
#
#   bench/network_plot.sh OUT.svg FILE.json... [--n EXPONENT]
#
# --n EXPONENT   2^EXPONENT floats; 24 unless said otherwise. Needed for several files only

set -euo pipefail

exponent=24
arguments=()
while (($#)); do
  case "$1" in
    -h | --help)
      sed -n '/^# Draws/,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit
      ;;
    --n) exponent="${2:?--n needs a value}" && shift ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
((${#arguments[@]} >= 2)) || {
  echo "network_plot.sh: which plot, of which files? See --help" >&2
  exit 1
}
command -v gnuplot >/dev/null || {
  echo "network_plot.sh: gnuplot is missing; install gnuplot-nox" >&2
  exit 1
}
plot="${arguments[0]}"
files=("${arguments[@]:1}")

awk -v plot="$plot" -v n=$((2 ** exponent)) -v files=${#files[@]} '
  function value(key,    from) { # of a key in this line, without quotation marks
    from = index($0, "\"" key "\": ")
    if (from == 0) return ""
    from = substr($0, from + length(key) + 4)
    sub(/^"/, "", from)
    sub(/[",}].*/, "", from)
    return from
  }
  /"rate": / {
    rate = value("rate")
    bits = value("bits_per_second")
    ranks = value("ranks")
  }
  /"exchange": / {
    name = value("exchange")
    if (name == "ring" || (files > 1 && value("n") != n)) next
    if (!(name in points)) names[++count] = name
    x = files > 1 ? bits / 1e9 : value("n")
    points[name] = points[name] x " " value("ring_ratio") " " value("ring_ratio_least") " " \
      value("ring_ratio_most") "\n"
    if (!(x in seen)) tics = tics (tics == "" ? "" : ", ") \
      (files > 1 ? "\"" rate "\" " x : sprintf("\"2^%d\" %s", log(x) / log(2) + 0.5, x))
    if (!(x in seen)) n_seen++
    seen[x] = 1
  }
  END {
    if (count == 0) {
      print "network_plot.sh: nothing to draw in these files" >"/dev/stderr"
      exit 1
    }
    print "set terminal svg noenhanced size 720,440 dynamic background rgb \"white\" font \"sans,13\""
    print "set output \"" plot "\""
    print "set logscale xy; set grid; set key outside right top"
    print "set ytics (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)"
    print "set xtics (" tics ")"
    print "set xlabel \"" (files > 1 ? "bandwidth of every port" : "floats, " rate) "\""
    print "set ylabel \"times as quick as the ring allreduce\""
    print "set title \"" ranks " ranks" (files > 1 ? ", " n " floats" : "") "\""
    for (i = 1; i <= count; ++i) printf "$d%d << EOD\n%sEOD\n", i, points[names[i]]
    print (n_seen > 1 ? "set offsets graph 0.03, graph 0.03, 0, 0" : \
      "set xrange [" x / 2 ":" x * 2 "]")
    printf "plot "
    for (i = 1; i <= count; ++i) {
      title = names[i]
      gsub(/_/, " ", title)
      printf "$d%d using 1:2 with linespoints lt %d lw 2 pt 7 ps 0.6 title \"%s\", " \
        "$d%d using 1:2:3:4 with yerrorbars lt %d pt 0 notitle%s", i, i, title, i, i,
        i < count ? ", \\\n  " : "\n"
    }
  }' "${files[@]}" | gnuplot
