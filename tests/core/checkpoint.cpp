// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Save, load, go on: the same bits as never stopped. And every checkpoint that does not fit is
// refused on all ranks, with nothing changed.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <ios>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <sstream>
#include <streambuf>
#include <string>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"
#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::noise;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::thrown;
using onebit_test::training;

namespace {

onebit::one_bit_adam_options corrected_after(std::uint64_t n) {
  onebit::one_bit_adam_options o;
  o.freeze.after = n;
  o.adam.bias_correction = true;
  return o;
}

// The algorithms under test: each makes an optimizer over data and transport.
const auto plain = [](auto& data, auto t) { return onebit::adam(data.groups(), t); };
const auto summed_by_transport = [](auto& data, auto t) {
  return onebit::adam(data.groups(), t, {}, onebit::host{}, onebit::dense_sum::transport);
};
const auto scattered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, corrected_after(4));
};
const auto gathered = [](auto& data, auto t) {
  return onebit::one_bit_adam(
      data.groups(), t, corrected_after(4),
      onebit::all_gather<onebit::sign<onebit::l1_scale>>{{onebit::granularity::block(96)}});
};

/// What a rank has at a moment: all that must be equal.
struct moment {
  std::vector<std::vector<float>> params;
  std::string state;
  onebit::phase last_phase = onebit::phase::dense;
  friend bool operator==(const moment& a, const moment& b) {
    return a.params == b.params && a.state == b.state && a.last_phase == b.last_phase;
  }
};
using history = std::vector<moment>;  ///< before each step

template <class G, class Make>
std::vector<history> uninterrupted(int n, std::size_t steps, const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    training<G> data;
    auto optimizer = make(data, t);
    history h;
    h.push_back({data.params, saved(optimizer)});
    for (std::size_t i = 0; i < steps; ++i) {
      const auto report = train(optimizer, data);
      h.push_back({data.params, saved(optimizer), report.phase});
    }
    return h;
  });
}

/// Loads moment k into an optimizer that took `elsewhere` steps first, and goes on.
template <class G, class Make>
void check_resumed(int n, const std::vector<history>& whole, std::size_t k, std::size_t elsewhere,
                   const Make& make) {
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(elsewhere);
  onebit::run_threads(n, [&](onebit::threads t) {
    const history& h = whole[static_cast<std::size_t>(t.rank())];
    training<G> data;
    auto optimizer = make(data, t);
    for (std::size_t i = 0; i < elsewhere; ++i) (void)train(optimizer, data);
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      std::copy(h[k].params[i].begin(), h[k].params[i].end(), data.params[i].begin());
    }
    std::istringstream in(h[k].state);
    optimizer.load(in);
    CHECK(optimizer.steps() == k);
    CHECK(saved(optimizer) == h[k].state);
    for (std::size_t i = k + 1; i < h.size(); ++i) {
      const auto report = train(optimizer, data);
      CHECK(moment{data.params, saved(optimizer), report.phase} == h[i]);
    }
  });
}

template <class G, class Make>
void check_all_resumes(const Make& make) {
  for (const int n : {1, 2, 3}) {
    const std::size_t steps = 7;
    const auto whole = uninterrupted<G>(n, steps, make);
    for (const std::size_t k : {0U, 2U, 3U, 4U, 5U, 7U}) {
      for (const std::size_t elsewhere : {0U, 3U, 6U}) {
        check_resumed<G>(n, whole, k, elsewhere, make);
      }
    }
  }
}

