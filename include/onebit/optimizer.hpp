// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <onebit/checkpoint.hpp>
#include <onebit/collective/dense.hpp>
#include <onebit/error.hpp>
#include <onebit/given_moments.hpp>
#include <onebit/now.hpp>
#include <onebit/optimizer_class.hpp>
#include <onebit/own_card.hpp>
#include <onebit/rebind.hpp>
#include <onebit/report.hpp>
#include <onebit/restore.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/running.hpp>
#include <onebit/model_parallel.hpp>
#include <onebit/tensor.hpp>
#include <onebit/transport/wire.hpp>
#include <onebit/verify.hpp>
#include <onebit/vocabulary.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

/// What most calls of `optimizer` do. They are not inline: a program that says
///
///     extern template class onebit::optimizer<RULE, SCHEDULE, COLLECTIVE, float, float>;
///
/// where it uses one, and the same without `extern` in one file, compiles them in that file alone.
namespace onebit::inline v0_1 {

template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::optimizer(wire transport, std::string name,
                                    const std::vector<param_group<P, G>>& groups, R rule,
                                    S schedule, const C& collective, dense_sum sum)
    : parts_(std::make_unique<parts>(groups, std::move(transport), std::move(rule),
                                     std::move(schedule), collective, sum)),
      name_(std::move(name) + to_string(resolved<G>(sum))) {
  engine_type& e = parts_->lasting;
  detail::rank_card card = detail::own_card(name_, e).ranks;
  card.number = detail::next_number();
  e.prepare(detail::roll_call(e.comm, card));
}
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::optimizer(optimizer&&) noexcept = default;
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>& optimizer<R, S, C, P, G>::operator=(optimizer&&) noexcept = default;
template <class R, class S, class C, class P, class G>
optimizer<R, S, C, P, G>::~optimizer() = default;

template <class R, class S, class C, class P, class G>
report optimizer<R, S, C, P, G>::step_with(step_runner run, float lr, float inverse_loss_scale) {
  const detail::standard_arithmetic arithmetic;
  if (parts_->open) {
    parts_->open->require(lr, inverse_loss_scale);
  } else {
    begin(lr, inverse_loss_scale);
  }
  const typename parts::close_after closing{*parts_};
  return parts_->open->run(run);
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::begin(float lr, float inverse_loss_scale) {
  const detail::standard_arithmetic arithmetic;
  if (parts_->open) {
    throw invalid_input(detail::message("optimizer: begin() twice in a step", where()));
  }
  parts_->open.emplace(parts_->lasting, lr, inverse_loss_scale);
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::ready(std::size_t tensor) {
  const detail::standard_arithmetic arithmetic;
  if (!parts_->open) {
    throw invalid_input(detail::message("optimizer: ready(", tensor, ") without begin()", where()));
  }
  const typename parts::close_after closing{*parts_};
  parts_->open->ready(tensor);
}
template <class R, class S, class C, class P, class G>
outcome optimizer<R, S, C, P, G>::settle() {
  engine_type& e = parts_->lasting;
  e.comm.wait();
  e.others.wait();
  return outcome_of(onebit::settle(e.backend(), e.now(), rank(), size()));
}

template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::set_group(std::size_t group, const group_options& options) {
  between_steps().tensors.set_group(group, options, rule(), where());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::set_group(std::size_t group, float lr_factor, float weight_decay) {
  between_steps().tensors.set_group(group, lr_factor, weight_decay, rule(), where());
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::rebind(const std::vector<param_group<P, G>>& groups) {
  return detail::rebind(between_steps().tensors, groups, where());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::join_others(wire transport) {
  engine_type& e = between_steps();
  e.others = model_parallel_group<B>(std::move(transport), e.backend());
  ++e.generation;
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::verify() {
  detail::verify(between_steps());
}

template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::save(std::ostream& out) {
  engine_type& e = between_steps();
  const detail::checkpoint_card card = detail::own_card(name_, e);
  detail::write_checkpoint(out, [&](detail::payload_writer& a) {
    a.local(card);
    e.archive(a);
  });
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::load(std::istream& in, resume_with with) {
  const detail::standard_arithmetic arithmetic;
  load_checkpoint(
      parts_->lasting, in, [&] { return detail::own_card(name_, parts_->lasting); }, with,
      parts_->refusal());
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::thaw_for([[maybe_unused]] std::uint64_t warm_up_steps) {
  if constexpr (thaws) {
    engine_type& e = between_steps();
    e.schedule.thaw(e.step, warm_up_steps);
  }
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::take([[maybe_unused]] const std::vector<given_moments>& moments,
                                    [[maybe_unused]] std::uint64_t steps) {
  if constexpr (takes_moments) {
    const detail::standard_arithmetic arithmetic;
    take_moments(parts_->lasting, moments, steps, parts_->open.has_value());
  }
}
template <class R, class S, class C, class P, class G>
void optimizer<R, S, C, P, G>::read_old_job([[maybe_unused]] std::size_t n_ranks,
                                            [[maybe_unused]] old_files files,
                                            [[maybe_unused]] resume_with with) {
  if constexpr (resumes) {
    const detail::standard_arithmetic arithmetic;
    load_old_job_of(
        parts_->lasting, n_ranks, files, [&] { return detail::own_card(name_, parts_->lasting); },
        with, parts_->refusal());
  }
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::state_bytes() const {
  return parts_->lasting.state_bytes();
}
template <class R, class S, class C, class P, class G>
std::size_t optimizer<R, S, C, P, G>::work_bytes() const {
  return parts_->lasting.work_bytes();
}

}  // namespace onebit::inline v0_1
