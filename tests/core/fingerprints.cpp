// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that disagree: all throw, and the one that differs is named.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/onebit.hpp>
#include <onebit/transport/communicator.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::frozen_after;
using onebit_test::on_ranks;
using onebit_test::thrown;
using onebit_test::training;

namespace {

/// Rank `odd` of n builds something else than the others; what each is told.
template <class Build>
std::vector<std::string> disagreement(int n, int odd, const Build& build) {
  return on_ranks(n, [&](onebit::threads t) {
    return thrown<onebit::rank_mismatch>([&] { build(t, t.rank() == odd); });
  });
}

/// All ranks must name the odd one, and say these words. Of two ranks none is the odd one, so the
/// second is named.
template <class Build>
void check_disagreement(const char* words, const Build& build) {
  for (const int n : {2, 3, 5}) {
    for (const int odd : {0, n - 1}) {
      CAPTURE(n);
      CAPTURE(odd);
      const auto told = disagreement(n, odd, build);
      const int named = n == 2 ? 1 : odd;
      for (int r = 0; r < n; ++r) {
        const auto& text = told[static_cast<std::size_t>(r)];
        CHECK(text == contains{": the ranks disagree: "});
        CHECK(text == contains{"rank " + std::to_string(named)});
        CHECK(text == contains{words});
        const auto suffix = "[rank " + std::to_string(r) + "/" + std::to_string(n) + "]";
        CHECK(text == contains{suffix});
      }
    }
  }
}

}  // namespace

TEST_CASE("another number of tensors") {
  check_disagreement(" tensors, rank ", [](onebit::threads t, bool odd) {
    training<> data(odd ? std::vector<std::size_t>{4, 4} : std::vector<std::size_t>{4, 4, 4});
    auto g = data.groups();
    std::vector<onebit::param_group<>> one(1);  // else the groups already differ in their words
    for (const auto& group : g) {
      for (const auto& x : group.tensors) one[0].tensors.push_back(x);
    }
    (void)onebit::optimizer("same name", one, t,
                            onebit::adam_rule<onebit::host>({}, onebit::host{}),
                            onebit::always_dense{}, onebit::gather_scatter<onebit::identity>{});
  });
  check_disagreement("2 tensors in group 1", [](onebit::threads t, bool odd) {
    training<> data(odd ? std::vector<std::size_t>{4, 4} : std::vector<std::size_t>{4, 4, 4});
    (void)onebit::adam(data.groups(), t);
  });
}

TEST_CASE("another size, and the same sizes in another order") {
  check_disagreement("elements of tensor 1: ", [](onebit::threads t, bool odd) {
    training<> data({64, odd ? 65U : 64U});
    (void)onebit::adam(data.groups(), t);
  });
  check_disagreement("elements of tensor 0: ", [](onebit::threads t, bool odd) {
    training<> data(odd ? std::vector<std::size_t>{8, 4} : std::vector<std::size_t>{4, 8});
    (void)onebit::adam(data.groups(), t);
  });
}

