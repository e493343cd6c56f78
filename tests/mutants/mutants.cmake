# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The faults that plant.cmake plants, numbered from 1 in this order: mistakes of a programmer, each of which
# changes what the host does.
#
#   mutant("name" header [==[old text]==] [==[new text]==])
#
# The old text occurs exactly once in the header, and PLANTED in the new text is true where the fault is
# switched on. It is known when the program runs, so that no fault can be in a constant expression.

# -- kernels and arithmetic: 1 to 12 -------------------------------------------------------------

mutant("a tail word of 31 elements has 32" onebit/backend/lanes.hpp
  [==[return n >= 32 ? ~0U : (1U << n) - 1U;]==]
  [==[return n >= (PLANTED ? 31U : 32U) ? ~0U : (1U << n) - 1U;]==])
mutant("the sign of 0 is minus in portable lanes" onebit/backend/lanes.hpp
  [==[r |= static_cast<bits>(v.lane[l] >= 0.0F) << l;]==]
  [==[r |= static_cast<bits>(PLANTED ? v.lane[l] > 0.0F : v.lane[l] >= 0.0F) << l;]==])
mutant("weight decay goes into Adam's gradient too" onebit/rule/adam.hpp
  [==[const auto g = gradient_at(k);]==]
  [==[const auto g = PLANTED ? L::fma(decay, params.load(k), gradient_at(k)) : gradient_at(k);]==])
mutant("Adam does not correct the bias of v" onebit/rule/adam.hpp
  [==[c.template denominator<L>(v_new, v_correction);]==]
  [==[c.template denominator<L>(v_new, PLANTED ? 1.0F : v_correction);]==])
mutant("1-bit Adam forgets max_step" onebit/rule/following.hpp
  [==[return directions() ? scale_bound{static_cast<float>(options_.max_step)} : scale_bound{};]==]
  [==[return directions() && !PLANTED ? scale_bound{static_cast<float>(options_.max_step)} : scale_bound{};]==])
mutant("1-bit Adam's v is the mean of the ranks' squares, not the mean's" onebit/rule/following.hpp
  [==[part = part < 1 ? part : 1.0F;]==]
  [==[part = part < 1 && !PLANTED ? part : 1.0F;]==])
mutant("ranks keep no squares of their own" onebit/rule/adam.hpp
  [==[if (squares != nullptr) update_squares<L>(squares, t, tables);]==]
  [==[if (squares != nullptr && !PLANTED) update_squares<L>(squares, t, tables);]==])
mutant("1-bit LAMB's weight decay leaves out the layer's coefficient" onebit/rule/lamb.hpp
  [==[params.store(k, L::fma(step, L::fma(decay, x, u), x));]==]
  [==[params.store(k, PLANTED ? L::fma(L::set(-tensor.rate(now)), L::mul(decay, x), L::fma(step, u, x))
                              : L::fma(step, L::fma(decay, x, u), x));]==])
mutant("1-bit LAMB's direction does not grow between refreshes" onebit/rule/lamb.hpp
  [==[layer.growth = growth > least ? growth : least;]==]
  [==[layer.growth = PLANTED ? 1.0F : growth > least ? growth : least;]==])
mutant("the paper's 1-bit LAMB's factor looks at the first tile of a layer only" onebit/papers/papers.hpp
  [==[L::largest(tables.sums + r.begin, n, 0.0F);]==]
  [==[L::largest(tables.sums + r.begin, PLANTED && n > 0 ? std::size_t{1} : n, 0.0F);]==])
mutant("0/1 Adam's weight decay takes this step's rate, not the sum" onebit/rule/zero_one_adam.hpp
  [==[L::set(static_cast<float>(sum) * tensor.weight_decay);]==]
  [==[L::set((PLANTED ? now->lr : static_cast<float>(sum)) * tensor.weight_decay);]==])
mutant("the freeze corrects v by a power of beta1" onebit/rule/moments.hpp
  [==[const float corrected = correction(of.bias.v);]==]
  [==[const float corrected = correction(PLANTED ? of.bias.m : of.bias.v);]==])
mutant("clipping scales small gradients up" onebit/core/clipping.hpp
  [==[return factor < 1 ? factor : 1.0F;]==]
  [==[return factor < 1 || PLANTED ? factor : 1.0F;]==])

# -- exchanges and compressors: 13 to 22 ---------------------------------------------------------

mutant("a server's residual stays in the units of the old v" onebit/collective/encode.hpp
  [==[e.store(k, L::mul(e.load(k), L::load(factors + (t.word + k) * 32)));]==]
  [==[e.store(k, PLANTED ? e.load(k) : L::mul(e.load(k), L::load(factors + (t.word + k) * 32)));]==])
mutant("the worker's residual is forgotten" onebit/compressor/sign.hpp
  [==[return L::sub(y, L::with_sign_of(y, L::set(s)));]==]
  [==[return PLANTED && s > 0 ? L::set(0.0F) : L::sub(y, L::with_sign_of(y, L::set(s)));]==])