/// Loads `bytes` on all ranks of n (rank r gets bytes[r]) and gives what each is told; checks that
/// nothing has changed on any rank and that training goes on as if nothing had been tried.
template <class Make>
std::vector<std::string> refusals(int n, const std::vector<std::string>& bytes, std::size_t steps,
                                  const Make& make) {
  const auto digests = on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto optimizer = make(data, t);
    for (std::size_t i = 0; i < steps + 1; ++i) (void)train(optimizer, data);
    return saved(optimizer);
  });
  return on_ranks(n, [&](onebit::threads t) {
    const auto r = static_cast<std::size_t>(t.rank());
    training<> data;
    auto optimizer = make(data, t);
    for (std::size_t i = 0; i < steps; ++i) (void)train(optimizer, data);
    const auto before = saved(optimizer);
    const auto params = data.params;
    std::istringstream in(bytes[r]);
    const auto text = thrown<onebit::checkpoint_error>([&] { optimizer.load(in); });
    CHECK(saved(optimizer) == before);
    CHECK(data.params == params);
    (void)train(optimizer, data);
    CHECK(saved(optimizer) == digests[r]);
    return text;
  });
}

/// Valid checkpoints of all ranks after some steps.
template <class Make>
std::vector<std::string> checkpoints(int n, std::size_t steps, const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto optimizer = make(data, t);
    for (std::size_t i = 0; i < steps; ++i) (void)train(optimizer, data);
    return saved(optimizer);
  });
}

/// Where a checkpoint's checksums lie.
std::vector<std::size_t> find_seals(const std::string& bytes) {
  std::vector<std::size_t> seals;
  std::uint32_t sum = 0;
  for (std::size_t at = 24; at + 4 <= bytes.size(); ++at) {
    std::uint32_t written = 0;
    std::memcpy(&written, bytes.data() + at, sizeof written);
    if (written == sum && sum != 0) {
      seals.push_back(at);
      at += 3;
      sum = 0;
    } else {
      sum = onebit::detail::crc32c(bytes.data() + at, 1, sum);
    }
  }
  if (seals.empty() || seals.back() + 4 != bytes.size()) seals.push_back(bytes.size() - 4);
  return seals;
}

/// The same ranks, on nodes of so many.
struct on_nodes {
  onebit::threads inner;
  int n;
  [[nodiscard]] int rank() const { return inner.rank(); }
  [[nodiscard]] int size() const { return inner.size(); }
  void all_to_all(const void* send, void* receive, std::size_t bytes) {
    inner.all_to_all(send, receive, bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t bytes) {
    inner.all_gather(send, receive, bytes);
  }
  void all_reduce_sum(float* data, std::size_t count) { inner.all_reduce_sum(data, count); }
  [[nodiscard]] on_nodes split(int color, int key) const { return {inner.split(color, key), n}; }
  [[nodiscard]] int ranks_per_node() const { return n; }
};

/// A stream that takes so many bytes and no more.
class full_disk : public std::streambuf {
 public:
  explicit full_disk(std::size_t room) : room_(room) {}

 protected:
  int_type overflow(int_type c) override {
    if (room_ == 0) return traits_type::eof();
    --room_;
    return c;
  }
  std::streamsize xsputn(const char*, std::streamsize n) override {
    const auto taken = std::min(static_cast<std::size_t>(n), room_);
    room_ -= taken;
    return static_cast<std::streamsize>(taken);
  }

 private:
  std::size_t room_;
};

}  // namespace

TEST_CASE_TEMPLATE("resumed == never stopped: Adam", G, float, const float) {
  if constexpr (std::is_const_v<G>) {
    check_all_resumes<float>(summed_by_transport);
  } else {
    check_all_resumes<float>(plain);
  }
}

TEST_CASE("resumed == never stopped: 1-bit Adam, gather-scatter") {
  check_all_resumes<float>(scattered);
}

TEST_CASE("resumed == never stopped: 1-bit Adam, all-gather") {
  check_all_resumes<float>(gathered);
}

TEST_CASE("resumed == never stopped: LAMB and 1-bit LAMB") {
  check_all_resumes<float>([](auto& data, auto t) { return onebit::lamb(data.groups(), t); });
  check_all_resumes<float>([](auto& data, auto t) {
    onebit::one_bit_lamb_options o;
    o.freeze.after = 4;
    return onebit::one_bit_lamb(data.groups(), t, o);
  });
}

