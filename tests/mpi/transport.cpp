// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The MPI transport on as many ranks as mpirun was given.

#include <doctest/doctest.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <onebit/core/error.hpp>
#include <onebit/testing/transport.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/mpi.hpp>
#include <onebit/transport/staged.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/fake_device.hpp"
#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::thrown;

namespace {

/// Waits for all ranks and tells whether all succeeded, so that a failure leaves none behind.
bool all_agree(bool mine) {
  int ok = mine ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
  return ok != 0;
}

/// Handler of MPI_COMM_WORLD for a scope, as a trainer may set it: its errors are returned.
class returned_errors {
 public:
  returned_errors() {
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  returned_errors(const returned_errors&) = delete;
  returned_errors& operator=(const returned_errors&) = delete;
  ~returned_errors() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
    MPI_Errhandler_free(&before_);
  }

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

}  // namespace

TEST_CASE("conforms to the concept") {
  onebit::mpi transport(MPI_COMM_WORLD);
  for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  onebit::communicator counted{transport};
  for (const auto& failure : onebit_test::transport_failures(counted)) FAIL_CHECK(failure);
}

TEST_CASE("rank and size are those of the communicator") {
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const onebit::mpi transport(MPI_COMM_WORLD);
  CHECK(transport.rank() == rank);
  CHECK(transport.size() == size);
}

TEST_CASE("works on a part of the ranks, in the communicator's own order") {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
  {
    onebit::mpi transport(part);
    MPI_Comm_free(&part);  // the transport has its own
    const int mine = rank;
    std::vector<int> all(static_cast<std::size_t>(transport.size()));
    transport.all_gather(&mine, all.data(), sizeof mine);
    for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i] == all[i - 1] - 2);
    for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("copies and moved handles work on") {
  std::optional<onebit::mpi> first(std::in_place, MPI_COMM_WORLD);
  onebit::mpi copy = *first;
  onebit::mpi moved = std::move(*first);
  first.reset();
  float one = 1;
  copy.all_reduce_sum(&one, 1);
  moved.all_reduce_sum(&one, 1);
  const auto n = static_cast<float>(copy.size());
  CHECK(one == n * n);
}

TEST_CASE("its messages do not meet the trainer's own on the same communicator") {
  onebit::mpi transport(MPI_COMM_WORLD);
  const int left = (transport.rank() + transport.size() - 1) % transport.size();
  const int right = (transport.rank() + 1) % transport.size();
  int out = transport.rank(), in = -1;
  MPI_Request requests[2];
  MPI_Irecv(&in, 1, MPI_INT, left, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
  for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  MPI_Isend(&out, 1, MPI_INT, right, 7, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  CHECK(in == left);
}

TEST_CASE("an invalid communicator is a transport_error, not the end of the program") {
  CHECK(thrown<onebit::transport_error>([] { onebit::mpi{MPI_COMM_NULL}; }) ==
        "onebit::mpi: the communicator is MPI_COMM_NULL");
}

TEST_CASE("an intercommunicator is refused") {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) return;
  MPI_Comm part = MPI_COMM_NULL, across = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &part);
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &across);
  CHECK(thrown<onebit::transport_error>([&] { onebit::mpi{across}; }) ==
        "onebit::mpi: the communicator is an intercommunicator; MPI_Intercomm_merge makes one of "
        "all its ranks");
  MPI_Comm whole = MPI_COMM_NULL;
  MPI_Intercomm_merge(across, rank % 2, &whole);
  CHECK(onebit::mpi(whole).size() == size);
  for (MPI_Comm* c : {&part, &across, &whole}) MPI_Comm_free(c);
}

