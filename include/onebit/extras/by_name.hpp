// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <onebit/algorithms.hpp>
#include <onebit/any_optimizer.hpp>
#include <onebit/core/error.hpp>
#include <onebit/extras/papers.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Optimizers by name, with options as text, as in configuration files and on command lines.
namespace onebit { inline namespace v0_3 {

/// Map from option names to values, each as JSON writes it: "0.001", "true", "[0.9, 0.999]", "nccl"
/// (strings without quotes). To convert a JSON object, copy its strings and dump other values.
using option_map = std::map<std::string, std::string>;

namespace detail {

/// Returns the number of letters to insert, delete or replace to turn a into b (Levenshtein).
[[nodiscard, gnu::cold]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t least = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
      const std::size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], least < exchanged ? least : exchanged);
    }
  }
  return row[b.size()];
}

[[nodiscard, gnu::cold]] inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

/// Reader of an algorithm's options. Each call names the keys that it accepts; `finish` rejects all
/// other keys. Errors are invalid_input; their messages name the algorithm and the key.
class option_reader {
 public:
  using keys = std::initializer_list<const char*>;

  [[gnu::cold]] option_reader(std::string algorithm, const option_map& given)
      : algorithm_(std::move(algorithm)), given_(given) {}

  /// Reads an option that has several names into `target`. Returns false if it is not given.
  [[gnu::cold]] bool read(keys names, double& target) {
    const std::string* text = find(names);
    if (text != nullptr) target = number(*text);
    return text != nullptr;
  }
  template <std::unsigned_integral Count>
  [[gnu::cold]] bool read(keys names, Count& target) {
    const std::string* text = find(names);
    if (text == nullptr) return false;
    const double x = number(*text);  // accepts 1e5; 2^53: exact in a double
    static_assert(sizeof(Count) == 8,
                  "onebit: make_optimizer needs a platform of 64 bits; on 32 bits "
                  "call one_bit_adam and its like with their options");
    if (!(x >= 0 && x <= 0x1p53 && x == std::floor(x))) wrong(*text, "a count: 0, 1, 2, ...");
    target = static_cast<Count>(x);
    return true;
  }
  [[gnu::cold]] bool read(keys names, bool& target) {
    const std::string* text = find(names);
    if (text == nullptr) return false;
    const std::string lower = lower_case(*text);
    if (lower != "true" && lower != "false" && lower != "0" && lower != "1") {
      wrong(*text, "true or false");
    }
    target = lower == "true" || lower == "1";
    return true;
  }
  /// Reads two numbers separated by a comma, with or without brackets.
  [[gnu::cold]] bool read_pair(keys names, double& first, double& second) {
    const std::string* text = find(names);
    if (text == nullptr) return false;
    std::string_view inner = trimmed(*text);
    const auto within = [&](char open, char close) {
      return inner.size() >= 2 && inner.front() == open && inner.back() == close;
    };
    if (within('[', ']') || within('(', ')')) inner = inner.substr(1, inner.size() - 2);
    const std::size_t comma = inner.find(',');
    if (comma == std::string_view::npos) wrong(*text, "two numbers, as in [0.9, 0.999]");
    first = number(inner.substr(0, comma));
    second = number(inner.substr(comma + 1));
    return true;
  }
  /// Reads an option whose value is one of `words`. Returns its index, or nothing if not given.
  [[gnu::cold]] std::optional<std::size_t> read_word(keys names, keys words) {
    const std::string* text = find(names);
    if (text == nullptr) return std::nullopt;
    std::size_t place = 0;
    std::string all;
    for (const char* word : words) {
      if (*text == word) return place;
      all += (place++ == 0 ? "" : ", ") + std::string(word);
    }
    wrong(*text, ("one of: " + all).c_str());
  }