TEST_CASE("other options") {
  check_disagreement("beta1 0.8", [](onebit::threads t, bool odd) {
    training<> data({4});
    (void)onebit::adam(data.groups(), t, {odd ? 0.8 : 0.9, 0.999, 1e-8, false});
  });
  check_disagreement("eps 1.0000000000000002e-08", [](onebit::threads t, bool odd) {
    training<> data({4});
    (void)onebit::adam(data.groups(), t, {0.9, 0.999, odd ? 1.0000000000000002e-8 : 1e-8, false});
  });
  check_disagreement("freeze after 11", [](onebit::threads t, bool odd) {
    training<> data({4});
    (void)onebit::one_bit_adam(data.groups(), t, frozen_after(odd ? 11 : 10));
  });
  check_disagreement("per vector", [](onebit::threads t, bool odd) {
    training<> data({4});
    const onebit::sign<> codec{odd ? onebit::granularity::vector() : onebit::granularity::layer()};
    (void)onebit::one_bit_adam(data.groups(), t, frozen_after(10), onebit::gather_scatter{codec});
  });
  check_disagreement("weight_decay 0.125 in group 0", [](onebit::threads t, bool odd) {
    training<> data({4});
    auto g = data.groups();
    if (odd) g[0].weight_decay = 0.125F;
    (void)onebit::adam(g, t);
  });
  // by the last digit that there is
  check_disagreement("sign l2 x 1.2500001 per", [](onebit::threads t, bool odd) {
    training<> data({4});
    onebit::sign<> codec;
    codec.factor = odd ? std::nextafter(1.25F, 2.0F) : 1.25F;
    (void)onebit::one_bit_adam(data.groups(), t, frozen_after(10), onebit::gather_scatter{codec});
  });
  check_disagreement("beta1 0.8000000000000002 in group 1", [](onebit::threads t, bool odd) {
    training<> data({4, 4});
    auto g = data.groups();
    g[1].own.beta1 = odd ? 0.8000000000000002 : 0.8;
    (void)onebit::adam(g, t);
  });
  check_disagreement("the transport", [](onebit::threads t, bool odd) {
    training<> data({4});
    (void)onebit::adam(data.groups(), t, {}, onebit::host{},
                       odd ? onebit::dense_sum::transport : onebit::dense_sum::rank_order);
  });
}

TEST_CASE("an option of a group behind so many that the text of them all is cut") {
  check_disagreement("later options (digest ", [](onebit::threads t, bool odd) {
    training<> data(std::vector<std::size_t>(40, 3));
    std::vector<onebit::param_group<>> g(40);
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i].tensors.push_back({data.params[i], data.grads[i]});
    }
    if (odd) g[39].lr_factor = 0.25F;
    (void)onebit::adam(g, t);
  });
}

TEST_CASE("other initial parameters: one bit of one element") {
  check_disagreement("other initial parameter values", [](onebit::threads t, bool odd) {
    training<> data;
    if (odd) data.params[2][4999] = std::nextafter(data.params[2][4999], 2.0F);
    (void)onebit::one_bit_adam(data.groups(), t, frozen_after(10));
  });
}

TEST_CASE("a master that nobody has set, and that rounds to its parameter by chance") {
  check_disagreement("or masters", [](onebit::threads t, bool odd) {
    std::vector<onebit::bf16> params(64), grads(64);
    std::vector<float> master(64);
    if (odd) master[5] = std::bit_cast<float>(7);  // what was in memory
    std::vector<onebit::param_group<onebit::bf16>> g(1);
    g[0].tensors.push_back({params, grads, master});
    (void)onebit::adam(g, t);
  });
}

TEST_CASE("another algorithm") {
  check_disagreement("one_bit_adam", [](onebit::threads t, bool odd) {
    training<> data({4});
    if (odd) {
      (void)onebit::adam(data.groups(), t);
    } else {
      (void)onebit::one_bit_adam(data.groups(), t, frozen_after(10));
    }
  });
  check_disagreement("all_gather of", [](onebit::threads t, bool odd) {
    training<> data({4});
    if (odd) {
      (void)onebit::one_bit_adam(data.groups(), t, frozen_after(9),
                                 onebit::all_gather<onebit::sign<>>{});
    } else {
      (void)onebit::one_bit_adam(data.groups(), t, frozen_after(9));
    }
  });
}

TEST_CASE("all ranks differ: all throw") {
  for (const int n : {2, 3, 5}) {
    const auto told = on_ranks(n, [&](onebit::threads t) {
      training<> data({static_cast<std::size_t>(4 + t.rank())});
      return thrown<onebit::rank_mismatch>([&] { (void)onebit::adam(data.groups(), t); });
    });
    for (const auto& text : told) CHECK(text == contains{"the ranks disagree"});
  }
}