TEST_CASE("resumed == never stopped: 0/1 Adam, also between two exchanges") {
  check_all_resumes<float>([](auto& data, auto t) {
    onebit::zero_one_adam_options o;
    o.schedule.kappa = 1;
    o.schedule.warmup_steps = 3;
    o.schedule.doubling_steps = 1;
    o.schedule.max_interval = 4;
    return onebit::zero_one_adam(data.groups(), t, o);
  });
  check_all_resumes<float>([](auto& data, auto t) {
    const deepspeed::zero_one_options o{.var_freeze_step = 4,
                                        .var_update_scaler = 1,
                                        .local_step_scaler = 1,
                                        .local_step_clipper = 4};
    return deepspeed::zero_one_adam(data.groups(), t, o);
  });
}

TEST_CASE("resumed == never stopped: gradients that are only read") {
  const auto make = [](auto& data, auto t) {
    std::vector<onebit::param_group<float, const float>> groups;
    for (const auto& g : data.groups()) {
      groups.push_back({{}, g.lr_factor, g.weight_decay});
      for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
    }
    return onebit::one_bit_adam(groups, t, corrected_after(4));
  };
  check_all_resumes<float>(make);
  // Whether the gradients may be written is not part of what is saved.
  for (const int n : {1, 2}) {
    const auto writable = uninterrupted<float>(n, 7, scattered);
    CHECK(uninterrupted<float>(n, 7, make) == writable);
    check_resumed<float>(n, writable, 5, 0, make);
  }
}

TEST_CASE("a skipped step between does no harm, and several checkpoints may share a stream") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> a, b;
    auto first = scattered(a, t);
    auto second = gathered(b, t);
    for (int i = 0; i < 6; ++i) {
      (void)train(first, a);
      (void)train(second, b);
    }
    std::stringstream stream;
    first.save(stream);
    second.save(stream);
    a.compute_gradients(t.rank(), 99);
    if (t.rank() == 1) a.grads[2][7] = std::numeric_limits<float>::infinity();
    CHECK(first.step(0.1F).skipped);
    first.load(stream);
    second.load(stream);
    CHECK(first.steps() == 6);
    CHECK(stream.peek() == std::char_traits<char>::eof());
    CHECK_FALSE(train(first, a).skipped);
    CHECK_FALSE(train(second, b).skipped);
  });
}

TEST_CASE("truncated anywhere: refused on all ranks") {
  for (const std::size_t steps : {2U, 6U}) {
    const auto whole = checkpoints(2, steps, scattered);
    const std::size_t length = whole[0].size();
    std::vector<std::size_t> cuts = {length - 1, length - 8, length - 9};
    for (std::size_t i = 0; i <= 40; ++i) cuts.push_back(i);
    for (std::size_t i = 41; i < length; i += length / 37 + 1) cuts.push_back(i);
    for (const std::size_t cut : cuts) {
      CAPTURE(cut);
      const auto told = refusals(2, {whole[0].substr(0, cut), whole[1]}, steps, scattered);
      CHECK(told[0] == contains{"checkpoint: truncated: "});
      CHECK(told[0] == contains{"[rank 0/2]"});
      CHECK(told[1] == contains{"load: rank 0 could not read its checkpoint"});
      CHECK(told[1] == contains{"nothing was loaded on any rank"});
    }
  }
}

TEST_CASE("one flipped bit anywhere: refused on all ranks") {
  for (const std::size_t steps : {2U, 6U}) {
    const auto whole = checkpoints(2, steps, gathered);
    const std::size_t n_bits = whole[1].size() * 8;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < 24 * 8; i += 3) places.push_back(i);  // the header
    for (std::size_t i = 24 * 8; i < n_bits; i += n_bits / 97 + 1) places.push_back(i);
    for (std::size_t i = n_bits - 64; i < n_bits; i += 7) places.push_back(i);  // the checksum
    for (const std::size_t place : places) {
      CAPTURE(place);
      auto damaged = whole;
      damaged[1][place / 8] = static_cast<char>(damaged[1][place / 8] ^ (1 << (place % 8)));
      const auto told = refusals(2, damaged, steps, gathered);
      CHECK(told[1] == contains{"checkpoint: "});
      CHECK(told[0] == contains{"load: rank 1 could not read its checkpoint"});
    }
  }
}