TEST_CASE("another library's launcher, which starts jobs of one rank, is told with both numbers") {
  const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
  std::vector<std::optional<std::string>> before;
  for (const char* name : names) {
    const char* const value = std::getenv(name);
    before.push_back(value == nullptr ? std::nullopt : std::optional<std::string>(value));
    unsetenv(name);
  }
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const auto build = [] { return onebit::mpi(MPI_COMM_WORLD).size(); };
  for (const char* name : names) {
    setenv(name, "4", 1);
    if (size == 1) {
      const auto text = thrown<onebit::transport_error>(build);
      CHECK(text == contains{"mpi: MPI_COMM_WORLD has 1 rank, but the launcher started 4 processes "
                             "(" +
                             std::string(name) + ")"});
      CHECK(text == contains{"pass MPI_COMM_SELF"});
      CHECK((text.find("srun --mpi=pmi2") != std::string::npos) == (name == names[2]));
      MPI_Comm copy = MPI_COMM_NULL;
      MPI_Comm_dup(MPI_COMM_WORLD, &copy);
      CHECK(thrown<onebit::transport_error>([&] { onebit::mpi{copy}; }) == text);
      MPI_Comm_free(&copy);
    } else {
      CHECK(build() == size);
    }
    CHECK(onebit::mpi(MPI_COMM_SELF).size() == 1);
    // a part of one rank, and a launcher (of one process of an outer job) that says 1
    if (size > 1) {
      const onebit::mpi whole(MPI_COMM_WORLD);
      CHECK(whole.split(whole.rank(), 0).size() == 1);
    }
    const char* const inner = name == names[1] ? names[0] : names[1];
    setenv(inner, "1", 1);
    CHECK(build() == size);
    unsetenv(inner);
    unsetenv(name);
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i]) setenv(names[i], before[i]->c_str(), 1);
  }
}

TEST_CASE("an error code of MPI becomes a transport_error with MPI's own words") {
  // Libraries need not notice unequal sizes; this receive buffer all of them refuse, at the call.
  onebit::mpi transport(MPI_COMM_WORLD);
  std::vector<char> send(64);
  const auto text =
      thrown<onebit::transport_error>([&] { transport.all_gather(send.data(), MPI_IN_PLACE, 4); });
  CHECK(text == contains{"onebit::mpi: MPI_Iallgather failed with code "});
  CHECK(text == contains{"[rank " + std::to_string(transport.rank()) + "/"});
  for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
}

TEST_CASE("sums have the same bits in each call, with a time-out and without") {
  onebit::mpi unlimited(MPI_COMM_WORLD, std::chrono::milliseconds(0)), limited(MPI_COMM_WORLD);
  std::vector<float> mine(5000);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto seed = static_cast<std::uint64_t>(limited.rank()) * 7919 + i;
    mine[i] = onebit_test::noise(seed) * onebit_test::noise(seed + 1000003);  // no sum is exact
  }
  auto first = mine;
  unlimited.all_reduce_sum(first.data(), first.size());
  for (int i = 0; i < 8; ++i) {
    CAPTURE(i);
    for (onebit::mpi* transport : {&unlimited, &limited}) {
      auto again = mine;
      transport->all_reduce_sum(again.data(), again.size());
      CHECK(again == first);
    }
  }
}

TEST_CASE("collectives that were started arrive, however they are waited for") {
  onebit::mpi transport(MPI_COMM_WORLD);
  for (const auto& failure : onebit_test::request_failures(transport)) FAIL_CHECK(failure);
  onebit::communicator counted{transport};
  for (const auto& failure : onebit_test::request_failures(counted)) FAIL_CHECK(failure);
}