TEST_CASE("one rank with invalid input: it throws its own error, the others are told") {
  struct wrong {
    const char* words;
    std::function<void(onebit::threads, bool)> build;
  };
  const std::vector<wrong> cases = {
      {"lr_factor",
       [](onebit::threads t, bool odd) {
         training<> data({4});
         auto g = data.groups();
         if (odd) g[0].lr_factor = -1;
         (void)onebit::adam(g, t);
       }},
      {"beta1 is 2",
       [](onebit::threads t, bool odd) {
         training<> data({4});
         (void)onebit::adam(data.groups(), t, {odd ? 2 : 0.9, 0.999, 1e-8, false});
       }},
      {"adam_options: eps is",
       [](onebit::threads t, bool odd) {
         training<> data({4});
         onebit::one_bit_adam_options o;
         if (odd) o.adam.eps = 0;
         (void)onebit::one_bit_adam(data.groups(), t, o);
       }},
      {"block of 33",
       [](onebit::threads t, bool odd) {
         training<> data({64});
         const onebit::sign<> codec{onebit::granularity::block(odd ? 33 : 32)};
         (void)onebit::one_bit_adam(data.groups(), t, frozen_after(10),
                                    onebit::gather_scatter{codec});
       }},
      {"overlap",
       [](onebit::threads t, bool odd) {
         training<> data({8, 8});
         auto g = data.groups();
         if (odd) g[1].tensors[0].params = g[0].tensors[0].params;
         (void)onebit::adam(g, t);
       }},
  };
  for (const auto& wrong_case : cases) {
    for (const int n : {2, 3, 5}) {
      for (const int odd : {0, n - 1}) {
        CAPTURE(wrong_case.words);
        const auto told = on_ranks(n, [&](onebit::threads t) {
          const auto build = [&] { wrong_case.build(t, t.rank() == odd); };
          return t.rank() == odd ? thrown<onebit::invalid_input>(build)
                                 : thrown<onebit::rank_mismatch>(build);
        });
        for (int r = 0; r < n; ++r) {
          const auto& text = told[static_cast<std::size_t>(r)];
          if (r == odd) {
            CHECK(text == contains{wrong_case.words});
          } else {
            CHECK(text == contains{"rank " + std::to_string(odd) + " rejected its input"});
          }
        }
      }
    }
  }
}

