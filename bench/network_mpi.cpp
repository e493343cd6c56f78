// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Exchanges against MPI's ring allreduce, among MPI ranks behind slow links: bench/network.sh runs
// it. One process measures all contenders, in turn, so that whatever disturbs the machine disturbs
// all of them. A time is the largest over the ranks; a ratio is that of neighbouring measurements.
//
//   bench_network_mpi [--sizes=20,22,24] [--buckets=20,21,22] [--ranks-per-node=1] [--seconds=20]
//                     [--only=NAME,NAME] [--json=FILE]
//
// --sizes     numbers of floats, as powers of two
// --buckets   sizes of the bucketed exchange's buckets, likewise
// --ranks-per-node  above 1 also the hierarchical exchange
// --seconds   aim per size, which sets the rounds: 3 at least, 31 at most
// --only      leaves out all other exchanges but the ring
// --json      FILE gets an array of objects, one per line

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <onebit/compressor/sign.hpp>
#include <onebit/transport/mpi.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "exchange.hpp"
#include "mpi_program.hpp"
#include "support.hpp"

namespace {

using namespace onebit_bench;
using onebit::mpi;
using sign = onebit::sign<>;

// -- the algorithms of MPI's collectives

struct allreduce_algorithm {
  int number;  ///< Open MPI's, of coll_tuned_allreduce_algorithm
  const char* name;
};
constexpr allreduce_algorithm ring{4, "ring"};
/// The ones that may be as quick for large vectors; 0 is what Open MPI decides by itself.
constexpr allreduce_algorithm others[] = {
    {0, "default"}, {3, "recursive doubling"}, {5, "segmented ring"}, {6, "rabenseifner"}};
/// Of coll_tuned_allgather_algorithm, for whatever all-gathers, the dense exchange included: with
/// chunks of half a megabyte, Open MPI's own choice took a fifth longer at 100 Mbit/s.
constexpr int ring_allgather = 4;

/// Communicators made while one of these lives use that algorithm: Open MPI reads the setting when
/// it makes a communicator, and MPI's tools interface can change it in a running program.
class chosen_algorithm {
 public:
  chosen_algorithm(const char* setting, int number) {
    int provided = 0, index = 0, count = 0;
    if (std::getenv("OMPI_MCA_coll_tuned_use_dynamic_rules") == nullptr ||
        MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) {
      throw std::runtime_error("set OMPI_MCA_coll_tuned_use_dynamic_rules=1; needs Open MPI");
    }
    if (MPI_T_cvar_get_index(setting, &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, nullptr, &handle_, &count) != MPI_SUCCESS || !set(number)) {
      throw std::runtime_error("this MPI does not let a program set " + std::string(setting));
    }
  }
  chosen_algorithm(const chosen_algorithm&) = delete;
  chosen_algorithm& operator=(const chosen_algorithm&) = delete;
  ~chosen_algorithm() {
    set(0);
    MPI_T_cvar_handle_free(&handle_);
    MPI_T_finalize();
  }

 private:
  bool set(int number) {
    int now = -1;
    return MPI_T_cvar_write(handle_, &number) == MPI_SUCCESS &&
           MPI_T_cvar_read(handle_, &now) == MPI_SUCCESS && now == number;
  }
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
};

// -- where the time goes

/// Milliseconds of one exchange on one rank, seen from its transport: before the first collective,
/// in collectives, between them, after the last. What overlaps counts as communication.
struct phases {
  double encode = 0, communicate = 0, average = 0, decode = 0;
};

class stopwatch {
 public:
  void start() {
    parts_ = {};
    part_ = &parts_.encode;
    last_ = clock::now();
  }
  void enter() {
    lap();
    part_ = &parts_.communicate;
  }
  void leave() {
    lap();
    part_ = &parts_.average;
    after_last_ = 0;
  }
  /// What follows the last collective was no average for others, but the decoding.
  phases stop() {
    lap();
    parts_.average -= after_last_;
    parts_.decode = after_last_;
    return parts_;
  }

 private:
  using clock = std::chrono::steady_clock;
  void lap() {
    const auto now = clock::now();
    const double ms = 1e3 * onebit_bench::seconds(now - last_).count();
    *part_ += ms;
    after_last_ = part_ == &parts_.average ? ms : 0;
    last_ = now;
  }

