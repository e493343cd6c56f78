# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The figures that matter out of the JSON files of the benchmarks on CUDA devices:
# awk -f bench/benchmark.awk -f bench/cuda/summary.awk FILE...

function flush_one(    parts, key, n) {
  if (name == "" || v["run_type"] == "aggregate") return
  n = elements(name)
  split(name, parts, "/")
  if ("share_of_copy" in v) {
    passes[++n_passes] = sprintf("%-13s n:%-10d %8.3f %9.0f %9.0f", parts[2], n, \
      v["share_of_copy"], v["gb_per_second"], v["copy_gb_per_second"])
  } else if ("ns_per_parameter" in v) {
    key = sprintf("%-13s %-10s n:%-10d", parts[3], parts[4], n)
    if (!(key in step_seen)) step_keys[++n_steps] = key
    step_seen[key] = 1
    time[key, parts[5]] = v["step_us"]
    ratio[key, parts[5]] = v["adam_ns"] > 0 ? v["ns_per_parameter"] / v["adam_ns"] : 0
  } else if ("speed_up" in v) {
    exchanges[++n_exchanges] = sprintf("%-20s %-7s n:%-10d %8.2f %6.2f..%-6.2f %12.1f", parts[1], \
      parts[3], n, v["speed_up"], v["speed_up_10"], v["speed_up_90"], v["us_median"])
  } else if (v["error_occurred"] == "true") {
    failed[++n_failed] = name ": " v["error_message"]
  }
}
/"device":/ && !told { print "\nDevice: " value_of($0); told = 1 }
END {
  flush_one()
  if (n_passes) {
    print "\nFused passes, adam one written by hand: share of the bandwidth of a device-to-device copy"
    print "of as many bytes, and GB/s of both, read and written (below 2^24 elements: of the cache)"
    printf "%-26s %8s %9s %9s\n", "", "share", "GB/s", "copy GB/s"
    for (i = 1; i <= n_passes; ++i) print passes[i]
  }
  if (n_steps) {
    print "\nWhole steps: microseconds, and times those of Adam by hand on as many parameters: one"
    print "rank of eight with plain launches, with graphs, and two ranks on the device at once"
    printf "%-37s %10s %6s %10s %6s %10s %6s\n", "", "plain", "", "graphs", "", "2 ranks", ""
    for (i = 1; i <= n_steps; ++i) {
      k = step_keys[i]
      printf "%-37s %10.1f %6.2f %10.1f %6.2f %10.1f %6.2f\n", k, time[k, "plain"],
        ratio[k, "plain"], time[k, "graphs"], ratio[k, "graphs"], time[k, "ranks:2"],
        ratio[k, "ranks:2"]
    }
  }
  if (n_exchanges) {
    print "\nExchanges over NCCL: the bare allreduce's time over theirs, medians and 10%..90%, microseconds"
    for (i = 1; i <= n_exchanges; ++i) print exchanges[i]
  }
  for (i = 1; i <= n_failed; ++i) print "not measured: " failed[i]
}
