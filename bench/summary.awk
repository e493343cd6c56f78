# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The figures that matter out of Google Benchmark's JSON files: awk -f bench/benchmark.awk -f bench/summary.awk FILE...

function flush_one(    n, parts, key) {
  if (name == "" || v["run_type"] == "aggregate") return
  n = elements(name)
  split(name, parts, "/")
  if ("share_of_axpy" in v) {
    key = sprintf("%-7s %s, %s", parts[2], parts[3], parts[4])
    if (!(key in pass_seen)) pass_keys[++n_passes] = key
    pass_seen[key] = 1
    share[key, parts[1]] = v["share_of_axpy"]
    rate[key, parts[1]] = v["bytes_per_second"] / 1e9
    axpy_rate[key] = v["axpy_bytes_per_second"] / 1e9
  } else if ("ns_per_parameter" in v) {
    steps[++n_steps] = sprintf("%-21s %-10s %8.2f %7.2f %6.2f %6.2f %8.2f %7.1f %9.2f %7.2f", \
      parts[1], parts[2], v["ns_per_parameter"], v["encode_ns"], v["communicate_ns"], \
      v["update_ns"], v["axpy_ns"], v["ns_per_parameter"] / v["axpy_ns"], v["state_bytes"], \
      v["state_budget"])
  } else if ("speed_up" in v) {
    key = sprintf("%-7s %s, n:%-8d", parts[2], parts[3], n)
    if (!(key in exchange_seen)) exchange_keys[++n_exchanges] = key
    exchange_seen[key] = 1
    if (parts[1] == "bare_allreduce")
      floor[key] = sprintf("%.2f..%.2f", v["speed_up_10"], v["speed_up_90"])
    speed_up[key, parts[1]] = sprintf("%.2f%s", v["speed_up"], v["label"] ~ /inside/ ? "~" : " ")
  }
}
END {
  flush_one()
  if (n_passes) {
    print "\nFused passes: share of the bandwidth of axpy (y = a x + y) in the same lanes, and GB/s"
    printf "%-35s %7s %6s %8s %6s %6s\n", "", "encode", "GB/s", "update", "GB/s", "axpy"
    for (i = 1; i <= n_passes; ++i) {
      k = pass_keys[i]
      printf "%-35s %7.3f %6.1f %8.3f %6.1f %6.1f\n", k, share[k, "encode"], rate[k, "encode"],
        share[k, "update"], rate[k, "update"], axpy_rate[k]
    }
  }
  if (n_steps) {
    print "\nWhole steps: ns per parameter and rank, its parts, and state in bytes per parameter"
    printf "%-21s %-10s %8s %7s %6s %6s %8s %7s %9s %7s\n", "", "", "ns", "encode", "comm.",
      "update", "axpy ns", "ratio", "state", "budget"
    for (i = 1; i <= n_steps; ++i) print steps[i]
  }
  if (n_exchanges) {
    print "\nExchanges: bare allreduce's time over theirs, medians; ~: inside the allreduce's own noise"
    split("gather_scatter<sign> all_gather<sign> dense dense_transport dense_transport_bf16", names, " ")
    printf "%-29s %12s", "", "noise"
    for (c = 1; c <= 5; ++c) printf " %*s", length(names[c]) + 1, names[c]
    for (i = 1; i <= n_exchanges; ++i) {
      k = exchange_keys[i]
      printf "\n%-29s %12s", k, floor[k]
      for (c = 1; c <= 5; ++c) printf " %*s", length(names[c]) + 1, speed_up[k, names[c]]
    }
    print ""
  }
}