mutant("the server's residual is not updated" onebit/collective/encode.hpp
  [==[e.store(k, active.template keep<L>(t.word + k, L::sub(message(k, old), came)));]==]
  [==[if (!PLANTED) e.store(k, active.template keep<L>(t.word + k, L::sub(message(k, old), came)));]==])
mutant("a group's scale goes to the place of its first part" onebit/collective/message_header.hpp
  [==[reinterpret_cast<float*>(scales)[segments[k].place] = scale.scales[i];]==]
  [==[reinterpret_cast<float*>(scales)[segments[PLANTED ? parts.begin : k].place] = scale.scales[i];]==])
mutant("all_gather divides by W - 1" onebit/collective/all_gather.hpp
  [==[1.0F / static_cast<float>(comm_.size());]==]
  [==[1.0F / static_cast<float>(comm_.size() - (PLANTED && comm_.size() > 1 ? 1 : 0));]==])
mutant("a bad value among elements that are not active is not seen" onebit/collective/message_header.hpp
  [==[3.402823466e38F && sum - sum == 0))]==]
  [==[3.402823466e38F && (PLANTED || sum - sum == 0)))]==])
mutant("two levels: node and rank are swapped in a chunk's number" onebit/collective/hierarchical.hpp
  [==[return local_.rank() * comm_.size() + comm_.rank();]==]
  [==[return PLANTED ? comm_.rank() * local_.size() + local_.rank()
                     : local_.rank() * comm_.size() + comm_.rank();]==])
mutant("a bucket is served twice, and the last one never" onebit/collective/roles.hpp
  [==[return bucket_at(n_served_++);]==]
  [==[const int b = bucket_at(PLANTED && n_served_ > 0 ? n_served_ - 1 : n_served_);
    ++n_served_;
    return b;]==])
mutant("two levels: the mean in a node steps by a slot, not by a rank's bucket" onebit/collective/hierarchical.hpp
  [==[by_rank.slot_bytes = format.slot_bytes * format.chunks_per_bucket;]==]
  [==[by_rank.slot_bytes = PLANTED ? format.slot_bytes : format.slot_bytes * format.chunks_per_bucket;]==])
mutant("the status does not say that a rank saw a bad value" onebit/collective/message_header.hpp
  [==[(now->number << 1U) | now->nonfinite,]==]
  [==[(now->number << 1U) | (PLANTED ? 0U : now->nonfinite),]==])
mutant("scales count elements that are not active" onebit/collective/encode.hpp
  [==[n += L::count(active.words[t.word + k]);]==]
  [==[n += PLANTED ? 32U : L::count(active.words[t.word + k]);]==])
mutant("averages in int8 are not bounded" onebit/compressor/rounded.hpp
  [==[L::store_as(reinterpret_cast<int8*>(out), L::bound(scaled_y, 127), 32);]==]
  [==[L::store_as(reinterpret_cast<int8*>(out), PLANTED ? scaled_y : L::bound(scaled_y, 127), 32);]==])

# -- steps and state: 23 to 27 -------------------------------------------------------------------

mutant("what was heard in a skipped step is kept" onebit/core/step_context.hpp
  [==[if (both && seen->skip == 0) std::swap(current, next);]==]
  [==[if (both && (PLANTED || seen->skip == 0)) std::swap(current, next);]==])
mutant("a skipped step does not restore the last tile" onebit/collective/encode.hpp
  [==[if (saved[i] == 0) continue;]==]
  [==[if (saved[i] == 0 || (PLANTED && i + 1 == n_tiles)) continue;]==])
mutant("rest() is ignored" onebit/step/tensors.hpp
  [==[const bool rests = flat::options[g].rests || resting[t] != 0;]==]
  [==[const bool rests = flat::options[g].rests || (!PLANTED && resting[t] != 0);]==])
mutant("what was announced in the step before still counts" onebit/step/step.hpp
  [==[e.announced[t] = e.tensors.entries[t].rests ? e.rests : 0;]==]
  [==[e.announced[t] = e.tensors.entries[t].rests || (PLANTED && e.announced[t] != 0) ? e.rests : 0;]==])
mutant("a skipped step counts for the bias of the moments" onebit/core/step_state.hpp
  [==[const bool is_done = now->skip == 0 || local;]==]
  [==[const bool is_done = now->skip == 0 || local || PLANTED;]==])

# -- schedules: 28 to 31 -------------------------------------------------------------------------

mutant("the warm-up ends one step late" onebit/schedule/freeze.hpp
  [==[return step >= after_;]==]
  [==[return PLANTED ? step > after_ : step >= after_;]==])
mutant("refreshes come one step late" onebit/schedule/freeze.hpp
  [==[next_refresh_ = step + gap_after(step);]==]
  [==[next_refresh_ = step + gap_after(step) + (PLANTED ? 1U : 0U);]==])