TEST_CASE("a foreign file, another version, another byte order") {
  const auto whole = checkpoints(1, 1, plain);
  const auto changed = [&](std::size_t at, const std::string& with) {
    std::string bytes = whole[0];
    bytes.replace(at, with.size(), with);
    return refusals(1, {bytes}, 1, plain)[0];
  };
  CHECK(changed(0, "PK") == contains{"this is no onebit checkpoint"});
  CHECK(changed(6, "\n\n") == contains{"this is no onebit checkpoint"});  // as text mode does
  CHECK(refusals(1, {std::string(64, 'x')}, 1, plain)[0] == contains{"no onebit checkpoint"});
  CHECK(refusals(1, {""}, 1, plain)[0] == contains{"truncated: 0 of 8 bytes"});
  std::string order = whole[0].substr(8, 4);
  std::reverse(order.begin(), order.end());
  CHECK(changed(8, order) == contains{"the other byte order (mark 67305985, here 16909060)"});
  CHECK(changed(12, {"\x63\0\0\0", 4}) == contains{"format version 99, this library reads 24"});
  // A length that is not true allocates no more than what comes.
  CHECK(changed(16, std::string(8, '\xff')) == contains{"bytes after its end"});
  CHECK(changed(16, {"\0\0\0\0\0\0\0\0", 8}) == contains{"damaged: it ends at byte 0"});
}

TEST_CASE("a checkpoint of something else: world, rank, tensors, options, algorithm") {
  const auto mine = checkpoints(2, 6, scattered);
  const auto told = [&](const std::vector<std::string>& bytes) {
    return refusals(2, bytes, 6, scattered);
  };
  SUBCASE("world size") {
    const auto three = checkpoints(3, 6, scattered);
    for (const auto& text : told({three[0], three[1]})) {
      CHECK(text == contains{"saved with world size 3, loaded with world size 2"});
    }
  }
  SUBCASE("rank") {
    const auto text = told({mine[1], mine[0]});
    CHECK(text[0] == contains{"saved with rank 1, loaded with rank 0"});
    CHECK(text[1] == contains{"saved with rank 0, loaded with rank 1"});
  }
  SUBCASE("options, on one rank") {
    const auto other = checkpoints(2, 6, [](auto& data, auto t) {
      return onebit::one_bit_adam(data.groups(), t, corrected_after(5));
    });
    const auto text = told({mine[0], other[1]});
    CHECK(text[0] == contains{"rank 1 could not read"});
    CHECK(text[1] == contains{"freeze after 5"});
    CHECK(text[1] == contains{"freeze after 4"});
  }
  SUBCASE("algorithm") {
    const auto other = checkpoints(2, 6, plain);
    for (const auto& text : told(other)) CHECK(text == contains{"saved with adam, loaded with "});
    for (const auto& text : told(checkpoints(2, 6, gathered))) {
      CHECK(text == contains{"all_gather of sign l1 x 1.5707963 per block of 96"});
    }
  }
  SUBCASE("parameters that were not restored") {
    for (const auto& text : told(checkpoints(2, 5, scattered))) {
      CHECK(text == contains{"the parameters in memory are not those of step 5"});
    }
  }
}

TEST_CASE("a checkpoint of other tensors") {
  const auto make = [](const std::vector<std::size_t>& sizes) {
    return on_ranks(1, [&](onebit::threads t) {
      training<> data(sizes);
      return saved(*std::make_unique<decltype(plain(data, t))>(plain(data, t)));
    })[0];
  };
  const auto told = [&](const std::string& bytes, const std::vector<std::size_t>& sizes) {
    return on_ranks(1, [&](onebit::threads t) {
      training<> data(sizes);
      auto optimizer = plain(data, t);
      std::istringstream in(bytes);
      return thrown<onebit::checkpoint_error>([&] { optimizer.load(in); });
    })[0];
  };
  CHECK(told(make({5, 5}), {5, 6}) ==
        contains{"saved with parameters: 10, loaded with parameters: 11"});
  CHECK(told(make({5, 6}), {6, 5}) == contains{"its tensors have other sizes or another order"});
  CHECK(told(make({5, 6}), {5, 6}) == "thrown: nothing");
}

