// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The kill matrix's jobs over NCCL's transport and its stand-in: every collective of a job, from
// building the optimizer to the last save, fails in turn on one rank: it answers with an error, or
// meets one on its way, or never ends. The job ends in time, and the one that goes on from its
// checkpoints ends with the bits of one that nothing struck.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <onebit/transport/nccl.hpp>
#include <utility>
#include <vector>

#include "kill/job.hpp"
#include "nccl/stand_in.hpp"
#include "support/scratch.hpp"

using namespace onebit_test;

namespace {

using digests = std::vector<std::uint64_t>;

enum class how { answers, errs_on_the_way, never_ends };

/// Rank 1's collective `at` (from 0) fails, where there is such a one.
struct plan {
  int at = -1;
  how fails = how::answers;
  std::atomic<bool> has_failed{false};
};

/// NCCL's transport, whose stand-in may be told to fail.
class told {
 public:
  told(onebit::nccl inner, plan* p, std::shared_ptr<int> left)
      : inner_(std::move(inner)), plan_(p), left_(std::move(left)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    count();
    inner_.all_to_all(send, receive, n);
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    count();
    inner_.all_gather(send, receive, n);
  }
  void all_reduce_sum(float* data, std::size_t n) {
    count();
    inner_.all_reduce_sum(data, n);
  }
  auto start_all_to_all(const void* send, void* receive, std::size_t n) {
    count();
    return inner_.start_all_to_all(send, receive, n);
  }
  auto start_all_gather(const void* send, void* receive, std::size_t n) {
    count();
    return inner_.start_all_gather(send, receive, n);
  }
  [[nodiscard]] told split(int color, int key) const {
    count();
    return {inner_.split(color, key), plan_, left_};
  }

 private:
  void count() const {
    if ((*left_)-- != 0) return;
    stand_in& record = stand_in::of_this_rank();
    if (plan_->fails == how::answers) record.next = ncclRemoteError;
    if (plan_->fails == how::errs_on_the_way) record.on_the_way = ncclRemoteError;
    if (plan_->fails == how::never_ends) record.stuck = true;
    plan_->has_failed = true;
  }

  onebit::nccl inner_;
  plan* plan_;
  std::shared_ptr<int> left_;
};

constexpr std::chrono::milliseconds patience(30);

digests run(kill::kind k, int n, const std::filesystem::path& root, plan& p) {
  return on_ranks(
      n,
      [&](onebit::threads t) {
        stand_in::of_this_rank() = {};
        ncclComm comm{t};
        const bool is_victim = t.rank() == 1;
        const told transport(onebit::nccl(&comm, user_stream(), {.timeout = patience}), &p,
                             std::make_shared<int>(is_victim ? p.at : -1));
        const auto digest = kill::run(k, transport, root, {});
        if (is_victim && p.has_failed && p.fails != how::answers) {
          // it was the last one: nobody has asked for its end
          onebit::nccl(&comm, user_stream(), {.timeout = patience}).wait();
        }
        return digest;
      },
      std::chrono::seconds(20));
}

}  // namespace

TEST_CASE("each collective of a job fails in turn on one rank") {
  for (int k = 0; k < kill::n_kinds; ++k) {
    const int n = kill::is_layered(static_cast<kill::kind>(k)) ? 4 : 2;
    CAPTURE(kill::kind_names[k]);
    plan none;
    const scratch undisturbed;
    const digests expected = run(static_cast<kill::kind>(k), n, undisturbed.path, none);
    const scratch over_threads;
    CHECK(expected == on_ranks(n, [&](onebit::threads t) {
            return kill::run(static_cast<kill::kind>(k), t, over_threads.path, {});
          }));
    for (const how fails : {how::answers, how::errs_on_the_way, how::never_ends}) {
      CAPTURE(static_cast<int>(fails));
      int at = 0;
      for (;; at += fails == how::answers ? 1 : 6) {
        CAPTURE(at);
        const scratch root;
        plan p;
        p.at = at;
        p.fails = fails;
        bool has_ended = false;
        try {
          (void)run(static_cast<kill::kind>(k), n, root.path, p);
        } catch (const onebit::error&) {
          has_ended = true;
        }
        REQUIRE(has_ended == p.has_failed);
        if (!p.has_failed) break;
        CHECK(run(static_cast<kill::kind>(k), n, root.path, none) == expected);
      }
      CHECK(at > 20);
    }
  }
}