  phases parts_;
  double* part_ = &parts_.encode;
  double after_last_ = 0;
  clock::time_point last_;
};

/// A transport that tells a stopwatch when it is at work.
class watched : public mpi {
 public:
  /// Without a deadline, with which it would sum by MPI_Iallreduce: that is no ring, and slower.
  watched(MPI_Comm communicator, stopwatch& watch)
      : mpi(communicator, std::chrono::milliseconds(0)), watch_(&watch) {}
  watched(mpi inner, stopwatch& watch) : mpi(std::move(inner)), watch_(&watch) {}

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    watch_->enter();
    mpi::all_to_all(send, receive, slot_bytes);
    watch_->leave();
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    watch_->enter();
    mpi::all_gather(send, receive, slot_bytes);
    watch_->leave();
  }
  void all_reduce_sum(float* data, std::size_t n) {
    watch_->enter();
    mpi::all_reduce_sum(data, n);
    watch_->leave();
  }

  /// A started collective: only its calls count as communication.
  class request {
   public:
    request(onebit::detail::mpi_request inner, stopwatch& watch)
        : inner_(std::move(inner)), watch_(&watch) {}
    void wait() {
      watch_->enter();
      inner_.wait();
      watch_->leave();
    }
    [[nodiscard]] bool test() { return inner_.test(); }

   private:
    onebit::detail::mpi_request inner_;
    stopwatch* watch_;
  };
  [[nodiscard]] request start_all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    return {mpi::start_all_to_all(send, receive, slot_bytes), *watch_};
  }
  [[nodiscard]] request start_all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    return {mpi::start_all_gather(send, receive, slot_bytes), *watch_};
  }
  [[nodiscard]] watched split(int color, int key) const {
    return {mpi::split(color, key), *watch_};
  }

 private:
  stopwatch* watch_;
};

watched connect(int allreduce, stopwatch& watch) {
  const chosen_algorithm reduce("coll_tuned_allreduce_algorithm", allreduce);
  const chosen_algorithm gather("coll_tuned_allgather_algorithm", ring_allgather);
  return {MPI_COMM_WORLD, watch};
}

// -- the contenders

struct contender {
  std::string name;
  std::string note;
  std::function<void()> run;
  std::function<std::uint64_t()> bytes_sent;
};

template <class Exchange, class... Args>
contender contend(const std::string& name, rank_memory& memory, const watched& transport,
                  std::string note = "", Args... args) {
  const onebit::communicator comm(transport);
  auto exchange = std::make_shared<Exchange>(comm, memory.size(), args...);
  return {name, std::move(note), [exchange, &memory] { exchange->average(memory.grads()); },
          [comm] { return comm.sent().bytes_sent; }};
}
template <class Collective>
contender contend(const std::string& name, rank_memory& memory, const watched& transport,
                  const Collective& collective, std::string note = "") {
  return contend<compressed_mean<Collective>>(name, memory, transport, std::move(note), collective);
}

struct links {
  watched by_ring;   ///< whose allreduce is the ring
  watched by_other;  ///< the quickest other one
  const char* other;
};

/// All that is compared, the ring first. One line adds another exchange.
std::vector<contender> contenders(rank_memory& memory, const links& l, int ranks_per_node,
                                  const std::vector<unsigned>& buckets) {
  std::vector<contender> all = {
      contend<bare_allreduce>("ring", memory, l.by_ring),
      contend<bare_allreduce>("other_allreduce", memory, l.by_other, l.other),
      contend<dense_mean>("dense", memory, l.by_ring, "", onebit::dense_sum::rank_order),
      contend("gather_scatter", memory, l.by_ring, onebit::gather_scatter<sign>{}),
      contend("all_gather", memory, l.by_ring, onebit::all_gather<sign>{}),
  };
  for (const unsigned exponent : buckets) {
    const std::size_t elements = std::size_t{1} << exponent;
    if (memory.size() < 2 * elements) continue;
    const std::string number = std::to_string(exponent);
    all.push_back(contend("bucketed_" + number, memory, l.by_ring,
                          onebit::gather_scatter{sign{}, elements}, "buckets of 2^" + number));
  }
  if (ranks_per_node > 1 && l.by_ring.size() > ranks_per_node) {
    all.push_back(
        contend("hierarchical", memory, l.by_ring, onebit::hierarchical{sign{}, ranks_per_node}));
  }
  return all;
}