TEST_CASE("a checkpoint of another node shape") {
  const auto make = [](auto& data, const onebit::threads& t, int n) {
    return onebit::one_bit_adam(data.groups(), on_nodes{t, n}, corrected_after(2),
                                onebit::hierarchical{onebit::sign<>{}, 0});
  };
  for (const int from : {1, 2, 4}) {
    const auto whole = checkpoints(
        4, 5, [&](auto& data, const onebit::threads& t) { return make(data, t, from); });
    for (const int to : {1, 2, 4}) {
      if (to == from) continue;
      const auto told = refusals(
          4, whole, 5, [&](auto& data, const onebit::threads& t) { return make(data, t, to); });
      for (const auto& text : told) {
        CHECK(text == contains{"saved with ranks per node: " + std::to_string(from) +
                               ", loaded with ranks per node: " + std::to_string(to)});
      }
    }
  }
}

TEST_CASE("checkpoints of different steps: no rank loads") {
  for (const int n : {2, 3}) {
    for (const std::size_t k : {1U, 3U, 5U}) {
      const auto whole = uninterrupted<float>(n, k + 1, scattered);
      const auto told = on_ranks(n, [&](onebit::threads t) {
        const history& h = whole[static_cast<std::size_t>(t.rank())];
        const moment& mine = h[t.rank() == n - 1 ? k + 1 : k];
        training<> data;
        auto optimizer = scattered(data, t);
        for (std::size_t i = 0; i < data.params.size(); ++i) {
          std::copy(mine.params[i].begin(), mine.params[i].end(), data.params[i].begin());
        }
        const auto before = saved(optimizer);
        std::istringstream in(mine.state);
        const auto text = thrown<onebit::checkpoint_error>([&] { optimizer.load(in); });
        CHECK(saved(optimizer) == before);
        return text;
      });
      for (const auto& text : told) {
        CHECK(text == contains{"has a checkpoint of step "});
        CHECK(text == contains{"nothing was loaded on any rank"});
      }
    }
  }
}

TEST_CASE("a stream that throws by itself does not leave the other ranks waiting") {
  const auto whole = checkpoints(2, 2, scattered);
  const auto told = on_ranks(2, [&](onebit::threads t) {
    training<> data;
    auto optimizer = scattered(data, t);
    (void)train(optimizer, data);
    (void)train(optimizer, data);
    std::istringstream in(t.rank() == 0 ? whole[0].substr(0, 100) : whole[1]);
    in.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
    const auto text = thrown<onebit::checkpoint_error>([&] { optimizer.load(in); });
    (void)train(optimizer, data);
    return text;
  });
  CHECK(told[0] == contains{"[rank 0/2]"});
  CHECK(told[1] == contains{"rank 0 could not read its checkpoint"});
}

TEST_CASE("a stream that fails on write: at any byte, and the optimizer goes on") {
  onebit::run_threads(1, [](onebit::threads t) {
    training<> data, undisturbed;
    auto optimizer = scattered(data, t);
    auto other = scattered(undisturbed, t);
    for (int i = 0; i < 5; ++i) {
      (void)train(optimizer, data);
      (void)train(other, undisturbed);
    }
    const std::string whole = saved(optimizer);
    for (std::size_t room = 0; room < whole.size(); room += room < 40 ? 1 : whole.size() / 50) {
      full_disk disk(room);
      std::ostream out(&disk);
      CHECK(thrown<onebit::checkpoint_error>([&] { optimizer.save(out); }) ==
            contains{"writing " + std::to_string(whole.size()) + " bytes failed"});
    }
    full_disk enough(whole.size());
    std::ostream out(&enough);
    CHECK_NOTHROW(optimizer.save(out));
    (void)train(optimizer, data);
    (void)train(other, undisturbed);
    CHECK(saved(optimizer) == saved(other));
    CHECK(data.params == undisturbed.params);
  });
}