TEST_CASE("a started collective counts once, when it starts, and only the time inside its calls") {
  onebit::communicator counted{onebit::mpi(MPI_COMM_WORLD)};
  const auto others = static_cast<std::uint64_t>(counted.size() - 1);
  std::vector<char> send(800), receive(800);
  auto one = counted.start_all_to_all(send.data(), receive.data(), 100);
  CHECK(counted.sent().bytes_sent == 100 * others);
  CHECK(counted.sent().collectives == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  (void)one.test();
  one.wait();
  CHECK(counted.sent().bytes_sent == 100 * others);
  CHECK(counted.sent().collectives == 1);
  {
    const auto unfinished = counted.start_all_gather(send.data(), receive.data(), 100);
    CHECK(counted.sent().collectives == 2);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  // Other ranks sleep as long; a machine that is busy may still be late for some of it.
  CHECK(counted.sent().seconds < 0.29);
}

TEST_CASE("an error of a started call is told by wait or test, once") {
  // A message that is longer than its buffer: the one such error that all libraries notice.
#ifdef I_MPI_VERSION
  const returned_errors of_trainer;  // or Intel MPI ends the job
#endif
  const onebit::detail::mpi_group group(MPI_COMM_WORLD, std::chrono::seconds(60));
  const MPI_Comm comm = group.comm(onebit::detail::mpi_group::gathers);
  if (group.size() == 1) return;  // Open MPI 4 copies a message to oneself without a look
  const int left = (group.rank() + group.size() - 1) % group.size();
  const int right = (group.rank() + 1) % group.size();
  for (const bool waits : {true, false}) {
    char out[16] = "", in[16] = "";
    MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
    MPI_Irecv(in, 4, MPI_BYTE, left, 1, comm, &receive);
    onebit::detail::mpi_request request(group, onebit::detail::mpi_slot(group, 4), receive,
                                        "MPI_Irecv");
    MPI_Isend(out, 16, MPI_BYTE, right, 1, comm, &send);
    const auto text = thrown<onebit::transport_error>([&] {
      if (waits) request.wait();
      while (!request.test()) std::this_thread::yield();
    });
    CHECK(text == contains{"onebit::mpi: MPI_Irecv failed with code "});
    CHECK(text == contains{"[rank " + std::to_string(group.rank()) + "/"});
    request.wait();
    CHECK(request.test());
    MPI_Wait(&send, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

#ifdef OPEN_MPI
TEST_CASE("Open MPI: unequal sizes in a started collective are told") {
  onebit::mpi transport(MPI_COMM_WORLD);
  if (transport.size() != 2) return;
  const returned_errors of_trainer;  // or version 4 ends the job
  std::vector<char> send(64), receive(64);
  const bool shorter = transport.rank() == 0;
  const auto text = thrown<onebit::transport_error>(
      [&] { transport.all_to_all(send.data(), receive.data(), shorter ? 4 : 16); });
  if (shorter) CHECK(text == contains{"onebit::mpi: MPI_Ialltoall failed with code "});
  MPI_Barrier(MPI_COMM_WORLD);
}
#endif

TEST_CASE("a rank that builds no transport: the others are told, in time") {
  MPI_Comm own = MPI_COMM_NULL;  // what was given up lasts
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  int rank = 0, size = 0;
  MPI_Comm_rank(own, &rank);
  MPI_Comm_size(own, &size);
  if (size == 1) return;
  if (rank == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    MPI_Request here = MPI_REQUEST_NULL;
    MPI_Ibarrier(own, &here);
    MPI_Wait(&here, MPI_STATUS_IGNORE);
  } else {
    CHECK(thrown<onebit::transport_error>([&] {
            onebit::mpi(own, std::chrono::milliseconds(200));
          }) == contains{"after 200 ms not all ranks of the communicator build a transport"});
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("a rank that does not come is named on all that wait, in time") {
  const int last = [] {
    int n = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    return n - 1;
  }();
  if (last == 0) return;
  const std::chrono::milliseconds deadline(400);
  const auto check = [&](const auto& call, const char* name) {
    MPI_Barrier(MPI_COMM_WORLD);  // the construction has the same deadline
    onebit::mpi transport(MPI_COMM_WORLD, deadline);
    std::vector<char> send(64 * 8), receive(64 * 8);  // outlive what was given up
    const auto start = std::chrono::steady_clock::now();
    if (transport.rank() == last) std::this_thread::sleep_for(deadline + deadline);
    std::string text;
    try {
      call(transport, send.data(), receive.data());
    } catch (const onebit::transport_error& e) {
      text = e.what();
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (transport.rank() != last) {
      CHECK(text ==
            contains{std::string("gave up ") + name + " after 400 ms; no answer (dead, stuck"});
      CHECK(text == contains{": rank " + std::to_string(last)});
      CHECK(waited.count() < 0.4 + 1);
      CHECK(thrown<onebit::transport_error>([&] {
              transport.all_gather(send.data(), receive.data(), 8);
            }) == text);  // of no use any more, and says so at once
    }
    // Here it did come: the others have given up, but MPI ends their calls.
    MPI_Barrier(MPI_COMM_WORLD);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    MPI_Barrier(MPI_COMM_WORLD);
  };
  check([](auto& t, auto* from, auto* to) { t.all_to_all(from, to, 8); }, "MPI_Ialltoall");
  check([](auto& t, auto* from, auto* to) { t.all_gather(from, to, 8); }, "MPI_Iallgather");
  check([](auto& t, auto* from, auto*) { t.all_reduce_sum(reinterpret_cast<float*>(from), 2); },
        "MPI_Iallreduce");
  check([](auto& t, auto* from, auto* to) { (void)t.start_all_to_all(from, to, 8).wait(); },
        "MPI_Ialltoall");
}

TEST_CASE("a rank so late that the others have given up, and left notes that it does not read") {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) return;
  std::vector<char> send(8), receive(8 * 64);
  {
    MPI_Barrier(MPI_COMM_WORLD);
    onebit::mpi transport(MPI_COMM_WORLD, std::chrono::milliseconds(400));
    const auto call = [&] { transport.all_gather(send.data(), receive.data(), 8); };
    if (rank == size - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      // its call succeeds, or it is told; MPICH must not end it when it frees the communicators
      const auto text = thrown<onebit::transport_error>(call);
      CHECK((text == "thrown: nothing" || text == contains{"gave up MPI_Iallgather"}));
    } else {
      CHECK(thrown<onebit::transport_error>(call) ==
            contains{"gave up MPI_Iallgather after 400 ms; no answer (dead, stuck or elsewhere)"});
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("collectives of the two kinds need no common order") {
  onebit::mpi t(MPI_COMM_WORLD);
  const auto n = static_cast<std::size_t>(t.size());
  std::vector<int> send(n), scattered(n), gathered(n);
  for (std::size_t r = 0; r < n; ++r) send[r] = t.rank() * 100 + static_cast<int>(r);
  const int mine = 7 + t.rank();
  const auto scatter = [&] { return t.start_all_to_all(send.data(), scattered.data(), 4); };
  const auto gather = [&] { return t.start_all_gather(&mine, gathered.data(), 4); };
  if (t.rank() % 2 == 0) {
    auto a = scatter();
    auto b = gather();
    b.wait();
    a.wait();
  } else {
    auto b = gather();
    auto a = scatter();
    a.wait();
    b.wait();
  }
  for (std::size_t r = 0; r < n; ++r) {
    CHECK(scattered[r] == static_cast<int>(r) * 100 + t.rank());
    CHECK(gathered[r] == 7 + static_cast<int>(r));
  }
}

TEST_CASE("a duplicate conforms, and needs no common order with the transport") {
  onebit::mpi t(MPI_COMM_WORLD);
  onebit::mpi other = t.duplicate();
  CHECK(other.rank() == t.rank());
  for (const auto& failure : onebit_test::transport_failures(other)) FAIL_CHECK(failure);
  const auto n = static_cast<std::size_t>(t.size());
  std::vector<int> few(n), many(8 * n);
  const std::vector<int> mine(8, 7 + t.rank());
  const auto of_t = [&] { return t.start_all_gather(mine.data(), few.data(), 4); };
  const auto of_other = [&] { return other.start_all_gather(mine.data(), many.data(), 32); };
  if (t.rank() % 2 == 0) {
    auto a = of_t();
    auto b = of_other();
    b.wait();
    a.wait();
  } else {
    auto b = of_other();
    auto a = of_t();
    a.wait();
    b.wait();
  }
  for (std::size_t r = 0; r < n; ++r) {
    CHECK(few[r] == 7 + static_cast<int>(r));
    CHECK(many[8 * r + 7] == 7 + static_cast<int>(r));
  }
}

TEST_CASE("parts of a communicator conform") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  for (const auto& failure : onebit_test::split_failures(transport)) FAIL_CHECK(failure);
  const onebit::communicator counted{transport};
  for (const auto& failure : onebit_test::split_failures(counted)) FAIL_CHECK(failure);
  auto part = transport.split(transport.rank() % 2, 0);
  for (const auto& failure : onebit_test::request_failures(part)) FAIL_CHECK(failure);
}

TEST_CASE("a negative color: all ranks are told, and can go on") {
  onebit::mpi transport(MPI_COMM_WORLD);
  const bool odd = transport.rank() == transport.size() - 1;
  CHECK(thrown<onebit::invalid_input>([&] { (void)transport.split(odd ? -2 : 0, 0); }) ==
        contains{"mpi: split: a rank has color -2; must not be negative [rank "});
  CHECK(transport.split(0, 0).size() == transport.size());
}

TEST_CASE("all ranks of this machine are on one node") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  CHECK(transport.ranks_per_node() == transport.size());
  CHECK(transport.split(transport.rank() % 2, 0).ranks_per_node() ==
        (transport.size() + 1 - transport.rank() % 2) / 2);
  CHECK(onebit::communicator(transport).ranks_per_node() == transport.size());
}

TEST_CASE("nodes that a hierarchy can not use are told with their numbers") {
  using onebit::detail::mpi_node;
  using onebit::detail::ranks_per_node;
  CHECK(ranks_per_node({{2, 0, 1}, {2, 0, 1}, {2, 2, 3}, {2, 2, 3}}, "") == 2);
  CHECK(ranks_per_node({{1, 0, 0}, {1, 1, 1}}, "") == 1);
  CHECK(thrown<onebit::transport_error>([] {
          (void)ranks_per_node({{2, 0, 1}, {2, 0, 1}, {1, 2, 2}}, " [rank 0/3]");
        }) ==
        "onebit::mpi: ranks_per_node: the node of rank 0 has 2 ranks, the node of rank 2 has "
        "1; must be equal: start L on each, by mpirun --map-by ppr:L:node, mpiexec -ppn L or srun "
        "--ntasks-per-node=L [rank 0/3]");
  CHECK(thrown<onebit::transport_error>([] {
          (void)ranks_per_node({{2, 0, 2}, {2, 1, 3}, {2, 0, 2}, {2, 1, 3}}, "");
        }) ==
        "onebit::mpi: ranks_per_node: the node of rank 0 has 2 of the ranks 0 to 2; must be "
        "contiguous: place them by mpirun --map-by ppr:2:node, mpiexec -ppn 2 or srun "
        "--distribution=block");
}

TEST_CASE("device memory over MPI") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  if (all_agree(transport.device_aware())) return;  // it would want pointers of a real device
  const onebit_test::fake_memory memory;
  onebit_test::through_device device(onebit::staged(transport, memory), memory);
  for (const auto& failure : onebit_test::transport_failures(device)) FAIL_CHECK(failure);
  for (const auto& failure : onebit_test::split_failures(device)) FAIL_CHECK(failure);
  CHECK(device.inner().ranks_per_node() == transport.size());
}

TEST_CASE("slots beyond the range of an int" * doctest::skip()) {
  // 2 GiB per slot: run by hand, with --no-skip, where every rank has (1 + ranks) times that.
  onebit::mpi transport(MPI_COMM_WORLD);
  const std::size_t slot = (std::size_t{2} << 30) + 5;
  const auto n = static_cast<std::size_t>(transport.size());
  std::vector<char> own(slot, static_cast<char>(transport.rank() + 1)), all(slot * n);
  transport.all_gather(own.data(), all.data(), slot);
  const auto arrived = [&] {
    for (std::size_t r = 0; r < n; ++r) {
      CHECK(all[r * slot] == static_cast<char>(r + 1));
      CHECK(all[r * slot + slot - 1] == static_cast<char>(r + 1));
    }
  };
  arrived();
  std::fill(all.begin(), all.end(), char{0});
  transport.start_all_gather(own.data(), all.data(), slot).wait();
  arrived();
}