// -- measuring

struct measurement {
  double ms = 0;          ///< of the slowest rank
  phases mean;            ///< over the ranks
  double wire_bytes = 0;  ///< of the node that sent most
};

double over_ranks(double mine, MPI_Op op) {
  double all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, op, MPI_COMM_WORLD);
  return all;
}

measurement measure(const contender& c, rank_memory& memory, stopwatch& watch) {
  memory.refill();
  MPI_Barrier(MPI_COMM_WORLD);
  const std::uint64_t before = bytes_on_wire();
  MPI_Barrier(MPI_COMM_WORLD);
  watch.start();
  c.run();
  const phases mine = watch.stop();
  MPI_Barrier(MPI_COMM_WORLD);  // what is under way has arrived
  const auto communicator = static_cast<double>(bytes_on_wire() - before);
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto mean = [&](double value) { return over_ranks(value, MPI_SUM) / size; };
  return {over_ranks(mine.encode + mine.communicate + mine.average + mine.decode, MPI_MAX),
          {mean(mine.encode), mean(mine.communicate), mean(mine.average), mean(mine.decode)},
          over_ranks(communicator, MPI_MAX)};
}

/// The quickest allreduce besides the ring for n floats, by one try each.
const allreduce_algorithm& quickest_other(rank_memory& memory, stopwatch& watch) {
  const allreduce_algorithm* best = nullptr;
  double least = 0;
  for (const auto& candidate : others) {
    const watched transport = connect(candidate.number, watch);
    const auto c = contend<bare_allreduce>(candidate.name, memory, transport);
    const double ms = measure(c, memory, watch).ms;  // the same on all ranks
    if (best == nullptr || ms < least) {
      best = &candidate;
      least = ms;
    }
  }
  return *best;
}

template <class Get>
std::vector<double> collect(const std::vector<measurement>& all, Get get) {
  std::vector<double> values;
  for (const measurement& m : all) values.push_back(get(m));
  return values;
}

struct options {
  std::vector<unsigned> sizes{20, 22, 24};
  std::vector<unsigned> buckets{20, 21, 22};
  int ranks_per_node = 1;
  double seconds = 20;
  std::vector<std::string> only;
  std::string json;

  [[nodiscard]] bool wanted(const std::string& name) const {
    return only.empty() || std::find(only.begin(), only.end(), name) != only.end();
  }
};

