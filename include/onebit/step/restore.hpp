// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <istream>
#include <memory>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/encode.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/residuals.hpp>
#include <onebit/step/tensors.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Resumes a job from checkpoints: with the same number of ranks bit for bit, or with another.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Header of a checkpoint, compared at a load. Trivially copyable: part of the format.
struct checkpoint_header {
  rank_fingerprint ranks;
  std::uint32_t rank = 0, size = 0;
  std::uint32_t ranks_per_node = 1, unused = 0;
  std::uint64_t step = 0;

  [[nodiscard, gnu::cold]] std::string difference(const checkpoint_header& here,
                                                  resume_with with) const {
    const auto differ = [](const char* what, text_part a, text_part b) {
      return error_text("checkpoint: saved with ", what, a, ", loaded with ", what, b);
    };
    const std::string_view its(ranks.name, strnlen(ranks.name, sizeof ranks.name));
    const std::string_view own(here.ranks.name);
    const auto compared = [&](std::string_view name) {
      return with == resume_with::same_options ? name : name.substr(0, name.find(','));
    };
    if (compared(its) != compared(own)) {
      return differ("", differing_item(its, own), differing_item(own, its));
    }
    if (size != here.size) return differ("world size ", size, here.size);
    if (ranks_per_node != here.ranks_per_node) {
      return differ("ranks per node: ", ranks_per_node, here.ranks_per_node);
    }
    if (rank != here.rank) return differ("rank ", rank, here.rank);
    if (ranks.n_tensors != here.ranks.n_tensors) {
      return differ("tensors: ", ranks.n_tensors, here.ranks.n_tensors);
    }
    if (ranks.n_elements != here.ranks.n_elements) {
      return differ("parameters: ", ranks.n_elements, here.ranks.n_elements);
    }
    if (ranks.sizes_digest != here.ranks.sizes_digest) {
      return error_text("checkpoint: its tensors have other sizes or another order");
    }
    if (ranks.slot_bytes != here.ranks.slot_bytes) {
      return differ("messages of bytes: ", ranks.slot_bytes, here.ranks.slot_bytes);
    }
    if (ranks.parameter_digest != here.ranks.parameter_digest) {
      return error_text("checkpoint: the parameters in memory are not those of step ", step,
                        " at which it was saved; restore all of them before load()");
    }
    return {};
  }
};

/// Header of what rank `comm.rank()` saves after `step` steps.
[[nodiscard, gnu::cold]] inline checkpoint_header header_of(const communicator& comm,
                                                            const rank_fingerprint& ranks,
                                                            std::uint64_t step,
                                                            int ranks_per_node = 1) {
  return {ranks,
          static_cast<std::uint32_t>(comm.rank()),
          static_cast<std::uint32_t>(comm.size()),
          static_cast<std::uint32_t>(ranks_per_node),
          0,
          step};
}
/// Header that engine e with this name shows to other ranks and to checkpoints. Reads all
/// parameters.
template <class E>
[[nodiscard, gnu::cold]] checkpoint_header own_header(const std::string& name, E& e) {
  return header_of(
      e.comm, make_fingerprint(name, e.tensors.sizes, parameter_digest(e), e.exchange.slot_bytes()),
      e.step, e.exchange.ranks_per_node());
}

/// What checkpoints are of: an engine, a compressed_allreduce, half of one.
template <class E>
concept Archived = requires(E e, const E fixed, any_archive a, resume_with with) {
  e.comm;
  e.step;                  // number of steps or calls
  e.archive(a);            // passes the lasting state; a reader that fails restores it
  fixed.check_read(with);  // throws if what was read cannot be used
  e.restore_options(with);
  e.adopt();  // takes up what was read, once all ranks have
};

