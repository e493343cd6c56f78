// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/checkpoint.hpp>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <onebit/transport/wire.hpp>
#include <ostream>
#include <streambuf>
#include <utility>
#include <vector>

/// Whether the ranks still have what they should all have.
namespace onebit::inline v0_1::detail {

/// Where a stream writes, when only a digest of it is wanted.
class digesting_buffer : public std::streambuf {
 public:
  [[nodiscard]] std::uint64_t value() const { return digest_.value(); }

 private:
  std::streamsize xsputn(const char* data, std::streamsize n) override {
    digest_.add(data, static_cast<std::size_t>(n));
    return n;
  }
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }
  digest digest_;
};

/// Of parameters and masters.
template <class E>
[[nodiscard, gnu::cold]] std::uint64_t parameter_digest(E& e) {
  digest d;
  const auto add = [&](const auto* p, std::size_t n) { d.add(p, n * sizeof *p); };
  for (std::size_t i = 0; i < e.tensors.sizes.size(); ++i) {
    const auto& t = e.tensors.entries[i];
    with_type(t.params,
              [&](const auto* p) { read_on_host(e.backend(), p, e.tensors.sizes[i], add); });
    if (t.master != nullptr) {
      read_on_host(e.backend(), std::as_const(t.master), e.tensors.sizes[i], add);
    }
  }
  return d.value();
}

/// What a rank says of itself.
struct common_digests {
  std::uint64_t parameters = 0;
  std::uint64_t state = 0;   ///< the rule's
  std::uint64_t agreed = 0;  ///< in the last exchange
  friend bool operator==(const common_digests&, const common_digests&) = default;
};

/// Collective: all throw rank_mismatch when what one says after a step differs from what most say.
[[gnu::cold]] inline void compare_digests(wire& comm, std::uint64_t step,
                                          const common_digests& mine) {
  std::vector<common_digests> all(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, all.data(), sizeof mine);
  const auto sharers = [&](std::size_t r) {
    int n = 0;
    for (const common_digests& other : all) n += other == all[r] ? 1 : 0;
    return n;
  };
  std::size_t usual = 0;
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (sharers(r) > sharers(usual)) usual = r;
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[usual]) continue;
    const char* what = all[r].parameters != all[usual].parameters ? "parameters"
                       : all[r].state != all[usual].state         ? "moments"
                                                                  : "agreed messages";
    throw rank_mismatch(message(
        "verify: after step ", step, " rank ", r, " has other ", what, " than rank ", usual, " (",
        sharers(usual), " of ", all.size(), " ranks are alike): memory that failed, or a ",
        "trainer that changed them on one rank; restart from a checkpoint before", comm.where()));
  }
}

/// As optimizer::verify. Collective: all throw rank_mismatch when one differs.
template <class E>
[[gnu::cold]] void verify(E& e) {
  if constexpr (decltype(E::rule)::local_steps) {
    if (e.compressed.travels() && e.rule.moved()) {
      throw invalid_input(message("verify: after step ", e.step,
                                  ", a local step: the ranks' parameters differ until the next "
                                  "exchange; call it after a step that exchanged",
                                  e.comm.where()));
    }
  }
  common_digests mine;
  mine.parameters = parameter_digest(e);
  digesting_buffer state;
  std::ostream out(&state);
  payload_writer writer(&out);
  e.rule.archive(writer);
  mine.state = state.value();
  if (e.compressed.started() && E::keeps_agreed) {
    const auto flat = e.compressed.sender().flatten(e.compressed.agreed(e.mask()));
    digest agreed;
    read_on_host(e.backend(), flat.data(), flat.size(),
                 [&](const float* p, std::size_t n) { agreed.add(p, n * sizeof *p); });
    mine.agreed = agreed.value();
  }
  compare_digests(e.comm, e.step, mine);
}

}  // namespace onebit::inline v0_1::detail
