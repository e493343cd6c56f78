#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Simulates BERT-Large on clusters of 16 to 256 nodes with SimGrid, after installing what is missing
# (Debian, Ubuntu): step times, end-to-end speed-ups beside the papers' claims, and how far the cost
# model is from the simulation. Takes two minutes on two idle cores; the simulated times are the same
# on every machine.
#
#   bench/cluster/run.sh [--quick] [--out PREFIX]
#
# --quick        16 and 32 nodes at two bandwidths: seconds
# --out PREFIX   writes PREFIX.json (one line per simulated exchange), PREFIX.txt and PREFIX.svg
#                instead of build/cluster/cluster.{json,txt,svg}
#
# ONEBIT_JOBS    simulations at a time, instead of one per core

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source bench/common.sh

quick=0
out=""
command="bench/cluster/run.sh${*:+ $*}"
while (($#)); do
  case "$1" in
    --quick) quick=1 ;;
    --out) out="$2" && shift ;;
    --out=*) out="${1#--out=}" ;;
    -h | --help) sed -n '/^# Simulates/,/^$/s/^# \{0,1\}//p' bench/cluster/run.sh && exit ;;
    *) echo "run.sh: unknown argument $1; see --help" >&2 && exit 2 ;;
  esac
  shift
done
build=build/cluster
mkdir -p "$build"
if [[ -z "$out" ]]; then out="$build/cluster"; elif [[ "$out" != /* ]]; then out="$here/$out"; fi

install_missing g++ libsimgrid-dev libcli11-dev nlohmann-json3-dev gnuplot-nox
smpicxx -std=c++20 -O2 bench/cluster/simulate.cpp -o "$build/simulate"
g++ -std=c++17 -O2 -shared -fPIC bench/cluster/platform.cpp -o "$build/platform.so" -lsimgrid
g++ -std=c++20 -O2 -Iinclude bench/cluster/report.cpp -o "$build/report"

# -- the sweep: nodes, ranks per node, Gbit/s, network, exchanges

# The number of messages grows with the square of the ranks, and so does the time to simulate them:
# above 256 ranks some exchanges and bandwidths are left out, and the report fills in the cost model.
all="ring gather_scatter flat hierarchical all_gather"
sweep() {
  local nodes ranks gbit
  if ((quick)); then
    for nodes in 16 32; do
      for gbit in 2.7 40; do
        echo "$nodes 1 $gbit plain $all"
        echo "$nodes 4 $gbit plain $all"
      done
    done
    return
  fi
  echo "256 8 2.7 plain hierarchical" # the longest first
  for gbit in 2.7 40; do
    echo "128 4 $gbit plain ring flat hierarchical"
    echo "64 8 $gbit plain ring flat hierarchical"
    echo "256 4 $gbit plain hierarchical"
    echo "128 8 $gbit plain hierarchical"
  done
  for gbit in 2.7 10 40 100; do
    for nodes in 16 32 64 128 256; do
      for ranks in 1 4 8; do
        ((nodes * ranks > 256)) || echo "$nodes $ranks $gbit plain $all"
      done
    done
  done
  # what the papers' profile is held against
  for nodes in 2 4 8 16 32 64; do echo "$nodes 4 4.8 plain $all"; done
  # the cost model on another network than it was written for
  for gbit in 2.7 10 40; do
    for ranks in 1 4 8; do echo "16 $ranks $gbit tcp $all"; done
    echo "64 1 $gbit tcp $all"
  done
}

# Latencies are those of TCP on Ethernet and of PCIe. plain: the bandwidths and latencies are what a
# program gets. tcp: they are those of the wire, of which SimGrid takes what it measured of TCP:
# headers, acknowledgements that travel against the data, and delays.
simulate() { # nodes, ranks per node, Gbit/s, network, exchange...
  local nodes="$1" ranks_per_node="$2" gbit="$3" network="$4" hosts
  shift 4
  local factors=()
  if [[ "$network" == plain ]]; then
    factors=(--cfg=smpi/bw-factor:0:1 --cfg=smpi/lat-factor:0:1 --cfg=network/crosstraffic:0)
  fi
  hosts="$(mktemp)"
  seq -f 'rank%.0f' 0 $((nodes * ranks_per_node - 1)) >"$hosts"
  CLUSTER_NODES="$nodes" CLUSTER_RANKS_PER_NODE="$ranks_per_node" CLUSTER_GBIT="$gbit" \
    CLUSTER_INSIDE_GBIT=100 CLUSTER_LATENCY_US=30 CLUSTER_INSIDE_LATENCY_US=5 \
    CLUSTER_NETWORK="$network" \
    smpirun -np $((nodes * ranks_per_node)) -platform "./$build/platform.so" -hostfile "$hosts" \
    --log=root.thres:critical --cfg=smpi/simulate-computation:no --cfg=smpi/shared-malloc:local \
    "${factors[@]}" "./$build/simulate" "$ranks_per_node" 336226108 2 0.09652 "$@"
  rm -f "$hosts"
}
export build
export -f simulate

results="$build/results"
rm -rf "$results"
mkdir -p "$results"
# shellcheck disable=SC2016 # expanded by the shell that xargs starts
sweep | xargs -P "${ONEBIT_JOBS:-$(nproc)}" -L 1 \
  nice bash -c 'set -e; simulate "$@" >"build/cluster/results/$1-$2-$3-$4"' _
sort -s -t , -k 1,1V -k 2,2V -k 3,3V "$results"/* >"$out.json"

{
  echo "command: $command"
  "$build/report" --plot "$build/plot" "$out.json"
} | tee "$out.txt"
gnuplot -e "data='$build/plot'; out='$out.svg'" bench/cluster/plot.gp