TEST_CASE("after a refusal the same transport serves a correct attempt") {
  const auto digests = on_ranks(3, [](onebit::threads t) {
    training<> data;
    auto wrong = data.groups();
    if (t.rank() == 2) wrong[0].weight_decay = -1;
    CHECK_THROWS_AS((void)onebit::adam(wrong, t), onebit::error);
    auto optimizer = onebit::adam(data.groups(), t);
    (void)train(optimizer, data);
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
  CHECK(digests[0] == digests[2]);
}

namespace {

/// Of two equal trainings one takes a step more. Then rank 1 steps in that one, the others in the
/// other: all are told, and nothing changes.
template <class Make>
void check_out_of_step(int n, int steps, const char* who, const Make& make) {
  const auto told = on_ranks(n, [&](onebit::threads t) {
    training<> behind, ahead;
    auto late = make(behind, t), early = make(ahead, t);
    for (int i = 0; i < steps; ++i) (void)train(late, behind);
    for (int i = 0; i <= steps; ++i) (void)train(early, ahead);
    auto& data = t.rank() == 1 ? ahead : behind;
    auto& optimizer = t.rank() == 1 ? early : late;
    const auto params = data.params;
    const auto state = onebit_test::saved(optimizer);
    const auto text = thrown<onebit::rank_mismatch>([&] { (void)train(optimizer, data); });
    CHECK(data.params == params);
    CHECK(onebit_test::saved(optimizer) == state);
    return text;
  });
  for (int r = 0; r < n; ++r) {
    CAPTURE(r);
    const auto& text = told[static_cast<std::size_t>(r)];
    CHECK(text == contains{who});
    CHECK(text == contains{r == 1 ? "rank 0 is at step " : "rank 1 is at step "});
    CHECK(text == contains{"all ranks must call step() or mean() equally often"});
  }
}

}  // namespace

TEST_CASE("ranks at different steps are told apart in every phase") {
  for (const int n : {2, 3}) {
    check_out_of_step(n, 1, "exchange: ", [](training<>& data, onebit::threads t) {
      return onebit::adam(data.groups(), t);
    });
    for (const int steps : {1, 4}) {
      check_out_of_step(n, steps, "exchange: ", [](training<>& data, onebit::threads t) {
        return onebit::one_bit_adam(data.groups(), t, frozen_after(3));
      });
      check_out_of_step(n, steps, "exchange: ", [](training<>& data, onebit::threads t) {
        return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                                    onebit::all_gather<onebit::sign<>>{});
      });
    }
    for (const auto sum : {onebit::dense_sum::transport, onebit::dense_sum::transport_in_bf16}) {
      check_out_of_step(n, 0, "exchange: ", [&](training<>& data, onebit::threads t) {
        return onebit::adam(data.groups(), t, {}, onebit::host{}, sum);
      });
    }
  }
}

TEST_CASE("three ranks at three steps whose mean is one of them: all are told") {
  // With the transport's own sum a rank in the middle must not take the mean for agreement.
  for (const auto sum : {onebit::dense_sum::transport, onebit::dense_sum::transport_in_bf16}) {
    const auto told = on_ranks(3, [&](onebit::threads t) {
      const auto make = [&](training<>& data) {
        return onebit::adam(data.groups(), t, {}, onebit::host{}, sum);
      };
      std::vector<training<>> data(3);
      std::vector<decltype(make(data[0]))> optimizers;
      for (auto& own : data) optimizers.push_back(make(own));
      for (std::size_t r = 0; r < 3; ++r) {
        for (std::size_t i = 0; i < r; ++i) (void)train(optimizers[r], data[r]);
      }
      const auto own = static_cast<std::size_t>(t.rank());
      return thrown<onebit::rank_mismatch>([&] { (void)train(optimizers[own], data[own]); });
    });
    for (const auto& text : told) CHECK(text == contains{"is at step"});
  }
}

namespace {

/// Carries a device's memory, as far as the library knows: cards may only go where host memory
/// does.
struct with_host_gather {
  onebit::threads inner;
  int* host_gathers;
  int* others;

  [[nodiscard]] int rank() const { return inner.rank(); }
  [[nodiscard]] int size() const { return inner.size(); }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    ++*others;
    inner.all_to_all(send, receive, n);
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    ++*others;
    inner.all_gather(send, receive, n);
  }
  void all_reduce_sum(float* data, std::size_t n) {
    ++*others;
    inner.all_reduce_sum(data, n);
  }
  void host_all_gather(const void* send, void* receive, std::size_t n) {
    ++*host_gathers;
    inner.all_gather(send, receive, n);
  }
};

}  // namespace