  /// Throws if the option is given and is not `value`; `why` tells the user what to do.
  [[gnu::cold]] void only(const char* name, bool value, const char* why) {
    bool read_value = value;
    if (read({name}, read_value) && read_value != value) {
      fail({name, " is ", read_value ? "true" : "false", ": ", why});
    }
  }
  /// Accepts an option that is true or false, without effect.
  [[gnu::cold]] void ignore(const char* name) {
    bool value = false;
    (void)read({name}, value);
  }
  /// Throws if the option is given; `why` tells the user what to do.
  [[gnu::cold]] void refuse(const char* name, const char* why) {
    if (find({name}) != nullptr) fail({name, ": ", why});
  }
  /// Throws if a given key was not named by a call before.
  [[gnu::cold]] void finish() const {
    for (const auto& [key, value] : given_) {
      std::size_t least = ~std::size_t{0};
      std::string_view nearest;
      for (const std::string& name : known_) {
        const std::size_t distance = edit_distance(lower_case(key), name);
        if (distance < least) {
          least = distance;
          nearest = name;
        }
        if (name == key) least = 0;
      }
      if (least == 0 && nearest == key) continue;
      std::string all;
      for (const std::string& name : known_) all += (all.empty() ? "" : ", ") + name;
      const bool is_near = least <= 2 + key.size() / 4;
      fail({"there is no option ", key, is_near ? "; did you mean " : "", is_near ? nearest : "",
            is_near ? "?" : ".", " It knows: ", all});
    }
  }
  [[noreturn, gnu::cold]] void fail(std::initializer_list<text_part> parts) const {
    throw invalid_input(error_text("make_optimizer: ", algorithm_, ": ", join(parts)));
  }

 private:
  [[nodiscard, gnu::cold]] const std::string* find(keys names) {
    const std::string* text = nullptr;
    for (const char* name : names) {
      known_.emplace_back(name);
      const auto place = given_.find(name);
      if (place == given_.end()) continue;
      if (text != nullptr) fail({name_, " and ", name, " are the same option; give one of them"});
      text = &place->second;
      name_ = name;
    }
    return text;
  }
  [[nodiscard, gnu::cold]] double number(std::string_view text) const {
    std::string_view t = trimmed(text);
    if (t.size() > 1 && t[0] == '+' && (t[1] == '.' || (t[1] >= '0' && t[1] <= '9'))) {
      t.remove_prefix(1);
    }
    double x = 0;
    const auto end = t.data() + t.size();
    const auto parsed = std::from_chars(t.data(), end, x);
    if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(x)) {
      wrong(text, text == "auto" ? "a number (who calls must fill in what is auto)" : "a number");
    }
    return x;
  }
  [[nodiscard]] static std::string_view trimmed(std::string_view t) {
    while (!t.empty() && t.front() == ' ') t.remove_prefix(1);
    while (!t.empty() && t.back() == ' ') t.remove_suffix(1);
    return t;
  }
  [[noreturn, gnu::cold]] void wrong(std::string_view text, const char* wanted) const {
    fail({name_, " is '", text, "', must be ", wanted});
  }

  std::string algorithm_;
  const option_map& given_;
  std::vector<std::string> known_;
  const char* name_ = "";  ///< key that was found last
};

}  // namespace detail

/// Algorithms that `make_optimizer` can construct.
enum class algorithm : std::uint8_t {
  adam,
  lamb,
  one_bit_adam,
  one_bit_lamb,
  papers_one_bit_lamb,
  zero_one_adam
};

/// Algorithm and options read from text. Only the options struct of `which` is used.
struct named_optimizer {
  algorithm which = algorithm::adam;  ///< algorithm to construct
  /// @{
  /// Options of the algorithm of this name.
  adam_options adam{};
  lamb_options lamb{};
  one_bit_adam_options one_bit_adam{};
  one_bit_lamb_options one_bit_lamb{};
  papers::one_bit_lamb_options papers_one_bit_lamb{100000};
  zero_one_adam_options zero_one_adam{};
  /// @}
  dense_sum sum = dense_sum::automatic;  ///< summation of adam and lamb
  std::size_t bucket_elements = 0;       ///< bucket size of compressed exchanges; 0: one bucket
  /// Number of elements that share a scale of `sign`; 0: one scale per tensor, the default for
  /// DeepSpeed's names. Not used by papers_one_bit_lamb, which has one scale for all tensors.
  std::size_t scale_elements = sign<>{}.scales.block_elements;
  double scale_factor =
      static_cast<double>(sign<>{}.factor);  ///< sign::factor; default 1 for DeepSpeed's names
  std::uint64_t bits =
      2;             ///< of messages of zero_one_adam: 1, with these scales, or 2; DeepSpeed's: 1
  double lr = 1e-3;  ///< for the trainer; make_optimizer ignores it
  std::optional<double> weight_decay{};  ///< decay of groups: see make_optimizer
};

