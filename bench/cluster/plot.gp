# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# gnuplot -e "data='PREFIX'; out='FILE.svg'" plot.gp: the speed-ups that report.cpp wrote.

set terminal svg size 1000,420 background 'white'
set output out
set multiplot layout 1,2
set logscale x 2
set ylabel 'speed-up over Adam, end to end'
set yrange [0:*]
set grid
unset key # the other one's holds for both
set xrange [14:300]

kinds = "'1-bit Adam, flat' '1-bit Adam, hierarchical' '1-bit LAMB, flat' '1-bit LAMB, hierarchical' '0/1 Adam, flat' '0/1 Adam, hierarchical'"
set title 'BERT-Large, 4 ranks a node, 2.7 Gbit/s'
set xlabel 'nodes'
set xtics (16, 32, 64, 128, 256)
plot for [i = 1:6] data.'-nodes.dat' using 1:(column(i + 1)) with linespoints title word(kinds, i)

set title 'BERT-Large, 32 nodes of 4 ranks'
set xlabel 'Gbit/s between nodes'
set xtics (2.7, 4.8, 10, 40, 100)
set key top right
set xrange [2.3:120]
plot for [i = 1:6] data.'-bandwidth.dat' using 1:(column(i + 1)) with linespoints title word(kinds, i)
unset multiplot