/// Ends the reading part of a load. Collective: throws checkpoint_error on all ranks if one has a
/// failure to report, a different step, or different scalars (compared by a digest).
[[gnu::cold]] inline void agree_on_checkpoint(communicator& comm, const std::string& failure,
                                              std::uint64_t step, std::uint64_t scalars) {
  struct news {
    std::uint64_t failed, step, scalars;
  };
  const std::string where = comm.where();
  const news mine{failure.empty() ? 0U : 1U, step, scalars};
  std::vector<news> all(static_cast<std::size_t>(comm.size()));
  comm.host_all_gather(&mine, all.data(), sizeof mine, "load");
  if (!failure.empty()) throw checkpoint_error(failure + where);
  constexpr const char* nothing = "; nothing was loaded on any rank";
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].failed != 0) {
      throw peer_failed(
          error_text("load: rank ", r, " could not read its checkpoint", nothing, where));
    }
    if (all[r].step != mine.step) {
      throw checkpoint_error(error_text("load: rank ", r, " has a checkpoint of step ", all[r].step,
                                        ", this rank one of step ", mine.step, nothing, where));
    }
    if (all[r].scalars != mine.scalars) {
      throw checkpoint_error(
          error_text("load: the checkpoint of rank ", r, " is of the same step as ",
                     "this rank's, but its schedule or rule state differs: load ",
                     "files of one save", nothing, where));
    }
  }
}

/// Writes what this rank needs to go on. Throws checkpoint_error.
template <detail::Archived E>
[[gnu::cold]] void save_checkpoint(E& e, std::ostream& out,
                                   const detail::checkpoint_header& header) {
  detail::write_checkpoint(out, [&](detail::payload_writer& a) {
    a.local(header);
    e.archive(a);
  });
}

/// Loads into e what this rank saved. `header()` returns the header to match; `refusal`: why
/// this rank must not load now, or empty. Collective: throws checkpoint_error on all ranks if one
/// fails; then nothing has changed.
template <detail::Archived E, class Header>
[[gnu::cold]] void load_checkpoint(E& e, std::istream& in, const Header& header, resume_with with,
                                   const std::string& refusal) {
  detail::checkpoint_header found;
  std::optional<detail::payload_reader> payload;
  std::string failure = refusal;
  try {
    if (failure.empty()) {
      payload.emplace(in);
      payload->local(found);
      failure = found.difference(header(), with);
    }
    if (failure.empty()) {
      e.archive(*payload);
      payload->finish();
      e.check_read(with);
      if (e.step != found.step) failure = detail::error_text("checkpoint: of two steps");
    }
  } catch (const std::exception& error) {  // also from streams: the other ranks wait
    failure = error.what();
  }
  detail::agree_on_checkpoint(e.comm, failure, found.step, payload ? payload->scalars() : 0);
  payload->keep();
  e.adopt();
  e.restore_options(with);
}

}  // namespace detail

// -- with another number of ranks -----------------------------------------------------------------

namespace detail {

/// Transport that stands for one rank of an ended job while its checkpoint is read. Gathers pretend
/// that all ranks send the same. The first split returns the ranks with its place on all nodes,
/// later splits the ranks of its node: the order in which hierarchical_exchange splits.
class old_rank_transport {
 public:
  static constexpr bool echoes = true;
  old_rank_transport(std::size_t rank, std::size_t size, std::size_t ranks_per_node)
      : rank_(static_cast<int>(rank)),
        size_(static_cast<int>(size)),
        node_(static_cast<int>(ranks_per_node)),
        n_splits_(std::make_shared<int>(0)) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int ranks_per_node() const { return node_; }
  [[nodiscard]] old_rank_transport split(int, int) const {
    old_rank_transport part = *this;
    const bool inside = (*n_splits_)++ > 0;
    part.rank_ = inside ? rank_ % node_ : rank_ / node_;
    part.size_ = inside ? node_ : size_ / node_;
    return part;
  }
  void all_to_all(const void*, void*, std::size_t) { refuse(); }
  void all_reduce_sum(float*, std::size_t) { refuse(); }
  void all_gather(const void* send, void* receive, std::size_t n) {
    for (int r = 0; r < size_ && n > 0; ++r) {
      std::memcpy(static_cast<char*>(receive) + static_cast<std::size_t>(r) * n, send, n);
    }
  }

