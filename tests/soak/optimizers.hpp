// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What the soak trains: every algorithm with every collective, with options drawn by chance, and
// without their types.

#ifndef ONEBIT_TESTS_SOAK_OPTIMIZERS_HPP
#define ONEBIT_TESTS_SOAK_OPTIMIZERS_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../compiled/optimizers.hpp"
#include "../support/training.hpp"
#include "faults.hpp"

namespace onebit_test::soak {

enum class algorithm : int { adam, one_bit_adam, one_bit_lamb, zero_one_adam };
inline constexpr const char* algorithm_names[] = {"adam", "one_bit_adam", "one_bit_lamb",
                                                  "zero_one_adam"};
enum class exchange : int { gather_scatter, buckets, all_gather, hierarchical };
inline constexpr const char* exchange_names[] = {"gather_scatter", "buckets", "all_gather",
                                                 "hierarchical"};
inline constexpr std::size_t n_compositions = 13;  ///< adam has one, the others four

struct options {
  soak::algorithm algorithm = algorithm::adam;
  soak::exchange exchange = exchange::gather_scatter;
  std::uint64_t warm_up = 0, refreshes = 0, max_interval = 1;
  double max_grad_norm = 0;
  int ranks_per_node = 1;
  std::vector<std::size_t> sizes;
};

/// Of composition k.
inline options draw_options(std::size_t k, chance& c) {
  options o;
  o.algorithm = static_cast<algorithm>(k == 0 ? 0 : 1 + (k - 1) / 4);
  o.exchange = static_cast<exchange>(k == 0 ? 0 : (k - 1) % 4);
  o.refreshes = c.of<std::uint64_t>({0, 2, 16, 64});
  o.warm_up = c.of<std::uint64_t>({3, 40, 300, 7});
  o.max_interval = c.of<std::uint64_t>({1, 2, 4, 16});
  o.max_grad_norm = c.of<double>({0, 0, 1});
  o.ranks_per_node = o.exchange == exchange::hierarchical ? 2 + c.number_below(2) : 1;
  o.sizes = c.of<std::vector<std::size_t>>({{33, 0, 700, 64}, {1, 31}, {100, 1, 900, 0, 33, 32}});
  return o;
}

/// An optimizer and the memory that it trains.
class trained {
 public:
  explicit trained(const std::vector<std::size_t>& sizes) : data(sizes) {}
  trained(const trained&) = delete;
  trained& operator=(const trained&) = delete;
  virtual ~trained() = default;

  virtual onebit::report step(float lr) = 0;
  virtual void begin(float lr) = 0;
  virtual void ready(std::size_t tensor) = 0;
  virtual void verify() = 0;
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  [[nodiscard]] virtual std::string saved() = 0;
  virtual void load(const std::string& state) = 0;
  virtual void load_old_job(const std::vector<const std::string*>& states) = 0;
  /// As onebit::save_all; `write_own` writes the parameters.
  virtual void save_all(const std::filesystem::path& root,
                        const std::function<void(std::ostream&)>& write_own) = 0;
  virtual std::optional<std::uint64_t> load_latest(const std::filesystem::path& root) = 0;

  void write_parameters(std::ostream& out) const {
    for (const auto& p : data.params) {
      out.write(reinterpret_cast<const char*>(p.data()),
                static_cast<std::streamsize>(p.size() * sizeof(float)));
    }
  }
  void read_parameters(std::istream& in) {
    for (auto& p : data.params) {
      in.read(reinterpret_cast<char*>(p.data()),
              static_cast<std::streamsize>(p.size() * sizeof(float)));
    }
  }

  training<> data;
};

template <class Make>
class trained_by final : public trained {
 public:
  trained_by(const std::vector<std::size_t>& sizes, const Make& make)
      : trained(sizes), o_(make(data.groups())) {
    o_.warn_with(nullptr);
  }

  onebit::report step(float lr) override { return o_.step(lr); }
  void begin(float lr) override { o_.begin(lr); }
  void ready(std::size_t tensor) override { o_.ready(tensor); }
  void verify() override { o_.verify(); }
  [[nodiscard]] std::uint64_t steps() const override { return o_.steps(); }
  [[nodiscard]] std::string saved() override { return onebit_test::saved(o_); }
  void load(const std::string& state) override {
    std::istringstream in(state);
    o_.load(in);
  }
  void load_old_job(const std::vector<const std::string*>& states) override {
    o_.load_old_job(states.size(), [&](std::size_t r) {
      return std::make_unique<std::istringstream>(*states[r]);
    });
  }
  void save_all(const std::filesystem::path& root,
                const std::function<void(std::ostream&)>& write_own) override {
    onebit::save_all(o_, root, write_own);
  }
  std::optional<std::uint64_t> load_latest(const std::filesystem::path& root) override {
    return onebit::load_latest(o_, root, [this](std::istream& in) { read_parameters(in); });
  }

 private:
  decltype(std::declval<Make>()(std::declval<training<>&>().groups())) o_;
};

template <class Collective>
[[nodiscard]] std::unique_ptr<trained> make_compressed(const options& o, const struck& t,
                                                       const Collective& collective) {
  const auto make = [&o](const auto& f) -> std::unique_ptr<trained> {
    return std::make_unique<trained_by<std::remove_cvref_t<decltype(f)>>>(o.sizes, f);
  };
  if (o.algorithm == algorithm::one_bit_adam) {
    return make([&](const auto& groups) {
      return onebit::one_bit_adam(groups, t,
                                  {.adam = {.beta2 = 0.99, .max_grad_norm = o.max_grad_norm},
                                   .freeze = {.after = o.warm_up},
                                   .refreshes = o.refreshes},
                                  collective);
    });
  }
  if (o.algorithm == algorithm::one_bit_lamb) {
    return make([&](const auto& groups) {
      return onebit::one_bit_lamb(groups, t,
                                  {.lamb = {.beta2 = 0.99, .max_grad_norm = o.max_grad_norm},
                                   .freeze = {.after = o.warm_up}},
                                  collective);
    });
  }
  return make([&](const auto& groups) {
    return onebit::zero_one_adam(groups, t,
                                 {.adam = {.beta2 = 0.99, .max_grad_norm = o.max_grad_norm},
                                  .schedule = {.kappa = 4,
                                               .warmup_steps = o.warm_up,
                                               .doubling_steps = o.warm_up,
                                               .max_interval = o.max_interval}},
                                 collective);
  });
}

/// Collective.
[[nodiscard]] inline std::unique_ptr<trained> make_trained(const options& o, const struck& t) {
  if (o.algorithm == algorithm::adam) {
    const auto f = [&](const auto& groups) {
      return onebit::adam(groups, t, {.max_grad_norm = o.max_grad_norm});
    };
    return std::make_unique<trained_by<decltype(f)>>(o.sizes, f);
  }
  const onebit::sign<> codec;
  if (o.exchange == exchange::all_gather) {
    return make_compressed(o, t, onebit::all_gather{codec});
  }
  if (o.exchange == exchange::hierarchical) {
    return make_compressed(o, t, onebit::hierarchical{codec, o.ranks_per_node});
  }
  const std::size_t bucket = o.exchange == exchange::buckets ? 300 : 0;
  return make_compressed(o, t, onebit::gather_scatter{codec, bucket});
}

}  // namespace onebit_test::soak

#endif  // ONEBIT_TESTS_SOAK_OPTIMIZERS_HPP