TEST_CASE("the format: header, length, checksums") {
  const auto whole = checkpoints(1, 1, plain)[0];
  CHECK(whole.substr(0, 8) == "onebit\r\n");
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data() + 16, sizeof length);
  CHECK(whole.size() == length + 24);
  const auto seals = find_seals(whole);
  CHECK(seals.size() >= 3);  // m, v and the end
  CHECK(seals.back() == whole.size() - 4);
}

TEST_CASE("contents that are not true under checksums that are: refused, or harmless") {
  // Whatever a file says, memory is that of the configuration, and a load that fails changes
  // nothing. (What it says of values is believed: they are values.)
  const auto tried = [](const auto& make, std::size_t steps, std::uint64_t seed) {
    const auto whole = checkpoints(2, steps, make);
    const auto seals = find_seals(whole[0]);
    const std::size_t card = 24 + sizeof(onebit::detail::checkpoint_header);
    int refused = 0, loaded = 0;
    onebit::run_threads(2, [&](onebit::threads t) {
      const auto r = static_cast<std::size_t>(t.rank());
      training<> data;
      auto optimizer = make(data, t);
      for (std::size_t i = 0; i < steps; ++i) (void)train(optimizer, data);
      const auto params = data.params;
      for (std::uint64_t round = 0; round < 120; ++round) {
        std::string bytes = whole[r];
        const auto draw = [&](std::uint64_t k, std::size_t n) {
          return static_cast<std::size_t>((noise(seed + 10 * round + k) + 1) / 2 *
                                          static_cast<float>(n));
        };
        // scalars, flags and lengths lie behind the card and behind each checksum
        const std::size_t section = draw(0, seals.size());
        const std::size_t first = section == 0 ? card : seals[section - 1] + 4;
        const std::size_t at = first + draw(1, std::min<std::size_t>(seals[section] - first, 64));
        bytes[at] = static_cast<char>(draw(2, 256));
        const std::size_t begin = section == 0 ? 24 : seals[section - 1] + 4;
        const std::uint32_t sum =
            onebit::detail::crc32c(bytes.data() + begin, seals[section] - begin);
        std::memcpy(bytes.data() + seals[section], &sum, sizeof sum);

        const auto before = saved(optimizer);
        // on both ranks alike, where only values are what they are; or on one
        std::istringstream in(t.rank() == 0 || round % 2 == 0 ? bytes : whole[r]);
        try {
          optimizer.load(in);
          if (t.rank() == 0) ++loaded;
        } catch (const onebit::checkpoint_error&) {
          if (t.rank() == 0) ++refused;
          CHECK(saved(optimizer) == before);
        }
        try {
          (void)train(optimizer, data);
        } catch (const onebit::error&) {  // its numbers may make no sense, and then it says so
        }
        for (std::size_t i = 0; i < params.size(); ++i) {
          std::copy(params[i].begin(), params[i].end(), data.params[i].begin());
        }
        std::istringstream good(whole[r]);
        optimizer.load(good);
        CHECK(saved(optimizer) == whole[r]);
      }
    });
    CHECK(refused > 0);
    CHECK(loaded > 0);
  };
  tried(plain, 3, 1);
  tried(scattered, 2, 2001);
  tried(scattered, 6, 4001);
  tried(gathered, 6, 6001);
}