namespace detail {

/// Accepts or rejects the options of DeepSpeed's optimizers that have no counterpart here.
[[gnu::cold]] inline void read_deepspeed(option_reader& r) {
  r.ignore("cuda_aware");  // the transport finds out
  // DeepSpeed's values, of which any has no effect: the caller passes a transport
  (void)r.read_word({"comm_backend_name"}, {"nccl", "mpi", "compressed", "hccl"});
  r.only("amsgrad", false, "there is no AMSGrad of any of these; leave it out");
  r.only("eps_inside_sqrt", false,
         "eps is added to the root, as DeepSpeed's 1-bit optimizers add it whatever this says; "
         "leave it out");
  r.refuse("exp_avg_mask",
           "elements without a gradient in the warm-up do not move, so that no mask is needed; "
           "leave it out");
  r.refuse("non_freeze",
           "give tensors that shall never be compressed an optimizer of their own, named adam");
}
/// Reads the options that all rules have.
template <class Options>
[[gnu::cold]] void read_moments(option_reader& r, Options& o) {
  const bool betas = r.read_pair({"betas"}, o.beta1, o.beta2);
  const bool beta1 = r.read({"beta1"}, o.beta1), beta2 = r.read({"beta2"}, o.beta2);
  if (betas && (beta1 || beta2)) r.fail({"betas and beta1 or beta2 are the same; give one"});
  r.read({"max_grad_norm", "gradient_clipping"}, o.max_grad_norm);
  r.read({"eps"}, o.eps);
  r.read({"bias_correction"}, o.bias_correction);
}
template <class Options>
[[gnu::cold]] void read_coefficients(option_reader& r, Options& o) {
  r.read({"min_coeff"}, o.min_coeff);
  r.read({"max_coeff"}, o.max_coeff);
}
[[gnu::cold]] inline void read_sum(option_reader& r, const char* name, dense_sum& sum) {
  static_assert(dense_sum{5} == dense_sum::transport_in_bf16);
  const auto place = r.read_word(
      {name}, {"automatic", "rank_order", "transport", "in_bf16", "in_int8", "transport_in_bf16"});
  if (place) sum = static_cast<dense_sum>(*place);
}
[[gnu::cold]] inline void read_freeze(option_reader& r, freeze_options& o) {
  r.read({"after", "freeze.after", "freeze_step"}, o.after);
}
[[gnu::cold]] inline void read_intervals(option_reader& r, intervals_options& o) {
  r.read({"warmup_steps", "schedule.warmup_steps", "var_freeze_step"}, o.warmup_steps);
  r.read({"doubling_steps", "schedule.doubling_steps", "local_step_scaler"}, o.doubling_steps);
  r.read({"max_interval", "schedule.max_interval", "local_step_clipper"}, o.max_interval);
  r.read({"also_every", "schedule.also_every"}, o.also_every);
  const bool after = r.read({"after", "schedule.after"}, o.after);
  const bool refreshes = r.read({"refreshes", "schedule.refreshes"}, o.refreshes);
  r.read({"kappa", "schedule.kappa", "var_update_scaler"}, o.kappa);
  if (o.kappa > 0 && (after || refreshes)) {
    r.fail({after ? "after" : "refreshes",
            " is not used if kappa is above 0, as it is by "
            "DeepSpeed's names; leave it out, or give kappa 0"});
  }
  r.read({"stop_refreshing", "schedule.stop_refreshing"}, o.stop_refreshing);
}

/// Returns the algorithm of a name, ours or DeepSpeed's. Throws invalid_input for other names.
[[nodiscard, gnu::cold]] inline algorithm algorithm_of(const std::string& name) {
  const std::string lower = lower_case(name);
  const auto is = [&](const char* ours, const char* deepspeed) {
    return name == ours || lower == deepspeed;
  };
  if (is("adam", "adam") || lower == "adamw") return algorithm::adam;
  if (is("lamb", "lamb")) return algorithm::lamb;
  if (is("one_bit_adam", "onebitadam")) return algorithm::one_bit_adam;
  if (name == "one_bit_lamb") return algorithm::one_bit_lamb;
  if (lower == "onebitlamb") return algorithm::papers_one_bit_lamb;
  if (is("zero_one_adam", "zerooneadam")) return algorithm::zero_one_adam;
  throw invalid_input(error_text(
      "make_optimizer: there is no algorithm '", name,
      "'; there are adam, lamb, one_bit_adam, one_bit_lamb, zero_one_adam, and DeepSpeed's Adam, "
      "AdamW, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam"));
}
/// Sets the papers' forms with DeepSpeed's defaults.
[[gnu::cold]] inline void set_deepspeed_defaults(named_optimizer& o) {
  o.one_bit_adam = papers::one_bit_adam(100000).options;
  o.zero_one_adam = papers::zero_one_adam(100000).options;
  o.zero_one_adam.schedule.doubling_steps = 32678;
  o.scale_elements = 0;
  o.scale_factor = 1;
  o.bits = 1;
}

}  // namespace detail

