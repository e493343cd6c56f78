# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# gnuplot -e "data='grid.dat'; out='grid.svg'" grid.gp: what grid.sh measured, a field for each cell:
# panel, column, row, gain of 1-bit Adam, of 0/1 Adam, predicted gain of 1-bit Adam, and three labels.

set terminal svg noenhanced size 1040,330 dynamic background rgb "white" font "sans-serif,12"
set output out
stats data using 1 nooutput
panels = int(STATS_max)
set multiplot layout 1,panels title \
  "a whole run of 1-bit Adam (below: of 0/1 Adam), times as fast as a hidden 16-bit ring; x: the advisor is wrong"
set palette defined (-2 "#b2182b", -0.3 "#f4a582", 0 "#f7f7f7", 0.5 "#92c5de", 3 "#4393c3")
set cbrange [-2:3]
unset colorbox
unset key
set tics scale 0
set xlabel "parameters, 2^n"
times(x) = x < 9.95 ? sprintf("%.2f", x) : sprintf("%.0f", x)
wrong(gain, said) = (gain >= 1) == (said >= 1) || (gain > 0.95 && gain < 1.05) ? "" : " x"
do for [p = 1:panels] {
  set title system(sprintf("awk '$1 == %d { print $7; exit }' %s", p, data))
  if (p == 1) { set ylabel "compute per step, ns per parameter" } else { unset ylabel }
  plot data index p - 1 using 2:3:(log($4) / log(2)):xtic(8):ytic(9) with image, \
    "" index p - 1 using 2:($3 + 0.15):(times($4) . wrong($4, $6)) with labels, \
    "" index p - 1 using 2:($3 - 0.2):(times($5)) with labels font "sans-serif,10" textcolor rgb "#444444"
}
unset multiplot