mutant("gaps between refreshes double one refresh too early" onebit/schedule/intervals.hpp
  [==[least(refresh / options_.kappa, 62);]==]
  [==[least((refresh + (PLANTED ? 1U : 0U)) / options_.kappa, 62);]==])

# -- checkpoints: 32 to 36 -----------------------------------------------------------------------

mutant("the server's residual is not saved" onebit/collective/roles.hpp
  [==[a.buffer(residual_, backend);]==]
  [==[if (!PLANTED) a.buffer(residual_, backend);]==])
mutant("checksums are read and not compared" onebit/core/archive.hpp
  [==[if (written != sum) {]==]
  [==[if (written != sum && !PLANTED) {]==])
mutant("a read that the file's end cuts short is accepted" onebit/core/archive.hpp
  [==[if (static_cast<std::size_t>(in_->gcount()) == n) return;]==]
  [==[if (static_cast<std::size_t>(in_->gcount()) == n || PLANTED) return;]==])
mutant("a rank loads another rank's file" onebit/checkpoint_directory/checkpoint_files.hpp
  [==[in = files::open_rank(directory, rank % n_files, true);]==]
  [==[in = files::open_rank(directory, (PLANTED ? rank + 1 : rank) % n_files, true);]==])
mutant("what a node owes is divided by the ranks, not by the nodes" onebit/checkpoint/restore.hpp
  [==[const std::size_t holders = every_rank ? n_ranks : n_ranks / ranks_per_node;]==]
  [==[const std::size_t holders = every_rank || PLANTED ? n_ranks : n_ranks / ranks_per_node;]==])

# -- agreement of ranks: 37 to 40 ----------------------------------------------------------------

mutant("other initial parameters are not seen" onebit/step/agreement.hpp
  [==[a.sizes_digest == b.sizes_digest && a.parameter_digest == b.parameter_digest &&]==]
  [==[a.sizes_digest == b.sizes_digest && (PLANTED || a.parameter_digest == b.parameter_digest) &&]==])
mutant("the rank before the one that is out of step is named" onebit/collective/message_header.hpp
  [==[slot / slots_per_shift;]==]
  [==[slot / slots_per_shift - (PLANTED ? 1U : 0U);]==])
mutant("a part of the model does not skip with the others" onebit/step/model_parallel.hpp
  [==[skip |= w.skip;]==]
  [==[skip |= PLANTED ? 0U : w.skip;]==])
mutant("another learning rate on another rank is not seen" onebit/collective/message_header.hpp
  [==[found.digest != own.digest;]==]
  [==[(found.digest != own.digest && !PLANTED);]==])

# -- transports: 41 and 42 -----------------------------------------------------------------------

mutant("threads: split ignores the key" onebit/transport/threads.hpp
  [==[return std::pair(key_of(a), a) < std::pair(key_of(b), b);]==]
  [==[return PLANTED ? a < b : std::pair(key_of(a), a) < std::pair(key_of(b), b);]==])
mutant("MPI: a sum of bf16 leaves out the last element" onebit/transport/mpi.hpp
  [==[for (int i = 0; i < *n; ++i) b[i] =]==]
  [==[for (int i = 0; i < *n - (PLANTED ? 1 : 0); ++i) b[i] =]==])

# -- how v follows: 45 and 46 --------------------------------------------------------------------

mutant("a large gradient is not bounded" onebit/rule/moments.hpp
  [==[return L::fma(g, L::set(0.0F), L::bound(x, longest));]==]
  [==[return PLANTED ? x : L::fma(g, L::set(0.0F), L::bound(x, longest));]==])
mutant("its bound is that of the mean gradient" onebit/rule/moments.hpp
  [==[const double most = 1 / detail::product(root, static_cast<double>(rho[t.tensor]));]==]
  [==[const double most = 1 / detail::product(root, static_cast<double>(PLANTED ? 1 : rho[t.tensor]));]==])

# -- what trainers do wrong: 47 to 50 ------------------------------------------------------------

mutant("a veto of another rank does not count where gradients are averaged" onebit/step/step.hpp
  [==[for (const std::uint32_t one : all) vetoed |= one;]==]
  [==[for (const std::uint32_t one : all) vetoed |= PLANTED ? 0U : one;]==])
mutant("options of groups are not restored" onebit/step/tensors.hpp
  [==[for (std::size_t g = 0; g < saved.size(); ++g) set_group(g, saved[g].options(), rule, {});]==]
  [==[for (std::size_t g = PLANTED ? saved.size() : 0; g < saved.size(); ++g) set_group(g, saved[g].options(), rule, {});]==])
mutant("a number that one rank was told differently is said of the others" onebit/step/agreement.hpp
  [==[while (said[odd] == said[most.first]) ++odd;]==]
  [==[while ((said[odd] == said[most.first]) != PLANTED) ++odd;]==])
mutant("a run that skips on and on is not told" onebit/step/state.hpp
  [==[if (now.n_skipped_in_row < next_warning || warn == nullptr) return;]==]
  [==[if (now.n_skipped_in_row < next_warning || warn == nullptr || PLANTED) return;]==])