/// Returns the algorithm and options for a name and option texts. Not collective.
///
/// Names: those of algorithms.hpp (adam, lamb, one_bit_adam, one_bit_lamb, zero_one_adam), with the
/// defaults of their option structs; and DeepSpeed's, in any case: Adam, AdamW, Lamb, and
/// OneBitAdam, OneBitLamb, ZeroOneAdam, which select the papers' forms (onebit::papers) with
/// DeepSpeed's warm-ups and intervals. Options: the keys of DeepSpeed's configuration ("params")
/// and the members of this library's option structs, with either kind of name. (Of the two forms of
/// 1-bit LAMB only OneBitLamb has the paper's options, and only one_bit_lamb has refreshes,
/// max_step and scales.) Table: docs/deepspeed.md. Throws invalid_input for unknown
/// names, unknown options (suggesting the nearest key), values that cannot be parsed, unsupported
/// requests, and one option given under two names. The algorithm checks ranges later.
[[nodiscard, gnu::cold]] inline named_optimizer read_options(const std::string& name,
                                                             const option_map& options) {
  named_optimizer o;
  o.which = detail::algorithm_of(name);
  const std::string lower = detail::lower_case(name);
  if (lower == "onebitadam" || lower == "onebitlamb" || lower == "zerooneadam") {
    detail::set_deepspeed_defaults(o);
  }
  detail::option_reader r(name, options);
  r.read({"lr"}, o.lr);
  if (!(o.lr >= 0)) r.fail({"lr is ", o.lr, ", must not be negative"});
  if (double decay = 0; r.read({"weight_decay"}, decay)) o.weight_decay = decay;
  detail::read_deepspeed(r);
  const auto read_bucket = [&] { r.read({"bucket_elements"}, o.bucket_elements); };
  const auto read_scales = [&] {
    const bool elements = r.read({"scale_elements"}, o.scale_elements);
    const bool factor = r.read({"scale_factor"}, o.scale_factor);
    if (!(o.scale_factor > 0 && o.scale_factor < 1e30)) {
      r.fail({"scale_factor is ", o.scale_factor, ", must be above 0 and below 1e30"});
    }
    return elements || factor;
  };
  const auto compressing = [&](auto& algorithm, auto& rule) {
    detail::read_moments(r, rule);
    if constexpr (requires { algorithm.max_step; }) r.read({"max_step"}, algorithm.max_step);
    read_bucket();
  };
  if (o.which == algorithm::adam) {
    detail::read_moments(r, o.adam);
    bool torch = false, decoupled = true;
    r.read({"torch_adam"}, torch);
    r.read({"adam_w_mode"}, decoupled);
    r.ignore("set_grad_none");
    if (!decoupled && lower != "adamw" && o.weight_decay.value_or(0) != 0) {
      r.fail({"adam_w_mode is false with weight_decay ", *o.weight_decay,
              ": the decay is decoupled from the gradient (AdamW) here; leave adam_w_mode out, or "
              "add the decay to your gradients and give weight_decay 0"});
    }
    if (torch && !o.weight_decay) {
      r.fail(
          {"torch_adam without weight_decay: torch's own default is 0.01 in AdamW and 0 in Adam; "
           "say which you mean"});
    }
    detail::read_sum(r, "sum", o.sum);
  } else if (o.which == algorithm::lamb) {
    detail::read_moments(r, o.lamb);
    detail::read_coefficients(r, o.lamb);
    detail::read_sum(r, "sum", o.sum);
  } else if (o.which == algorithm::one_bit_adam) {
    compressing(o.one_bit_adam, o.one_bit_adam.adam);
    read_scales();
    detail::read_freeze(r, o.one_bit_adam.freeze);
    r.read({"refreshes"}, o.one_bit_adam.refreshes);
    detail::read_sum(r, "warm_up_sum", o.one_bit_adam.warm_up_sum);
  } else if (o.which == algorithm::one_bit_lamb) {
    compressing(o.one_bit_lamb, o.one_bit_lamb.lamb);
    detail::read_coefficients(r, o.one_bit_lamb.lamb);
    read_scales();
    detail::read_freeze(r, o.one_bit_lamb.freeze);
    r.read({"refreshes"}, o.one_bit_lamb.refreshes);
    detail::read_sum(r, "warm_up_sum", o.one_bit_lamb.warm_up_sum);
  } else if (o.which == algorithm::papers_one_bit_lamb) {
    papers::lamb_options& lamb = o.papers_one_bit_lamb.lamb;
    compressing(o.papers_one_bit_lamb, lamb);
    detail::read_coefficients(r, lamb);
    r.read({"coeff_beta"}, lamb.coeff_beta);
    r.read({"factor_min"}, lamb.factor_min);
    r.read({"factor_max"}, lamb.factor_max);
    r.read({"factor_threshold"}, lamb.factor_threshold);
    r.read({"momentum_scaling"}, lamb.momentum_scaling);
    detail::read_freeze(r, o.papers_one_bit_lamb.freeze);
    detail::read_sum(r, "warm_up_sum", o.papers_one_bit_lamb.warm_up_sum);
  } else {
    compressing(o.zero_one_adam, o.zero_one_adam.adam);
    r.read({"bits"}, o.bits);
    if (o.bits != 1 && o.bits != 2) r.fail({"bits is ", o.bits, ", must be 1 or 2"});
    if (read_scales() && o.bits == 2) {
      r.fail({"scale_elements and scale_factor are of messages in 1 bit; give bits 1 too"});
    }
    detail::read_intervals(r, o.zero_one_adam.schedule);
    r.read({"own_variance"}, o.zero_one_adam.own_variance);
    detail::read_sum(r, "refresh_sum", o.zero_one_adam.refresh_sum);
  }
  r.finish();
  return o;
}