TEST_CASE("the roll call goes over a wire, one collective of host memory, counted") {
  using onebit::detail::make_fingerprint;
  onebit::run_threads(3, [](onebit::threads t) {
    int host_gathers = 0, others = 0;
    onebit::communicator w(with_host_gather{t, &host_gathers, &others});
    const auto card = make_fingerprint("adam", {4, 5}, 77, 12);
    (void)onebit::detail::compare_fingerprints(w, card, {4, 5});
    CHECK(host_gathers == 1);
    CHECK(w.sent().collectives == 1);
    CHECK(w.sent().bytes_sent == 2 * (sizeof card + sizeof(std::uint64_t)));

    const auto other = make_fingerprint(t.rank() == 1 ? "adan" : "adam", {4, 5}, 77, 12);
    CHECK(thrown<onebit::rank_mismatch>([&] {
            (void)onebit::detail::compare_fingerprints(w, other, {4, 5});
          }) == contains{"rank 1"});
    CHECK(host_gathers == 2);

    // Nobody is asked for what all can do; who cannot tells those that wait in their roll call.
    CHECK(onebit::detail::collective_try(w, [] { return 5; }) == 5);
    CHECK(host_gathers == 2);
    const auto rejecting = [&] {
      if (t.rank() != 2) return (void)onebit::detail::compare_fingerprints(w, card, {4, 5});
      onebit::detail::collective_try(w, []() -> int { throw std::runtime_error("too small"); });
    };
    if (t.rank() == 2) {
      CHECK(thrown<std::runtime_error>(rejecting) == "too small");
    } else {
      CHECK(thrown<onebit::rank_mismatch>(rejecting) == contains{"rank 2 rejected its input"});
    }
    CHECK(host_gathers == 3);

    onebit::detail::agree_on_checkpoint(w, "", 6, 0);
    CHECK(thrown<onebit::checkpoint_error>([&] {
            onebit::detail::agree_on_checkpoint(w, t.rank() == 0 ? "the disk is gone" : "", 6, 0);
          }) == contains{t.rank() == 0 ? "the disk is gone" : "rank 0 could not read"});
    CHECK(host_gathers == 5);
    CHECK(others == 0);
  });
}

TEST_CASE("what ranks tell each other at construction and at a load is host memory") {
  onebit::run_threads(2, [](onebit::threads t) {
    int host_gathers = 0, others = 0;
    training<> data;
    auto o = onebit::one_bit_adam(data.groups(), with_host_gather{t, &host_gathers, &others},
                                  frozen_after(1));
    CHECK(host_gathers > 0);
    CHECK(others == 0);
    const auto before = host_gathers;
    (void)train(o, data);
    (void)train(o, data);
    CHECK(others > 0);
    CHECK(host_gathers == before);
    const auto carried = others;
    std::istringstream in(onebit_test::saved(o));
    o.load(in);
    CHECK(host_gathers > before);
    CHECK(others == carried);
  });
}

TEST_CASE("a name without an end, from another rank: it ends where its field does") {
  on_ranks(2, [](onebit::threads t) {
    onebit::communicator w(t);
    auto card = onebit::detail::make_fingerprint("adam", {4, 5}, 77, 12);
    if (t.rank() == 1) std::fill(std::begin(card.name), std::end(card.name), 'x');
    for (const auto& one : onebit::detail::gather_fingerprints(w, card)) {
      CHECK(one.name[sizeof one.name - 1] == '\0');
    }
    CHECK(thrown<onebit::rank_mismatch>([&] {
            (void)onebit::detail::compare_fingerprints(w, card, {4, 5});
          }) == contains{"the ranks disagree"});
    return 0;
  });
}

