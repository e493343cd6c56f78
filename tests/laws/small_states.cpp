// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// v in fewer bytes changes its form now and then: what a refused load, or memory that failed on one
// rank, leaves of it.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../support/strict_host.hpp"
#include "../support/training.hpp"

namespace {

const std::vector<std::size_t> small_state_sizes = {0, 1, 3, 17, 300};
constexpr onebit::freeze_options after_3{.after = 3};

// Trains n_steps, and then, where a file is `refused`, loads one of another step with v in another
// form, that rank 0 finds truncated.
template <class Make>
void check_refused(const Make& make, int n_steps, int of_step) {
  CAPTURE(n_steps);
  CAPTURE(of_step);
  const auto train_on = [&](onebit::threads t, bool refused) {
    onebit_test::training<> data(small_state_sizes), other_data(small_state_sizes);
    auto o = make(data, t), other = make(other_data, t);
    for (int i = 0; i < of_step; ++i) (void)onebit_test::train(other, other_data);
    for (int i = 0; i < n_steps; ++i) (void)onebit_test::train(o, data);
    if (refused) {
      const std::string before = onebit_test::saved(o), file = onebit_test::saved(other);
      const auto parameters = data.params;
      const auto set = [&](const auto& values) {  // a checkpoint is loaded over its parameters
        for (std::size_t k = 0; k < values.size(); ++k) {
          std::copy(values[k].begin(), values[k].end(), data.params[k].begin());
        }
      };
      set(other_data.params);
      std::istringstream in(t.rank() == 0 ? file.substr(0, file.size() - 2) : file);
      CHECK_THROWS_AS(o.load(in), onebit::checkpoint_error);
      set(parameters);
      const bool unchanged = onebit_test::saved(o) == before;
      CHECK(unchanged);
    }
    for (int i = 0; i < 12; ++i) (void)onebit_test::train(o, data);
    return std::pair(data.digest(), onebit_test::saved(o));
  };
  const auto run = [&](bool refused) {
    return onebit_test::on_ranks(2, [&](onebit::threads t) { return train_on(t, refused); });
  };
  const bool same = run(false) == run(true);
  CHECK(same);
}

}  // namespace

TEST_CASE("a load that one rank refuses leaves v in the form that it had") {
  using onebit::bf16;
  using onebit::int8;
  const auto adam = [](onebit_test::training<>& data, onebit::threads t) {
    const onebit::one_bit_adam_options o{.adam = {.beta2 = 0.99}, .freeze = after_3};
    return onebit::one_bit_adam<int8>(data.groups(), t, o);
  };
  const auto lamb = [](onebit_test::training<>& data, onebit::threads t) {
    const onebit::one_bit_lamb_options o{.lamb = {.beta2 = 0.99}, .freeze = after_3};
    return onebit::one_bit_lamb<bf16>(data.groups(), t, o);
  };
  const auto zero_one = [](onebit_test::training<>& data, onebit::threads t) {
    const onebit::zero_one_adam_options o{
        .adam = {.beta2 = 0.99}, .schedule = {.kappa = 1, .warmup_steps = 40, .max_interval = 2}};
    return onebit::zero_one_adam<int8>(data.groups(), t, o);
  };
  for (const auto& [n, of] : {std::pair{2, 6}, std::pair{6, 2}}) {  // frozen after 3
    check_refused(adam, n, of);
    check_refused(lamb, n, of);
  }
  for (const auto& [n, of] : {std::pair{4, 34}, std::pair{34, 4}}) {  // v is constant from 31 on
    check_refused(zero_one, n, of);
  }
}

TEST_CASE("ranks thaw alike, also where memory failed on one between the freeze and the packing") {
  const onebit::one_bit_adam_options options{
      .adam = {.beta2 = 0.99}, .freeze = after_3, .refreshes = 0};
  const auto make = [&](onebit_test::training<>& data, onebit::threads t,
                        const std::shared_ptr<onebit_test::memory_book>& book) {
    return onebit::one_bit_adam<onebit::int8>(data.groups(), t, options,
                                              onebit::gather_scatter{onebit::sign<>{}},
                                              onebit_test::strict_host(book));
  };
  unsigned n_apart = 0;
  for (std::uint64_t k = 0; k < 12; ++k) {  // the allocation that fails on rank 0
    CAPTURE(k);
    const auto before = onebit_test::on_ranks(
        2,
        [&](onebit::threads t) {
          onebit_test::training<> data(small_state_sizes);
          const auto book = std::make_shared<onebit_test::memory_book>();
          auto o = make(data, t, book);
          for (int i = 0; i < 3; ++i) (void)onebit_test::train(o, data);
          if (t.rank() == 0) book->fail_at = book->n_allocations + k;
          try {
            (void)onebit_test::train(o, data);
          } catch (const std::bad_alloc&) {
          } catch (const onebit::transport_error&) {  // the other rank
          }
          return std::pair(onebit_test::saved(o), data.params);
        },
        std::chrono::milliseconds(300));
    if (before[0].second != before[1].second) continue;  // not taken back alike: no job to go on
    const auto digests = onebit_test::on_ranks(2, [&](onebit::threads t) {
      onebit_test::training<> data(small_state_sizes);
      auto o = make(data, t, std::make_shared<onebit_test::memory_book>());
      const auto& [file, parameters] = before[static_cast<std::size_t>(t.rank())];
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        std::copy(parameters[i].begin(), parameters[i].end(), data.params[i].begin());
      }
      std::istringstream in(file);
      try {
        o.load(in);
      } catch (const onebit::error&) {  // ranks in different phases
        return std::uint64_t{0};
      }
      o.thaw(4);
      for (int i = 0; i < 4; ++i) (void)onebit_test::train(o, data);
      return data.digest();
    });
    CHECK(digests[0] == digests[1]);
    n_apart += digests[0] != 0 && before[0].first.size() != before[1].first.size() ? 1U : 0U;
  }
  CHECK(n_apart > 0);
}