 private:
  [[noreturn]] static void refuse() {
    throw transport_error(error_text("load_old_job: a rank of an old job takes no steps"));
  }
  int rank_, size_, node_;
  std::shared_ptr<int> n_splits_;
};

/// Returns the policy for this number of ranks per node, if it has a member `ranks_per_node`.
template <class C>
[[nodiscard]] C on_nodes(C policy, std::size_t ranks_per_node) {
  if constexpr (requires { policy.ranks_per_node; })
    policy.ranks_per_node = static_cast<int>(ranks_per_node);
  return policy;
}

/// A buffer on the flat axis as a field: 0 in elements that are not active.
struct active_field {
  flat_field values;
  active_mask active;

  template <class L>
  struct reader {
    flat_field::reader<L> values;
    active_mask active;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return active.template keep<L>(word + k, values(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {values.at<L>(t, index), active, t.word};
  }
};

/// Adds residuals to the compensated values of this rank.
template <class E>
[[gnu::cold]] void resume_feedback(E& e, const float* residuals) {
  auto& s = e.exchange.sender();
  const tile_range own = e.exchange.compensated_tiles();
  s.backend().launch(
      own.end - own.begin,
      add_field_kernel<flat_field>{{residuals}, {s.tiles(), own.begin}, s.compensated(), 1.0F});
}

/// Returns a rule with the options of `rule`, and without state.
template <class R>
[[nodiscard]] R without_state(R& rule) {
  if constexpr (requires { R(rule.options(), rule.backend(), rule.given_directions()); }) {
    return R(rule.options(), rule.backend(), rule.given_directions());
  } else {
    R made(rule.options(), rule.backend());
    if constexpr (requires { rule.given_directions(); }) {
      if (made.given_directions() != rule.given_directions()) {
        throw checkpoint_error(error_text(
            "load_old_job: the rule's constructor (options, backend) makes a rule with other "
            "direction_options: give it one with them as a third argument"));
      }
    }
    return made;
  }
}

/// State of an old job with another number of ranks, read rank by rank for an engine E of this job.
///
/// Moments, anchors of parameters and masks are equal on all old ranks, or are taken from one of
/// them, whose place this rank takes. Residuals are kept on average: every new rank (or node)
/// starts with the mean of the old workers' residuals plus the old servers' residuals, so the sum
/// of all that is sent from now on is unchanged. v is refreshed from the squares that the old
/// ranks kept.
template <class E>
class old_job {
  using B = typename E::backend_type;
  using R = decltype(E::rule);

 public:
  /// For an old job of n ranks, where this rank takes the place of `source`. Not collective;
  /// allocates.
  [[gnu::cold]] old_job(E& e, std::size_t n, std::size_t source)
      : e_(&e),
        n_(n),
        source_rank_(source),
        residuals_(make_flat(e)),
        squares_(E::refreshes ? make_flat(e) : buffer_of<B, float>{}) {}