TEST_CASE("of two descriptions only what differs is told") {
  using onebit::detail::differing_item;
  const std::string a =
      "adam, beta1 0.9, freeze after 30, sign per layer, [3 tensors, lr_factor 1], [1 tensors, "
      "lr_factor 1, eps 2], sums by the transport";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string b = a;
    b.replace(b.find(from), from.size(), to);
    return b;
  };
  const auto differing = [&](const std::string& b) {
    return std::pair(differing_item(a, b), differing_item(b, a));
  };
  const auto pair = [](const char* x, const char* y) {
    return std::pair<std::string, std::string>(x, y);
  };
  CHECK(differing(with("after 30", "after 300")) == pair("freeze after 30", "freeze after 300"));
  CHECK(differing(with("adam, ", "lamb, ")) == pair("adam", "lamb"));
  CHECK(differing(with("0.9, freeze after 30", "0.8, freeze after 2")) ==
        pair("beta1 0.9", "beta1 0.8"));
  CHECK(differing(with("per layer", "per layer in buckets of 7")) ==
        pair("sign per layer", "sign per layer in buckets of 7"));
  CHECK(differing(with("[3 tensors", "[4 tensors")) ==
        pair("3 tensors in group 0", "4 tensors in group 0"));
  CHECK(differing(with("eps 2]", "eps 3]")) == pair("eps 2 in group 1", "eps 3 in group 1"));
  CHECK(differing(with("transport", "ranks")) ==
        pair("sums by the transport", "sums by the ranks"));
  CHECK(differing(a + ", more") == pair("nothing more", "more"));
  CHECK(differing(with(", [1 tensors, lr_factor 1, eps 2]", "")) ==
        pair("1 tensors in group 1", "no group 1"));
  CHECK(differing(with("1], [1", "1, eps 3], [1")) ==
        pair("nothing more in group 0", "eps 3 in group 0"));
  CHECK(differing(with("eps 2]", "eps 2, rests]")) ==
        pair("nothing more in group 1", "rests in group 1"));
  CHECK(differing_item("", "b") == "nothing more");
}

namespace {

/// The transport of threads with an all_gather, or an all_to_all, that mistakes slots.
class mistaken {
 public:
  enum class fault : std::uint8_t { shifted, echoed, shifted_messages };
  mistaken(onebit::threads inner, fault of) : inner_(std::move(inner)), of_(of) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_gather(const void* send, void* receive, std::size_t n) {
    inner_.all_gather(send, receive, n);
    auto* const first = static_cast<char*>(receive);
    if (of_ == fault::shifted) std::rotate(first, first + n, first + n * slots());
    if (of_ != fault::echoed) return;
    for (std::size_t r = 0; r < slots(); ++r) std::memcpy(first + r * n, send, n);
  }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    inner_.all_to_all(send, receive, n);
    auto* const first = static_cast<char*>(receive);
    if (of_ == fault::shifted_messages) std::rotate(first, first + n, first + n * slots());
  }
  void all_reduce_sum(float* data, std::size_t n) { inner_.all_reduce_sum(data, n); }

 private:
  [[nodiscard]] std::size_t slots() const { return static_cast<std::size_t>(size()); }
  onebit::threads inner_;
  fault of_;
};

}  // namespace

TEST_CASE("an own transport whose slots are in another order: told when the optimizer is built") {
  for (const auto of : {mistaken::fault::shifted, mistaken::fault::echoed}) {
    const auto texts = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      return thrown<onebit::transport_error>(
          [&] { (void)onebit::one_bit_adam(data.groups(), mistaken(t, of), {}); });
    });
    for (const auto& text : texts) {
      CHECK(text == contains{"all_gather of this transport put the bytes of rank "});
    }
    CHECK(texts[0] == contains{of == mistaken::fault::shifted ? "rank 1 into the slot of rank 0"
                                                              : "rank 0 into the slot of rank 1"});
    const auto means = on_ranks(3, [&](onebit::threads t) {
      return thrown<onebit::transport_error>(
          [&] { onebit::compressed_allreduce a(mistaken(t, of), std::vector<std::size_t>{100}); });
    });
    CHECK(means[0] == contains{"in the order of ranks"});
  }
}

TEST_CASE("an own transport whose all_to_all mistakes slots: told in the first step") {
  const auto texts = on_ranks(3, [&](onebit::threads t) {
    training<> data;
    auto o =
        onebit::one_bit_adam(data.groups(), mistaken(t, mistaken::fault::shifted_messages), {});
    const auto before = data.params;
    const auto text = thrown<onebit::rank_mismatch>([&] { (void)onebit::testing::train(o, data); });
    CHECK(data.params == before);
    return text;
  });
  CHECK(texts[0] == contains{"the slot of rank 0 has the message of rank 1"});
  CHECK(texts[1] == contains{"the slot of rank 0 has the message of rank 1"});
}