namespace detail {

/// Returns the groups, with the decay of the options if there is one: a single group without decay
/// gets it; otherwise throws invalid_input unless a group already has this decay.
template <class P, class G>
[[nodiscard, gnu::cold]] std::vector<param_group<P, G>> with_decay(
    std::vector<param_group<P, G>> groups, std::optional<double> decay) {
  if (!decay) return groups;
  const auto wanted = static_cast<float>(*decay);
  bool is_there = false;
  for (const auto& g : groups) is_there = is_there || g.weight_decay == wanted;
  if (groups.size() == 1 && groups[0].weight_decay == 0) {
    groups[0].weight_decay = wanted;
  } else if (!is_there) {
    throw invalid_input(error_text("make_optimizer: weight_decay is ", wanted, ", but none of ",
                                   groups.size(),
                                   " groups has it; the decay belongs to groups: set "
                                   "param_group::weight_decay of those that it is for"));
  }
  return groups;
}

/// Returns a warning if a name of DeepSpeed's is used without the key of its warm-up, whose length
/// is then DeepSpeed's 100000 steps; or nothing.
[[nodiscard, gnu::cold]] inline std::string default_warm_up(const std::string& name,
                                                            const option_map& options) {
  const std::string lower = lower_case(name);
  const bool zero_one = lower == "zerooneadam";
  if (!zero_one && lower != "onebitadam" && lower != "onebitlamb") return {};
  const char* const key = zero_one ? "var_freeze_step" : "freeze_step";
  for (const char* given : {key, zero_one ? "warmup_steps" : "after",
                            zero_one ? "schedule.warmup_steps" : "freeze.after"}) {
    if (options.contains(given)) return {};
  }
  return error_text("make_optimizer: ", name, " without ", key,
                    ": the warm-up has DeepSpeed's default of 100000 steps, ",
                    zero_one ? "which all communicate" : "which are all dense",
                    "; a run that ends before it never leaves it; give ", key);
}

}  // namespace detail

