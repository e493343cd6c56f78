#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Measures exchanges and whole training steps over a network as slow as you like, on one machine:
# network namespaces as nodes, joined by a bridge, every port shaped to RATE in both directions.
# Needs root and Open MPI 4; on Debian and Ubuntu it installs what is missing. Takes two to six
# minutes with the build, at 100mbit or more.
#
#   bench/network.sh RATE [RANKS] [option...]       for example: bench/network.sh 1gbit 4
#
# RATE                  of every port, as tc writes it: 100mbit, 2.7gbit
# RANKS                 in all; 4 unless said otherwise
# --ranks-per-node L    L ranks share a node and its port; among them traffic is not shaped (1)
# --sizes LIST          floats, as powers of two: 20,22,24 (to 26, fewer where the network is slow)
# --buckets LIST        sizes of the bucketed exchange's buckets, likewise (18,20,22)
# --seconds S           aim of measuring per size (20); three rounds are made anyway
# --only NAME,NAME      these exchanges and the ring, instead of all
# --burst SIZE          what a port lets pass at full speed after a pause (256kb). Far less costs
#                       bandwidth, because the timer of a busy machine is late
# --steps N             steps of training, 12 of which do not count (40); 0: no training
# --text FILE           what the training learns (the King James Bible)
# --out PREFIX          PREFIX.json, PREFIX.txt and PREFIX.svg (build/network/results/RATE-RANKSxL)
# --timeout S           gives up on an MPI program after so long (900)
# --bench PROGRAM       a bench_network_mpi that is built already, and
# --trainer PROGRAM     a language_model, and
# --advisor PROGRAM     an advisor: with one of these, nothing is built or installed
# --run PROGRAM ARG...  runs this MPI program in that network, instead of all the above; all that
#                       follows is its own
#
# ONEBIT_CMAKE_ARGS   more arguments for cmake, separated by spaces
# ONEBIT_BUILD_DIR    where to build, instead of build/network
#
# Exit status 77: this machine does not let us make such a network; the reason is on stderr.
# The bandwidth is real, the latency is not: between namespaces there is next to none. Payloads of
# the burst's size or below seem to travel faster than they would: mind that where the exchange is
# of 2^20 floats, and in the training's compressed steps.

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source bench/common.sh