class benchmark {
 public:
  explicit benchmark(const options& o) : options_(o) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    if (rank_ == 0 && !o.json.empty()) {
      json_.open(o.json);
      if (!json_) throw std::runtime_error("cannot write " + o.json);
    }
  }

  void run() {
    if (rank_ == 0) {
      std::printf("%-16s %8s %10s %10s %10s  %7s %6s..%-6s %9s = %8s %8s %8s %8s\n", "exchange",
                  "floats", "ms", "least", "most", "x ring", "", "", "wire MB", "encode", "commun.",
                  "average", "decode");
    }
    for (const unsigned exponent : options_.sizes) run_size(exponent);
    if (rank_ == 0 && json_.is_open()) {
      json_ << "\n]\n";
      json_.close();
      if (!json_) throw std::runtime_error("cannot write " + options_.json);
    }
  }

 private:
  void run_size(unsigned exponent) {
    const std::size_t n = std::size_t{1} << exponent;
    const auto seed = static_cast<std::uint64_t>(rank_) + 1;
    // Beyond some size the bandwidth decides, the same way for all larger ones.
    const std::size_t tried = std::min(n, std::size_t{1} << 22U);
    rank_memory small(onebit::host(), tried, seed);
    const allreduce_algorithm& other =
        options_.wanted("other_allreduce") ? quickest_other(small, watch_) : others[0];

    rank_memory memory(onebit::host(), n, seed);
    auto all = contenders(memory,
                          {connect(ring.number, watch_), connect(other.number, watch_), other.name},
                          options_.ranks_per_node, options_.buckets);
    all.erase(std::remove_if(all.begin() + 1, all.end(),
                             [&](const contender& c) { return !options_.wanted(c.name); }),
              all.end());
    const double warm_up = time_of([&] { round(all, memory, nullptr); });
    const double largest = over_ranks(warm_up, MPI_MAX);
    const int rounds = std::clamp(static_cast<int>(options_.seconds / largest), 3, 31);

    std::vector<std::vector<measurement>> results(all.size());
    std::vector<std::uint64_t> sent(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) sent[i] = all[i].bytes_sent();
    for (int i = 0; i < rounds; ++i) round(all, memory, &results);
    for (std::size_t i = 0; i < all.size(); ++i) {
      sent[i] = (all[i].bytes_sent() - sent[i]) / static_cast<std::uint64_t>(rounds);
      if (rank_ == 0) report(n, all[i], sent[i], results[i], results[0]);
    }
  }

  void round(const std::vector<contender>& all, rank_memory& memory,
             std::vector<std::vector<measurement>>* results) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const measurement m = measure(all[i], memory, watch_);
      if (results != nullptr) (*results)[i].push_back(m);
    }
  }

  void report(std::size_t n, const contender& c, std::uint64_t sent,
              const std::vector<measurement>& own, const std::vector<measurement>& of_ring) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < own.size(); ++i) ratios.push_back(of_ring[i].ms / own[i].ms);
    const auto ms = collect(own, [](const auto& m) { return m.ms; });
    const auto [ms_least, ms_most] = std::minmax_element(ms.begin(), ms.end());
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    const double communicator = median(collect(own, [](const auto& m) { return m.wire_bytes; }));
    const double encode = median(collect(own, [](const auto& m) { return m.mean.encode; }));
    const double comm = median(collect(own, [](const auto& m) { return m.mean.communicate; }));
    const double average = median(collect(own, [](const auto& m) { return m.mean.average; }));
    const double decode = median(collect(own, [](const auto& m) { return m.mean.decode; }));
    std::printf(
        "%-16s %8zu %10.2f %10.2f %10.2f  %7.2f %6.2f..%-6.2f %9.3f = %8.2f %8.2f %8.2f "
        "%8.2f%s%s\n",
        c.name.c_str(), n, median(ms), *ms_least, *ms_most, median(ratios), *least, *most,
        communicator / 1e6, encode, comm, average, decode, c.note.empty() ? "" : "  ",
        c.note.c_str());
    std::fflush(stdout);
    if (!json_.is_open()) return;
    json_ << (first_ ? "[\n" : ",\n") << "{\"exchange\": \"" << c.name << "\", \"note\": \""
          << c.note << "\", \"ranks\": " << size_ << ", \"n\": " << n
          << ", \"rounds\": " << own.size() << ", \"ms\": " << median(ms)
          << ", \"ms_least\": " << *ms_least << ", \"ms_most\": " << *ms_most
          << ", \"ring_ratio\": " << median(ratios) << ", \"ring_ratio_least\": " << *least
          << ", \"ring_ratio_most\": " << *most << ", \"bytes_sent\": " << sent
          << ", \"wire_bytes\": " << static_cast<std::uint64_t>(communicator)
          << ", \"encode_ms\": " << encode << ", \"communicate_ms\": " << comm
          << ", \"average_ms\": " << average << ", \"decode_ms\": " << decode << "}";
    first_ = false;
  }

  options options_;
  int rank_ = 0, size_ = 1;
  stopwatch watch_;
  std::ofstream json_;
  bool first_ = true;
};

options parse(int argc, char** argv) {
  options o;
  each_argument(argc, argv, [&](const std::string& name, const std::string& value) {
    if (name == "--json") {
      o.json = value;
    } else if (name == "--seconds") {
      o.seconds = std::stod(value);
    } else if (name == "--only") {
      o.only = split(value);
    } else if (name == "--ranks-per-node") {
      o.ranks_per_node = std::stoi(value);
    } else if (name == "--sizes" || name == "--buckets") {
      auto& list = name == "--sizes" ? o.sizes : o.buckets;
      list.clear();
      for (const std::string& one : split(value)) {
        const int exponent = std::stoi(one);
        if (exponent < 5 || exponent > 30) throw std::runtime_error(name + ": from 5 to 30");
        list.push_back(static_cast<unsigned>(exponent));
      }
    } else {
      return false;
    }
    return true;
  });
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_program("bench_network_mpi", argc, argv,
                     [](int n, char** all) { benchmark(parse(n, all)).run(); });
}