/// Constructs the optimizer of a name and options, as `read_options` describes them. Collective
/// over the transport; all ranks must pass equal arguments. Throws what `read_options` and the
/// algorithm throw, on all ranks. `backend`: as in algorithms.hpp. Where several ranks would make
/// DeepSpeed's warm-up of 100000 steps because nothing says how long it is, rank 0 says so on
/// stderr.
///
/// The option lr has no effect; the trainer finds it in read_options(name, options).lr. A single
/// group without weight decay gets the option weight_decay; of several groups one must already have
/// it. Compiles all algorithms for P, G and B.
template <class P, class G, class T, class B = host>
[[nodiscard, gnu::cold]] any_optimizer make_optimizer(const std::string& name,
                                                      const option_map& options,
                                                      const std::vector<param_group<P, G>>& groups,
                                                      T transport, B backend = B{}) {
  detail::check_transport<T>();
  detail::check_backend<B>();
  communicator comm(std::move(transport));
  const auto [o, all] = detail::collective_try(comm, [&] {
    const named_optimizer read = read_options(name, options);
    return std::pair(read, detail::with_decay(groups, read.weight_decay));
  });
  if (comm.rank() == 0 && comm.size() > 1) {
    const std::string text = detail::default_warm_up(name, options);
    if (!text.empty()) detail::warn_on_stderr(text);
  }
  using signs = gather_scatter<sign<>>;
  const granularity scales =
      o.scale_elements > 0 ? granularity::block(o.scale_elements) : granularity::layer();
  const sign<> codec{scales, static_cast<float>(o.scale_factor)};
  switch (o.which) {
    case algorithm::adam:
      return adam(all, comm, o.adam, std::move(backend), o.sum);
    case algorithm::lamb:
      return lamb(all, comm, o.lamb, std::move(backend), o.sum);
    case algorithm::one_bit_adam:
      return one_bit_adam(all, comm, o.one_bit_adam, signs{codec, o.bucket_elements},
                          std::move(backend));
    case algorithm::one_bit_lamb:
      return one_bit_lamb(all, comm, o.one_bit_lamb, signs{codec, o.bucket_elements},
                          std::move(backend));
    case algorithm::papers_one_bit_lamb:
      return one_bit_lamb(all, comm, o.papers_one_bit_lamb,
                          signs{{granularity::vector(), 1}, o.bucket_elements}, std::move(backend));
    case algorithm::zero_one_adam:
      if (o.bits == 2) {
        return zero_one_adam(all, comm, o.zero_one_adam,
                             gather_scatter{two_bits{}, o.bucket_elements}, std::move(backend));
      }
      return zero_one_adam(all, comm, o.zero_one_adam, signs{codec, o.bucket_elements},
                           std::move(backend));
  }
  throw invalid_input(detail::error_text("make_optimizer: no algorithm"));
}

}}  // namespace onebit