  /// Reads the checkpoint of the next rank. Its header must have the text and the tensors of
  /// `wanted` and, from rank `source`, its parameters. Throws checkpoint_error.
  [[gnu::cold]] void read(std::istream& in, detail::checkpoint_header wanted, resume_with with) {
    const std::size_t r = n_read_++;
    with_ = with;
    std::unique_ptr<E> old;  // outlives the reader, which may restore it
    detail::payload_reader payload(in);
    detail::checkpoint_header header;
    payload.local(header);
    if (n_read_ == 1) node_ = header.ranks_per_node;
    if (node_ == 0 || n_ % node_ != 0) {
      throw checkpoint_error(
          detail::error_text("resume: ", n_, " ranks in nodes of ", node_, "; damaged"));
    }
    old = std::make_unique<E>(detail::groups_of(e_->tensors),
                              communicator(detail::old_rank_transport(r, n_, node_)),
                              detail::without_state(e_->rule), e_->schedule,
                              detail::on_nodes(e_->policy, node_), dense_sum::rank_order);
    wanted.rank = static_cast<std::uint32_t>(r);
    wanted.size = static_cast<std::uint32_t>(n_);
    wanted.ranks_per_node = static_cast<std::uint32_t>(node_);
    wanted.ranks.slot_bytes = old->exchange.slot_bytes();
    if (n_read_ == 1) parameters_ = header.ranks.parameter_digest;
    if (n_read_ == 1) step_ = header.step;
    if (header.step != step_) throw_diverged(r, header.step);
    if (!R::local_steps && header.ranks.parameter_digest != parameters_) {
      throw checkpoint_error(detail::error_text("resume: ranks 0 and ", r,
                                                " of the old job had different parameters at the ",
                                                "same step; load files of one job"));
    }
    if (r != source_rank_) wanted.ranks.parameter_digest = header.ranks.parameter_digest;
    if (const auto text = header.difference(wanted, with); !text.empty()) {
      throw checkpoint_error(text);
    }
    old->begin_after_agreement(0);
    old->archive(payload);
    payload.finish();
    old->check_read(with);
    payload.keep();
    old->adopt();
    old->restore_options(with);
    old->tensors.take_options(old->backend());
    detail::add_residuals(*old, n_, node_, residuals_.data());
    detail::add_own_squares(*old, n_, squares_.data());
    if (n_read_ == 1) scalars_ = payload.scalars();
    if (payload.scalars() != scalars_ || old->step != step_) throw_diverged(r, old->step);
    if (r == source_rank_) source_ = std::move(old);
  }
  /// Allocates what `adopt` needs, once all ranks are read.
  [[gnu::cold]] void prepare() {
    E& old = *source_;
    if constexpr (E::refreshes) {
      old.rule.refresh_from_old_job(squares_, old.at_average());
      old.backend().launch(old.tensors.size(), begin_since_kernel{old.tensors.scalars.data()});
      // replaces the layout and the rho of the old job's ranks
      old.rule.prepare_refreshes(e_->exchange.axis(), e_->comm.size());
    }
    const bool travels = e_->exchange.travels();
    if constexpr (R::local_steps) {
      if constexpr (requires { old.rule.prepare_resume(); }) {
        if (!travels || !old.exchange.travels()) old.rule.prepare_resume();
      }
      if (travels) space_ = e_->exchange.allocate(e_->from_nothing);
      if (travels) e_->exchange.allocate_undo(e_->from_nothing);
    } else if (old.exchange.started()) {
      if (!travels) {  // one rank alone never compresses
        old.thaw();
        return;
      }
      given_ = old.rule.resume(old.exchange.previous(), old.at());
      if (given_.momentum.size() == 0 && e_->average.axis().n_words() > 0) {
        throw checkpoint_error(
            detail::error_text("load_old_job: the rule's resume() returned no ",
                               "momentum; return zeros if the rule keeps its own"));
      }
      space_ = e_->exchange.allocate(e_->from_momentum);
      e_->exchange.allocate_undo(e_->from_momentum);
    }
  }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] std::uint64_t scalars() const { return scalars_; }

