// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 10, for codecs: a tile compressor whose encode throws, at any tile, on any thread, ends its
// step, and nothing has changed; the step taken again has the bits of one that was not disturbed.

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/all_compressed.hpp"
#include "../support/tile_codecs.hpp"
#include "../support/training.hpp"

using onebit_test::algorithm;
using onebit_test::any_optimizer;
using onebit_test::freezes_before;
using onebit_test::int8_tile;
using onebit_test::make_any;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::training;

namespace {

/// When a rank's codec throws, and how often it was called.
struct codec_script {
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  std::thread::id caller = std::this_thread::get_id();
  bool workers_only = false;  ///< counts, and throws, on worker threads only
  std::atomic<std::uint64_t> n_tiles{0}, fail_at{never};
};

struct fragile : int8_tile {
  codec_script* told = nullptr;

  static std::string name() { return "fragile"; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    const bool counts = !told->workers_only || std::this_thread::get_id() != told->caller;
    if (counts && told->n_tiles++ == told->fail_at) throw std::runtime_error("fragile: a tile");
    int8_tile::encode(values, n, out);
  }
};
static_assert(onebit::detail::TileCompressor<fragile>);

/// Ten tiles, so that three threads share them; five in each rank's chunk.
const std::vector<std::size_t> sizes(10, 64);
constexpr std::uint64_t steps_of_codec = 6;

struct codec_state {
  std::uint64_t parameters = 0, steps = 0;
  std::string checkpoint;
  friend bool operator==(const codec_state&, const codec_state&) = default;
};
codec_state state_of(any_optimizer& o, const training<>& data) {
  return {data.digest(), o.steps(), saved(o)};
}

/// In steps that also average, a rank that throws alone in the exchange has left the other behind
/// the average: it must not start the step again.
constexpr std::uint64_t no_refreshes = 0;

enum class who { nobody, all, all_on_workers, rank_0 };

/// Trains on two ranks; who throws does so at each tile of each step, the first, the second, ...,
/// until the step works. Gives the last state of each rank, and how often rank 0 has thrown.
template <class Make>
std::pair<std::vector<codec_state>, int> train(const Make& make, int threads, who throws) {
  int n_thrown = 0;
  auto states = on_ranks(2, [&](onebit::threads t) {
    codec_script told;
    told.workers_only = throws == who::all_on_workers;
    training<> data(sizes);
    fragile codec;
    codec.told = &told;
    auto o = make(data, t, codec, onebit::host(threads));
    for (std::uint64_t i = 0; i < steps_of_codec; ++i) {
      CAPTURE(i);
      bool frozen = i != freezes_before;
      const auto step = [&] {
        data.compute_gradients(t.rank(), i);
        (void)o.step(0.01F / static_cast<float>(1 + i % 3));
      };
      for (std::uint64_t k = 0; throws != who::nobody; ++k) {
        // the other rank waits for this one's message: what it would hear after it was sent is its
        // own affair, and ends the step on all ranks
        const bool alone = throws == who::rank_0;
        if (alone && (t.rank() != 0 || k == 10)) break;
        CAPTURE(k);
        const codec_state before = state_of(o, data);
        told.fail_at = told.n_tiles + k;
        bool thrown = false;
        try {
          step();
        } catch (const std::runtime_error& e) {
          CHECK(std::string(e.what()) == "fragile: a tile");
          thrown = true;
        }
        told.fail_at = codec_script::never;
        if (!thrown) break;
        if (t.rank() == 0) ++n_thrown;
        const codec_state after = state_of(o, data);
        CHECK(after.parameters == before.parameters);
        CHECK(after.steps == i);
        CHECK((after.checkpoint != before.checkpoint) == !std::exchange(frozen, true));
      }
      if (o.steps() == i) step();
    }
    return state_of(o, data);
  });
  return {std::move(states), n_thrown};
}

template <class Make>
void check(const Make& make, algorithm a, bool alone, bool shared = true) {
  CAPTURE(static_cast<int>(a));
  const auto expected = train(make, 1, who::nobody).first;
  for (const int threads : {1, 3}) {
    CAPTURE(threads);
    for (const who throws : {who::all, who::all_on_workers, who::rank_0}) {
      if (throws == who::all_on_workers && (threads == 1 || !shared)) continue;
      if (throws == who::rank_0 && !alone) continue;
      CAPTURE(static_cast<int>(throws));
      const auto [states, n_thrown] = train(make, threads, throws);
      CHECK(states[0] == expected[0]);
      CHECK(states[1] == expected[1]);
      CHECK(n_thrown >= 20);
    }
  }
}

}  // namespace

TEST_CASE("law 7: a codec that throws, at each tile of each step") {
#if defined(ONEBIT_TESTS_ALL)
  for (const algorithm a : onebit_test::all_compressed) {
    const auto optimizer_of = [a](const auto& groups, auto t, auto collective, auto backend) {
      return make_any(a, groups, t, collective, backend, no_refreshes);
    };
#else
  {
    constexpr algorithm a = algorithm::one_bit_adam;
    const auto optimizer_of = [](const auto& groups, auto t, auto collective, auto backend) {
      return any_optimizer(onebit::one_bit_adam(
          groups, t,
          onebit::one_bit_adam_options{
              .adam = {.beta2 = 0.99}, .freeze = {.after = 3}, .refreshes = no_refreshes},
          collective, backend));
    };
#endif
    // 0/1 Adam averages before it encodes, and rank 0 would begin with that anew
    const bool alone = a != algorithm::zero_one_adam;
    for (const std::size_t bucket : {std::size_t{0}, std::size_t{320}}) {
      CAPTURE(bucket);
      check(
          [&](training<>& data, auto t, const fragile& codec, const onebit::host& backend) {
            return optimizer_of(data.groups(), t, onebit::gather_scatter{codec, bucket}, backend);
          },
          a, alone && bucket == 0, bucket == 0);  // five tiles are not worth waking a thread
    }
    check(
        [&](training<>& data, auto t, const fragile& codec, const onebit::host& backend) {
          return optimizer_of(data.groups(), t, onebit::all_gather{codec}, backend);
        },
        a, alone);
  }
}

#if defined(ONEBIT_TESTS_ALL)
TEST_CASE("law 7: a codec that throws, over gradients that are only read") {
  check(
      [](training<>& data, auto t, const fragile& codec, const onebit::host& backend) {
        std::vector<onebit::param_group<float, const float>> groups;
        for (const auto& g : data.groups()) {
          groups.push_back({{}, g.lr_factor, g.weight_decay});
          for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
        }
        return make_any(algorithm::one_bit_adam, groups, t, onebit::gather_scatter{codec}, backend,
                        no_refreshes);
      },
      algorithm::one_bit_adam, true);
}
#endif