fail() {
  echo "network.sh: $*" >&2
  exit 1
}
cannot() { # ctest reports 77 as a skipped test
  echo "network.sh: no shaped network here: $*" >&2
  exit 77
}
usage() { sed -n '/^# Measures/,/^$/s/^# \{0,1\}//p' bench/network.sh; }
absolute() { [[ "$1" == /* ]] && echo "$1" || echo "$here/$1"; }

rate="" ranks="" per_node=1 burst=256kb buckets=18,20,22 advisor=""
sizes="" seconds=20 only="" steps=40 text="" out="" timeout=900
bench="" trainer="" program=()
while (($#)); do
  case "$1" in
    -h | --help) usage && exit ;;
    --*) (($# > 1)) || fail "$1 needs a value" ;;&
    --ranks-per-node) per_node="$2" && shift ;;
    --sizes) sizes="$2" && shift ;;
    --buckets) buckets="$2" && shift ;;
    --seconds) seconds="$2" && shift ;;
    --only) only="$2" && shift ;;
    --burst) burst="$2" && shift ;;
    --steps) steps="$2" && shift ;;
    --text) text="$(absolute "$2")" && shift ;;
    --out) out="$(absolute "$2")" && shift ;;
    --timeout) timeout="$2" && shift ;;
    --bench) bench="$(absolute "$2")" && shift ;;
    --advisor) advisor="$2" && shift ;;
    --trainer) trainer="$(absolute "$2")" && shift ;;
    --run) program=("$(absolute "$2")" "${@:3}") && break ;;
    -*) fail "unknown option $1; see --help" ;;
    *)
      if [[ -z "$rate" ]]; then rate="$1"; elif [[ -z "$ranks" ]]; then ranks="$1"; else
        fail "one RATE and one number of RANKS; see --help"
      fi
      ;;
  esac
  shift
done
[[ -n "$rate" ]] || { usage >&2 && exit 1; }
ranks="${ranks:-4}"
bits="$(bits_of "$rate")"
[[ -n "$bits" && "$bits" != 0 ]] || fail "RATE is a number and kbit, mbit or gbit, not $rate"
[[ "$ranks" =~ ^[1-9][0-9]*$ && "$per_node" =~ ^[1-9][0-9]*$ ]] ||
  fail "the numbers of ranks are positive integers"
[[ "$steps" == 0 || ("$steps" =~ ^[0-9]+$ && "$steps" -gt 12) ]] || fail "--steps: 0, or above 12"
((ranks % per_node == 0)) || fail "$ranks ranks do not fill nodes of $per_node"
nodes=$((ranks / per_node))
((nodes >= 2 && nodes <= 200)) || fail "2 to 200 nodes, not $nodes"

# -- programs

install_packages() {
  local wanted=(g++ cmake iproute2 util-linux libopenmpi-dev openmpi-bin gnuplot-nox libcli11-dev)
  ((steps == 0)) || wanted+=(libeigen3-dev nlohmann-json3-dev)
  ((steps == 0)) || [[ -n "$text" ]] || wanted+=(bible-kjv)
  command -v ninja >/dev/null || wanted+=(make)
  install_missing "${wanted[@]}"
}

build_programs() {
  local build="${ONEBIT_BUILD_DIR:-build/network}" more targets=(bench_network_mpi advisor)
  ((steps == 0)) || targets+=(language_model)
  local configure=(cmake -S . -B "$build" -DCMAKE_BUILD_TYPE=Release -DONEBIT_BUILD_TESTS=OFF
    -DONEBIT_BUILD_EXAMPLES=ON -DONEBIT_BUILD_BENCH=ON -DONEBIT_CUDA=OFF)
  if [[ ! -e "$build/CMakeCache.txt" ]] && command -v ninja >/dev/null; then
    configure+=(-G Ninja)
  fi
  read -r -a more <<<"${ONEBIT_CMAKE_ARGS:-}" || true
  "${configure[@]}" "${more[@]}" >/dev/null
  cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}" >&2
  build="$(realpath "$build")"
  bench="$build/bench/bench_network_mpi"
  advisor="$build/examples/advisor/advisor"
  ((steps == 0)) || trainer="$build/examples/language_model/language_model"
}

((EUID == 0)) || cannot "network namespaces need root; try: sudo bench/network.sh $rate $ranks"
if [[ -z "$bench$trainer$advisor${program[*]}" ]]; then
  install_packages
  build_programs
fi
for command in ip tc unshare hostname mpirun; do
  command -v "$command" >/dev/null || cannot "$command is not installed"
done
mpi_version="$(mpirun --version 2>/dev/null | head -n 1)"
[[ "$mpi_version" == *"Open MPI"*" 4."* ]] || cannot "needs Open MPI 4, not: $mpi_version"

out="${out:-$(realpath -m "${ONEBIT_BUILD_DIR:-build/network}")/results/$rate-${nodes}x$per_node}"
((${#program[@]})) || mkdir -p "$(dirname "$out")"

# -- the network. All names carry this script's process id; nothing is made outside of the
# namespaces, so that deleting them deletes all, and no firewall of the machine sees the traffic.

stem=onebit-network
net="$stem-$$"
temporary="${TMPDIR:-/tmp}"
work="$(mktemp -d "$temporary/$net.XXXXXX")"

namespaces() { ip netns list | awk -v stem="$1-" 'index($1, stem) == 1 { print $1 }'; }

remove() { # stem of namespaces: ends what runs in them, and deletes them
  local name pid signal
  for signal in TERM KILL; do
    for name in $(namespaces "$1"); do
      for pid in $(ip netns pids "$name"); do kill "-$signal" "$pid" 2>/dev/null || true; done
    done
    for _ in {1..20}; do
      for name in $(namespaces "$1"); do
        [[ -z "$(ip netns pids "$name")" ]] || { sleep 0.1 && continue 2; }
      done
      break
    done
  done
  for name in $(namespaces "$1"); do ip netns delete "$name" || true; done
}
cleanup() {
  local status=$?
  trap '' INT TERM HUP
  remove "$net"
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# What a killed run has left: its process is gone, or the id is another program's by now.
remove_stale() {
  local name pid
  for name in $(namespaces "$stem"); do
    pid="${name#"$stem-"}" && pid="${pid%%-*}"
    [[ "$pid" =~ ^[0-9]+$ ]] || continue
    grep -qs network.sh "/proc/$pid/cmdline" || remove "$stem-$pid"
  done
  for name in "$temporary/$stem"-*; do
    pid="${name#"$temporary/$stem-"}" && pid="${pid%%.*}"
    [[ "$pid" =~ ^[0-9]+$ ]] || continue
    grep -qs network.sh "/proc/$pid/cmdline" || rm -rf "$name"
  done
}

subnet=10.77.0 # seen in our namespaces alone
shape() { # namespace, interface
  ip netns exec "$1" tc qdisc replace dev "$2" root tbf rate "$rate" burst "$burst" latency 50ms
}
make_network() {
  ip netns add "$net-switch"
  ip -n "$net-switch" link add bridge type bridge
  ip -n "$net-switch" link set bridge up
  local k node
  for ((k = 0; k < nodes; ++k)); do
    node="$net-node$k"
    ip netns add "$node"
    ip -n "$net-switch" link add "port$k" type veth peer name eth0 netns "$node"
    ip -n "$net-switch" link set "port$k" master bridge up
    ip -n "$node" addr add "$subnet.$((k + 1))/24" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" link set lo up
    shape "$node" eth0
    shape "$net-switch" "port$k"
  done
  # Open MPI tells nodes apart by their names.
  ip netns exec "$net-node0" unshare --uts hostname node0
}

namespaces "$stem" >/dev/null 2>&1 || cannot "ip netns does not work"
remove_stale
make_network 2>"$work/error" || cannot "$(tail -n 1 "$work/error")"

# Stands in for ssh.
cat >"$work/agent" <<END
while [[ "\$1" == -* ]]; do shift; done
k=\$((\${1##*.} - 1)) && shift
exec ip netns exec "$net-node\$k" unshare --uts bash -c "hostname node\$k; \$*"
END

hosts=""
for ((k = 1; k <= nodes; ++k)); do hosts+="${hosts:+,}$subnet.$k:$per_node"; done
transports=self,tcp
((per_node == 1)) || transports+=,vader # memory that the ranks of a node share

# In the background, because a shell attends to no signal while it waits for a foreground command.
mpi() { # file for a copy of the output, program and its arguments
  local copy="$1"
  shift
  {
    ip netns exec "$net-node0" unshare --uts bash -c 'hostname node0 && exec "$@"' _ \
      env TMPDIR="$work" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
      OMPI_MCA_coll_tuned_use_dynamic_rules=1 \
      mpirun --timeout "$timeout" -H "$hosts" -np "$ranks" --bind-to none \
      --mca plm rsh --mca plm_rsh_agent "bash $work/agent" --mca plm_rsh_no_tree_spawn 1 \
      --mca oob_tcp_if_include "$subnet.0/24" \
      --mca pml ob1 --mca btl "$transports" --mca btl_tcp_if_include "$subnet.0/24" \
      --mca btl_vader_single_copy_mechanism none --mca mpi_yield_when_idle 1 \
      -x OMPI_MCA_coll_tuned_use_dynamic_rules "$@" 2>&1 | tee "$copy"
  } &
  wait $!
}

# -- measuring

if ((${#program[@]})); then
  # dense and compressed by rings, as large vectors are
  mpi "$work/log" env OMPI_MCA_coll_tuned_allgather_algorithm=4 \
    OMPI_MCA_coll_tuned_allreduce_algorithm=4 "${program[@]}" || fail "$(basename "${program[0]}") failed"
  exit
fi

if [[ -z "$sizes" ]]; then # where the ring takes less than 10 s, and memory suffices
  memory="$(awk '/^MemAvailable/ { print $2 * 1024 }' /proc/meminfo)"
  sizes="$(awk -v bits="$bits" -v ranks="$ranks" -v memory="$memory" 'BEGIN {
    for (e = 20; e <= 26; e += 2)
      if (e == 20 || (2 ^ e * 48 < 10 * bits && 2 ^ e * 32 * ranks < memory))
        list = list (list == "" ? "" : ",") e
    print list
  }')"
fi

{
  echo "$(date -u +%F), $rate on every port, $nodes nodes of $per_node ranks, $mpi_version," \
    "$(nproc) cores, load $(cut -d ' ' -f 1 /proc/loadavg)"
  echo
} | tee "$out.txt"

: >"$work/exchanges.json"
if [[ -n "$bench" ]]; then
  mpi "$work/exchanges.txt" "$bench" "--sizes=$sizes" "--buckets=$buckets" "--seconds=$seconds" \
    "--ranks-per-node=$per_node" "--only=$only" "--json=$work/exchanges.json" || fail "the exchanges failed"
  cat "$work/exchanges.txt" >>"$out.txt"
fi

# What the advisor, that measures this network by itself, would have said of the largest exchange.
: >"$work/predictions.json"
if [[ -n "$advisor" && -s "$work/exchanges.json" ]]; then
  n=$((1 << ${sizes##*,}))
  # by the algorithms that the exchanges above use
  mpi "$work/advisor.txt" env OMPI_MCA_coll_tuned_allgather_algorithm=4 \
    OMPI_MCA_coll_tuned_allreduce_algorithm=4 "$advisor" --measure --json --parameters "$n" --compute 0ms \
    --ranks-per-node "$per_node" >/dev/null || { cat "$work/advisor.txt" >&2 && fail "no advice"; }
  awk -v n="$n" -v json="$work/predictions.json" '
    function value(name,   text) {
      if (!match($0, "\"" name "\": *\"?[^,\"}]+")) return ""
      text = substr($0, RSTART, RLENGTH)
      sub(/^[^:]*: *"?/, "", text)
      return text
    }
    FILENAME ~ /exchanges/ && value("n") == n { ms[value("exchange")] = value("ms") }
    FILENAME ~ /advisor/ && value("exchange") != "" {
      e = value("exchange")
      # exchange and passes; of the dense ones the exchange alone is measured above
      seconds = value(e ~ /^(ring|dense_gather_scatter)$/ ? "exchange_seconds" : "step_seconds")
      if (e == "dense_gather_scatter") e = "dense"
      at[e] = 1e3 * seconds
    }
    END {
      printf "\nthe advisor, by its own measurements, for %d floats\n", n
      printf "%-16s %12s %12s %8s\n", "exchange", "measured ms", "predicted ms", "error"
      split("ring dense gather_scatter all_gather hierarchical", names, " ")
      for (i = 1; i <= 5; ++i) {
        e = names[i]
        if (!(e in ms) || !(e in at)) continue
        printf "%-16s %12.2f %12.2f %+7.1f%%\n", e, ms[e], at[e], 100 * (at[e] / ms[e] - 1)
        printf "%s{\"exchange\": \"%s\", \"n\": %d, \"measured_ms\": %.3f, " \
          "\"predicted_ms\": %.3f}", k++ ? ",\n" : "", e, n, ms[e], at[e] >json
      }
    }' "$work/exchanges.json" "$work/advisor.txt" | tee -a "$out.txt"
fi

# The trainer's table is over all steps. So it stops after 12, ten of which freeze the variance, and
# goes on from there: the difference of the two tables is that of the steps between.
: >"$work/training.json"
if [[ -n "$trainer" ]] && ((steps > 0)); then
  training=("$trainer" --transport mpi --steps "$steps" --freeze-after 10
    --out "$work/out" --checkpoint "$work/checkpoint")
  [[ -z "$text" ]] || training+=(--text "$text")
  mkdir -p "$work/checkpoint"
  mpi "$work/first.txt" "${training[@]}" --stop-after 12 >"$work/log" ||
    { cat "$work/log" >&2 && fail "the training failed"; }
  mpi "$work/all.txt" "${training[@]}" --resume >"$work/log" ||
    { cat "$work/log" >&2 && fail "the training failed"; }
  awk -v first=12 -v all="$steps" -v json="$work/training.json" '
    / = +[0-9.]+ \+ / {
      # from the end: update, encode, communicate, compute, and their sum
      split(NF " " NF - 4 " " NF - 2 " " NF - 6 " " NF - 8, at)
      steps = FILENAME ~ /first/ ? first : all
      if (steps == first) order[++n] = $1
      for (i = 1; i <= 5; ++i)
        ms[$1, i] += $at[i] * steps * (steps == first ? -1 : 1) / (all - first)
      mb[$1] += $3 * (steps == first ? -1 : 1) / (all - first)
    }
    END {
      printf "\nsteps %d to %d: mean over the ranks and steps, milliseconds\n", first + 1, all
      printf "%-14s %10s %10s = %8s + %8s + %11s + %8s\n", "algorithm", "MB sent", "ms/step",
        "compute", "encode", "communicate", "update"
      for (i = 1; i <= n; ++i) {
        a = order[i]
        printf "%-14s %10.3f %10.2f = %8.2f + %8.2f + %11.2f + %8.2f\n", a, mb[a], ms[a, 5],
          ms[a, 4], ms[a, 2], ms[a, 3], ms[a, 1]
        printf "%s{\"algorithm\": \"%s\", \"steps\": %d, \"bytes_sent\": %.0f, \"ms\": %.3f, " \
          "\"compute_ms\": %.3f, \"encode_ms\": %.3f, \"communicate_ms\": %.3f, " \
          "\"update_ms\": %.3f}", i == 1 ? "" : ",\n", a, all - first, mb[a] * 1e6, ms[a, 5],
          ms[a, 4], ms[a, 2], ms[a, 3], ms[a, 1] >json
      }
      print "" >json
      exit n == 0
    }' "$work/first.txt" "$work/all.txt" | tee -a "$out.txt" ||
    fail "the trainer printed no table"
fi

# -- results

[[ -s "$work/exchanges.json" ]] || echo "[]" >"$work/exchanges.json"
{
  printf '{\n"date": "%s", "rate": "%s", "bits_per_second": %s, "nodes": %d, ' \
    "$(date -u +%F)" "$rate" "$bits" "$nodes"
  printf '"ranks_per_node": %d, "ranks": %d, "cores": %d, "mpi": "%s",\n"exchanges": ' \
    "$per_node" "$ranks" "$(nproc)" "$mpi_version"
  cat "$work/exchanges.json"
  printf ',\n"predictions": [\n'
  cat "$work/predictions.json"
  printf '],\n"training": [\n'
  cat "$work/training.json"
  printf ']\n}\n'
} >"$out.json"
written="$out.json and .txt"
if [[ -n "$bench" ]] && command -v gnuplot >/dev/null; then
  bench/network_plot.sh "$out.svg" "$out.json" && written+=" and .svg"
fi
printf '\n%s\n' "$written"
