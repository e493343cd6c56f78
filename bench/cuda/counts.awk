# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The table of one step from the counts of its kernels: see counts.sh.

NR == 1 {
  for (i = 1; i <= NF; ++i) column[$i] = i
  printf "\n%-34s %8s %8s %8s %7s %7s %7s %6s %8s\n", name, "launches", "threads'", "warps'", "in", "out",
    "loads", "syncs", "warps"
  next
}
function of(what) { return $column[what] }
{
  kernel = "?"
  if (match($1, /[a-z_]+_kernel/)) kernel = substr($1, RSTART, RLENGTH)
  if ($1 ~ /side_by_side.*server_residual/) kernel = "server_residual_kernel, and ends"
  if (kernel == "encode_kernel" && $1 ~ /read_carry/) kernel = "encode_kernel, served"
  if (!(kernel in launches)) order[++n_kernels] = kernel
  launches[kernel] += of("launches")
  threads[kernel] += of("thread_ops") / n
  issued[kernel] += of("warp_ops") * 32 / n
  read[kernel] += of("load_dram_sectors") * 32 / n
  written[kernel] += of("store_dram_sectors") * 32 / n
  loads[kernel] += of("load_requests") * 32 / n
  syncs[kernel] += of("syncs") * 32 / n
  warps[kernel] += of("warps")
}
function line(kernel) {
  printf "  %-32s %8d %8.1f %8.1f %7.2f %7.2f %7.2f %6.2f %8d\n", kernel, launches[kernel], threads[kernel],
    issued[kernel], read[kernel], written[kernel], loads[kernel], syncs[kernel], warps[kernel]
}
END {
  for (i = 1; i <= n_kernels; ++i) {
    kernel = order[i]
    line(kernel)
    launches["all"] += launches[kernel]
    threads["all"] += threads[kernel]
    issued["all"] += issued[kernel]
    read["all"] += read[kernel]
    written["all"] += written[kernel]
    loads["all"] += loads[kernel]
    syncs["all"] += syncs[kernel]
    warps["all"] += warps[kernel]
  }
  line("all")
}