TEST_CASE("a digest does not depend on how the bytes are cut") {
  std::string bytes;
  for (std::size_t i = 0; i < 61; ++i) bytes += static_cast<char>(i * 37);
  for (std::size_t n = 0; n <= bytes.size(); ++n) {
    onebit::detail::digest whole;
    whole.add(bytes.data(), n);
    for (std::size_t cut = 0; cut <= n; ++cut) {
      onebit::detail::digest parts;
      parts.add(bytes.data(), cut);
      parts.add(bytes.data() + cut, n - cut);
      CHECK(parts.value() == whole.value());
    }
    if (n == 0) continue;
    onebit::detail::digest shorter, zero;  // the length counts, trailing zeros too
    shorter.add(bytes.data(), n - 1);
    CHECK(shorter.value() != whole.value());
    zero.add(bytes.data(), n);
    zero.add("\0", 1);
    CHECK(zero.value() != whole.value());
  }
}

TEST_CASE("a payload without a stream only counts; what it counts is what is written and read") {
  onebit::host backend;
  auto values = backend.make_buffer<float>(33);
  for (std::size_t i = 0; i < 33; ++i) values.data()[i] = static_cast<float>(i);
  std::vector<double> norms = {1, 2, 3};
  std::uint64_t step = 7;
  const auto write = [&](auto& a) {
    a.scalar(step);
    a.vector(norms, 3);
    a.buffer(values, backend);
  };
  onebit::detail::payload_writer counts(nullptr);
  write(counts);
  counts.seal();
  CHECK(counts.size() == 8 + (8 + 3 * 8 + 4) + (8 + 33 * 4 + 4) + 4);
  std::stringstream file;
  onebit::detail::write_checkpoint(file, write);
  CHECK(file.str().size() == counts.size() + 24);

  const auto read = [&](std::uint64_t& s, std::vector<double>& n,
                        onebit::detail::host_buffer<float>& v, std::size_t n_norms,
                        std::size_t n_values) {
    std::istringstream in(file.str());
    onebit::detail::payload_reader reader(in);
    reader.scalar(s);
    reader.vector(n, n_norms);
    reader.buffer(v, backend, n_values);
    reader.finish();
    reader.keep();
  };
  std::uint64_t read_step = 0;
  std::vector<double> read_norms;
  onebit::detail::host_buffer<float> read_values;
  read(read_step, read_norms, read_values, 3, 33);
  CHECK(read_step == 7);
  CHECK(read_norms == norms);
  REQUIRE(read_values.size() == 33);
  CHECK(read_values.data()[32] == 32.0F);

  // What is expected decides, and what was read before a failure is taken back.
  std::uint64_t other_step = 99;
  std::vector<double> other_norms = {5};
  auto other_values = backend.make_buffer<float>(2);
  other_values.data()[1] = 3;
  CHECK(thrown<onebit::checkpoint_error>([&] {
          read(other_step, other_norms, other_values, 3, 34);
        }) == contains{"a section of 132 bytes at offset 52 should have 136"});
  CHECK(thrown<onebit::checkpoint_error>([&] {
          read(other_step, other_norms, other_values, 2, 33);
        }) == contains{"a section of 24 bytes at offset 16 should have 16"});
  CHECK(other_step == 99);
  CHECK(other_norms == std::vector<double>{5});
  REQUIRE(other_values.size() == 2);
  CHECK(other_values.data()[1] == 3);
}

TEST_CASE("crc32c: the check value of its definition, by table and by instruction, in any pieces") {
  CHECK(onebit::detail::crc32c("123456789", 9) == 0xE3069283U);
  std::vector<unsigned char> bytes(1000);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(i * 37 + i / 7);
  }
  for (const std::size_t n : {0U, 1U, 7U, 8U, 9U, 63U, 1000U}) {
    const std::uint32_t whole = onebit::detail::crc32c(bytes.data(), n);
    CHECK(~onebit::detail::crc32c_by_table(~0U, bytes.data(), n) == whole);
    for (std::size_t cut = 0; cut <= n; cut += 5) {
      CHECK(onebit::detail::crc32c(bytes.data() + cut, n - cut,
                                   onebit::detail::crc32c(bytes.data(), cut)) == whole);
    }
  }
}
