// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What is saved on a CUDA device goes on there and on the host, and the other way round: the bits
// of the training that was never interrupted.

#include <memory>
#include <sstream>

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

namespace {

/// [0, half) on n ranks of First, a checkpoint, the rest on n_after ranks of Second.
template <class First, class Second, class Make>
std::vector<trajectory> interrupted(int n, std::uint64_t half, const Make& make, int n_after) {
  const script s;
  const auto at = [&](const auto& t) { return static_cast<std::size_t>(t.rank() % n); };
  std::vector<std::string> files(static_cast<std::size_t>(n));
  std::vector<std::vector<float>> params(files.size());
  auto all = on<First>(n, [&](auto transport, First& place) {
    model<First> data(place, transport.rank(), transport.size(), s);
    auto o = make(data.groups(), transport, place.backend());
    trajectory t = steps(o, data, 0, half);
    files[at(transport)] = saved(o);
    params[at(transport)] = data.values().first;
    return t;
  });
  struct source {
    std::vector<float> params;
    [[nodiscard]] std::pair<std::vector<float>, std::vector<float>> values() const {
      return {params, {}};
    }
  };
  const auto rest = on<Second>(n_after, [&](auto transport, Second& place) {
    model<Second> data(place, transport.rank(), transport.size(), s);
    // built from equal parameters; between two exchanges those of the ranks differ
    auto o = make(data.groups(), transport, place.backend());
    data.adopt(source{params[at(transport)]});
    std::istringstream in(files[at(transport)]);
    if constexpr (decltype(o)::resumes) {
      if (n != n_after) {
        o.load_old_job(files.size(), [&](std::size_t r) {
          return std::make_unique<std::istringstream>(files[r]);
        });
      }
    }
    if (n == n_after) o.load(in);
    CHECK(o.steps() == half);
    return steps(o, data, half, s.calls);
  });
  if (n != n_after) return rest;
  for (std::size_t r = 0; r < all.size(); ++r) {
    all[r].insert(all[r].end(), rest[r].begin(), rest[r].end());
  }
  return all;
}

}  // namespace

TEST_CASE("cuda checkpoints: from the device, to the host, and back") {
  each_algorithm([](const char* name, const auto& make) {
    INFO(std::string(name));
    const auto whole = on<host_device>(2, [&](auto transport, host_device& place) {
      model<host_device> data(place, transport.rank(), transport.size(), {});
      auto o = make(data.groups(), transport, place.backend());
      return steps(o, data);
    });
    for (const std::uint64_t half : {std::uint64_t{6}, std::uint64_t{25}}) {  // warm-up, after it
      CAPTURE(half);
      CHECK(difference(interrupted<cuda_device, host_device>(2, half, make, 2), whole) == "none");
      CHECK(difference(interrupted<host_device, cuda_device>(2, half, make, 2), whole) == "none");
    }
  });
}

TEST_CASE("cuda checkpoints: a job goes on with other ranks, with the bits of the host's") {
  each_algorithm([](const char* name, const auto& make) {
    INFO(std::string(name));
    if (std::string(name) == "deepspeed") return;  // its rule cannot go on with other ranks
    const auto host = interrupted<host_device, host_device>(2, 25, make, 3);
    CHECK(difference(interrupted<cuda_device, cuda_device>(2, 25, make, 3), host) == "none");
  });
}

TEST_CASE("cuda verify: a parameter that differs on one rank is found on all") {
  const auto told = on<cuda_device>(2, [](auto transport, cuda_device& place) {
    model<cuda_device> data(place, transport.rank(), transport.size(), {});
    auto o = one_bit_adam_with(onebit::gather_scatter<onebit::sign<>>{})(data.groups(), transport,
                                                                         place.backend());
    (void)steps(o, data, 0, 20);
    o.verify();
    struct {
      std::pair<std::vector<float>, std::vector<float>> all;
      [[nodiscard]] const auto& values() const { return all; }
    } changed{data.values()};
    if (transport.rank() == 1) changed.all.first[3] += 1;
    data.adopt(changed);
    try {
      o.verify();
    } catch (const onebit::rank_mismatch& e) {
      return std::string(e.what());
    }
    return std::string("nothing");
  });
  for (const auto& text : told) CHECK(text == contains{"other parameters"});
}