  /// Replaces the state of the engine by the old one. Allocates nothing: only launches.
  [[gnu::cold]] void adopt() {
    E &e = *e_, &old = *source_;
    const bool starts = (R::local_steps || old.exchange.started()) && e.exchange.travels();

    // Counters, schedule and rule: one old rank's.
    e.step = old.step;
    e.last_lr = old.last_lr;
    e.given_moments = old.given_moments;
    e.averaged_squares = false;    // compensated values hold the previous mean
    std::destroy_at(&e.schedule);  // a user's function may not be assignable
    std::construct_at(&e.schedule, std::move(old.schedule));
    e.rule = std::move(old.rule);

    // Which elements take part.
    auto& active = old.exchange.active();
    if (active.size() > 0 || !starts) {
      e.exchange.active() = std::move(active);
    } else {
      e.exchange.activate_all(std::exchange(e.exchange.active(), {}));
    }

    // Numbers in the backend's memory: the old job's, but who this rank is.
    step_scalars now, was;
    e.backend().copy_out(&now, e.now(), 1);
    e.backend().copy_out(&was, old.now(), 1);
    was.given.optimizer = now.given.optimizer;
    was.given.rank = now.given.rank;
    was.given.marks = now.given.marks;
    was.counts.n_skipped = now.counts.n_skipped;
    e.backend().copy_in(e.now(), &was, 1);
    e.tensors.scalars = std::move(old.tensors.scalars);
    e.tensors.changed = true;
    e.tensors.saved = std::move(old.tensors.saved);
    e.restore_options(with_);
    e.tensors.take_options(e.backend());

    // The exchange: the previous mean, and what all old ranks still owe.
    if (starts) {
      e.exchange.start(std::move(space_), std::move(given_));
      detail::resume_feedback(e, residuals_.data());
    } else if (e.exchange.started()) {
      e.exchange.start({}, {});
    }
    if constexpr (R::local_steps) {
      const bool travelled = old.exchange.travels(), travels = e.exchange.travels();
      if (travelled && !travels && e.rule.moved()) {
        // no exchange will follow: apply the one that was due, equally on all ranks
        const detail::active_field due{{residuals_.data()}, e.mask()};
        e.rule.compressed_update(due, due, e.at(),
                                 [&](const auto& kernel) { e.at().launch(kernel); });
      }
      if (!travelled || !travels) e.rule.resume(e.exchange.previous(), e.at());
      if (!travels) e.exchange.active() = {};
    }
    e.adopt();
  }

 private:
  [[nodiscard]] static buffer_of<B, float> make_flat(E& e) {
    return e.backend().template make_buffer<float>(e.average.axis().n_words() * word_elements);
  }
  [[noreturn, gnu::cold]] void throw_diverged(std::size_t r, std::uint64_t step) const {
    throw checkpoint_error(detail::error_text("resume: ranks 0 and ", r,
                                              " of the old job differ, at steps ", step_, " and ",
                                              step, "; load files of one save"));
  }
  E* e_;
  std::size_t n_, source_rank_, n_read_ = 0, node_ = 1;
  buffer_of<B, float> residuals_;  ///< on the flat axis
  buffer_of<B, float> squares_;    ///< mean of the squares that ranks kept; or empty
  std::unique_ptr<E> source_;
  std::uint64_t step_ = 0, scalars_ = 0, parameters_ = 0;
  resume_with with_ = resume_with::same_options;
  typename E::exchange_type::space space_{};
  initial_momentum<buffer_of<B, float>> given_{};
};

/// Access to the files of an old job: calls `read` with the checkpoint of rank r.
using old_files = function_ref<void(std::size_t r, function_ref<void(std::istream&)> read)>;

/// Loads the checkpoints of an old job with `n_ranks` ranks into engine e; the rest as
/// load_checkpoint. Collective: throws checkpoint_error on all ranks if one fails; then nothing has
/// changed.
template <class E, class Header>
[[gnu::cold]] void load_old_job_of(E& e, std::size_t n_ranks, detail::old_files files,
                                   const Header& header, resume_with with,
                                   const std::string& refusal) {
  std::string failure = refusal;
  std::unique_ptr<detail::old_job<E>> old;
  try {
    if (n_ranks == 0) throw checkpoint_error(detail::error_text("load_old_job: no ranks to load"));
    if (failure.empty()) {
      const auto source = static_cast<std::size_t>(e.comm.rank()) % n_ranks;
      old = std::make_unique<detail::old_job<E>>(e, n_ranks, source);
      const detail::checkpoint_header here = header();
      for (std::size_t r = 0; r < n_ranks; ++r) {
        files(r, [&](std::istream& in) { old->read(in, here, with); });
      }
      old->prepare();
    }
  } catch (const std::exception& error) {
    failure = error.what();
  }
  detail::agree_on_checkpoint(e.comm, failure, old ? old->step() : 0, old ? old->scalars() : 0);
  old->adopt();
}

}  // namespace detail

}}  // namespace onebit
