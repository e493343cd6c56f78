// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The adapter for libtorch and the transport over c10d, in one file: torch's headers are dear.
// Ranks are threads, over onebit's own transport and over Gloo.

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#undef CHECK  // torch's and doctest's

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <onebit/algorithms.hpp>
#include <onebit/testing/transport.hpp>
#include <onebit/torch/c10d.hpp>
#include <onebit/torch/torch.hpp>
#include <onebit/transport/threads.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/ranks.hpp"
#include "support/training.hpp"

using onebit::torch_groups;
using onebit::torch_optimizer;
using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::thrown;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

namespace {

using tensors = std::vector<at::Tensor>;
using closure = torch::optim::Optimizer::LossClosure;

at::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  return torch::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
}

constexpr auto adam = [](const torch_groups& g, auto comm) { return onebit::adam(g, comm); };
constexpr auto adam_of_floats = [](const std::vector<onebit::param_group<float>>& g, auto comm) {
  return onebit::adam(g, comm);
};
/// All kinds of steps within 20: exact, frozen, refreshed.
constexpr auto one_bit_adam = [](const torch_groups& g, auto comm) {
  onebit::one_bit_adam_options options;
  options.freeze.after = 6;
  const onebit::gather_scatter in_buckets{onebit::sign<>{}, 64};
  onebit::any_optimizer o = onebit::one_bit_adam(g, comm, options, in_buckets);
  o.warn_with(nullptr);
  return o;
};

/// Two layers and a table whose weights are tied to the last.
struct net_impl : torch::nn::Module {
  explicit net_impl(std::uint64_t seed = 1) {
    first = register_module("first", torch::nn::Linear(8, 16));
    last = register_module("last", torch::nn::Linear(16, 8));
    register_parameter("tied", last->weight);
    const torch::NoGradGuard no_grad;
    std::uint64_t t = 0;
    for (at::Tensor& p : parameters()) p.copy_(0.3 * random(p.sizes(), seed * 100 + t++));
  }
  at::Tensor loss(std::uint64_t seed) {
    const at::Tensor x = random({4, 8}, 2 * seed), y = random({4, 8}, 2 * seed + 1);
    const auto type = first->weight.scalar_type();
    const at::Tensor in = x.to(type);
    const at::Tensor h = torch::tanh(first(in) + in.matmul(last->weight));
    return torch::mse_loss(last(h), y.to(type));
  }
  torch::nn::Linear first = nullptr, last = nullptr;
};
TORCH_MODULE_IMPL(net, net_impl);

tensors values(net& m) {
  tensors all;
  for (const at::Tensor& p : m->parameters()) all.push_back(p.detach().clone());
  return all;
}
bool same(const tensors& a, const tensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}
double farthest(const tensors& a, const tensors& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>());
  }
  return most;
}
/// torch's own AdamW, from the means of the gradients of n ranks.
tensors adamw_of_means(int n_ranks, int n_steps, double clip_to) {
  net m;
  tensors params = m->parameters();
  params.erase(params.begin());  // the tied weights
  torch::optim::AdamW optimizer(params, AdamWOptions(1e-2).weight_decay(0.1));
  for (int step = 0; step < n_steps; ++step) {
    optimizer.zero_grad();
    for (int r = 0; r < n_ranks; ++r) {
      (m->loss(static_cast<std::uint64_t>(100 * step + r)) / n_ranks).backward();
    }
    if (clip_to > 0) torch::nn::utils::clip_grad_norm_(params, clip_to);
    optimizer.step();
  }
  return values(m);
}
/// n_steps of a rank's own batches.
template <class Optimizer>
void train(net& m, Optimizer& optimizer, int rank, int first, int end) {
  for (int step = first; step < end; ++step) {
    optimizer.zero_grad();
    m->loss(static_cast<std::uint64_t>(100 * step + rank)).backward();
    optimizer.step();
  }
}

// Rounding alone: torch multiplies by 1 - lr decay apart, and takes square roots of another
// quotient: a unit in the last place of parameters of size 1 in each step, in any direction.
constexpr double rounding = 2e-6;

/// f(onebit::c10d, rank) on n ranks over Gloo; what each returned.
template <class F>
auto over_gloo(int n, const F& f, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  return on_ranks(n, [&](onebit::threads self) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    const auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, self.rank(), n, options);
    if (n != 3) return f(onebit::c10d(group, store));
    using whole_type = c10d::ProcessGroup;  // as a trainer may have it
    const auto whole = c10::make_intrusive<whole_type>(store, self.rank(), n);
    whole->setBackend(c10::DeviceType::CPU, whole_type::GLOO, group);
    return f(onebit::c10d(whole));
  });
}

}  // namespace

TEST_CASE("dense steps are torch's AdamW, on any number of ranks, tied weights and all") {
  for (const int n_ranks : {1, 3}) {
    const tensors expected = adamw_of_means(n_ranks, 100, 0);
    const auto found = on_ranks(n_ranks, [&](onebit::threads comm) {
      net m;
      torch_optimizer optimizer(m->parameters(), AdamWOptions(1e-2).weight_decay(0.1), comm, adam);
      train(m, optimizer, comm.rank(), 0, 100);
      return values(m);
    });
    for (const tensors& x : found) CHECK(farthest(x, expected) < rounding);
  }
}

TEST_CASE("max_grad_norm is clip_grad_norm_ of the mean gradient") {
  const tensors expected = adamw_of_means(2, 100, 0.05);
  CHECK(farthest(expected, adamw_of_means(2, 100, 0)) > 1e-3);
  const auto clipped = [](const std::vector<onebit::param_group<float>>& g, onebit::threads comm) {
    onebit::adam_options options;
    options.max_grad_norm = 0.05;
    return onebit::adam(g, comm, options);
  };
  const auto found = on_ranks(2, [&](onebit::threads comm) {
    net m;
    torch_optimizer optimizer(m->parameters(), AdamWOptions(1e-2).weight_decay(0.1), comm, clipped);
    train(m, optimizer, comm.rank(), 0, 100);
    CHECK_FALSE(m->first->weight.grad().defined());  // it was scratch
    return values(m);
  });
  // the factor 0.05 / norm is rounded otherwise, in each step
  for (const tensors& x : found) CHECK(farthest(x, expected) < 5 * rounding);
}

TEST_CASE("groups, schedules: rates and decays as torch's") {
  net a, b;
  const auto groups = [](net& m) {
    std::vector<OptimizerParamGroup> g;
    g.emplace_back(tensors{m->first->weight, m->last->weight},
                   std::make_unique<AdamWOptions>(AdamWOptions(1e-2).weight_decay(0.2)));
    g.emplace_back(tensors{m->first->bias, m->last->bias},
                   std::make_unique<AdamWOptions>(AdamWOptions(3e-2).betas({0.8, 0.99})));
    return g;
  };
  torch::optim::AdamW adamw(groups(a), AdamWOptions());
  onebit::run_threads(1, [&](onebit::threads comm) {
    torch_optimizer ours(groups(b), AdamWOptions(), comm, adam, {.order = b->parameters()});
    torch::optim::StepLR of_adamw(adamw, 7, 0.5), of_ours(ours, 7, 0.5);
    for (int step = 0; step < 40; ++step) {
      train(a, adamw, 0, step, step + 1);
      train(b, ours, 0, step, step + 1);
      of_adamw.step();
      of_ours.step();
      if (step == 20) {
        for (torch::optim::Optimizer* o : {static_cast<torch::optim::Optimizer*>(&adamw),
                                           static_cast<torch::optim::Optimizer*>(&ours)}) {
          static_cast<AdamWOptions&>(o->param_groups()[0].options()).weight_decay(0);
          o->param_groups()[1].options().set_lr(0);  // a warm-up may start so
        }
      }
    }
    CHECK(farthest(values(a), values(b)) < rounding);
  });
}

TEST_CASE("every shape of gradient and of parameter is torch's AdamW") {
  // name, the parameter, its gradient in step s; undefined: none
  struct kind {
    std::string name;
    std::function<at::Tensor()> make;
    std::function<at::Tensor(int)> gradient;
  };
  const auto plain = [] { return 0.3 * random({5, 7}, 1); };
  const auto g = [](int s) { return random({5, 7}, static_cast<std::uint64_t>(s + 10)); };
  const std::vector<kind> kinds = {
      {"in place", plain, g},
      {"strided", plain, [&](int s) { return g(s).t().contiguous().t(); }},
      {"expanded", plain,
       [](int s) {
         return random({1, 7}, static_cast<std::uint64_t>(s)).expand({5, 7});
       }},
      {"sparse", plain, [&](int s) { return g(s).to_sparse(); }},
      {"now and then none", plain, [&](int s) { return s % 3 == 1 ? g(s) : at::Tensor(); }},
      {"never any", plain, [](int) { return at::Tensor(); }},
      {"a transposed parameter",
       [] {
         return (0.3 * random({7, 5}, 1)).t();
       },
       g},
      {"a transposed parameter's own strides",
       [] {
         return (0.3 * random({7, 5}, 1)).t();
       },
       [&](int s) { return g(s).t().contiguous().t(); }},
      {"a parameter with gaps",
       [] {
         return (0.3 * random({5, 9}, 1)).narrow(1, 1, 7);
       },
       g},
      {"a number", [] { return 0.3 * random({}, 1); },
       [](int s) { return random({}, static_cast<std::uint64_t>(s)); }},
      {"nothing",
       [] {
         return torch::empty({0, 3});
       },
       [](int) {
         return torch::empty({0, 3});
       }}};
  const auto compare = [&](onebit::threads comm, const auto& make, bool consumes) {
    tensors a, b;
    for (const kind& k : kinds) {
      a.push_back(k.make().requires_grad_());
      b.push_back(k.make().requires_grad_());
    }
    torch::optim::AdamW adamw(a, AdamWOptions(1e-2));
    torch_optimizer ours(b, AdamWOptions(1e-2), comm, make);
    for (int step = 0; step < 60; ++step) {
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        at::Tensor gradient = kinds[i].gradient(step);
        a[i].mutable_grad() = gradient.is_sparse() ? gradient.to_dense() : gradient;
        b[i].mutable_grad() = gradient;
      }
      adamw.step();
      ours.step();
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        const at::Tensor& left = b[i].grad();
        if (consumes) {  // it was scratch
          CHECK_MESSAGE(!left.defined(), kinds[i].name);
        } else if (left.defined() && !left.is_sparse()) {  // it was only read
          CHECK_MESSAGE(torch::equal(a[i].grad(), left), kinds[i].name);
        }
      }
    }
    for (std::size_t i = 0; i + 1 < kinds.size(); ++i) {
      CHECK_MESSAGE(farthest({a[i]}, {b[i]}) < rounding, kinds[i].name);
    }
  };
  onebit::run_threads(1, [&](onebit::threads comm) {
    compare(comm, adam, false);
    compare(comm, adam_of_floats, true);
  });
}

TEST_CASE(
    "parameters of 2 bytes beside floats: steps act on floats, and gradients stay as they are") {
  onebit::run_threads(1, [&](onebit::threads comm) {
    const at::Tensor half = random({50}, 1).to(at::kBFloat16).requires_grad_();
    const at::Tensor fp16 = random({50}, 2).to(at::kHalf).requires_grad_();
    const at::Tensor gain = random({50}, 3).requires_grad_();
    tensors reference;
    for (const at::Tensor& x : {half, fp16, gain}) {
      reference.push_back(x.detach().to(at::kFloat).clone().requires_grad_());
    }
    torch::optim::AdamW adamw(reference, AdamWOptions(1e-3));
    const tensors ours{half, fp16, gain};
    torch_optimizer optimizer(ours, AdamWOptions(1e-3), comm, adam);
    for (int step = 0; step < 50; ++step) {
      for (std::size_t i = 0; i < 3; ++i) {
        const at::Tensor g = random({50}, static_cast<std::uint64_t>(10 * step) + i);
        ours[i].mutable_grad() = g.to(ours[i].scalar_type());
        reference[i].mutable_grad() = ours[i].grad().to(at::kFloat);
      }
      adamw.step();
      optimizer.step();
      if (step == 30) {  // what the trainer writes wins over the floats
        const torch::NoGradGuard no_grad;
        half.narrow(0, 0, 3).fill_(2);
        reference[0].narrow(0, 0, 3).fill_(2);
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      // two floats that differ by rounding may round to neighbours, in rare places
      const auto other = ours[i].ne(reference[i].to(ours[i].scalar_type())).sum().item<int>();
      if (ours[i].element_size() == 2) CHECK(other <= 1);
      CHECK(farthest({ours[i]}, {reference[i]}) < 0.02);
    }
  });
}

TEST_CASE("saved and loaded, training goes on bit for bit") {
  const auto finals = on_ranks(2, [](onebit::threads comm) {
    const auto make = [] {
      net m;
      m->to(at::kBFloat16);  // floats beside them are a part of what is saved
      return m;
    };
    const auto build = [&](net& m) {
      return std::make_unique<torch_optimizer>(m->parameters(), AdamWOptions(1e-2), comm,
                                               one_bit_adam);
    };
    const auto trained = [&](bool stops) {
      net m = make();
      auto optimizer = build(m);
      for (int step = 0; step < 20; ++step) {
        train(m, *optimizer, comm.rank(), step, step + 1);
        auto& rate = optimizer->param_groups()[0].options();
        rate.set_lr(0.95 * rate.get_lr());
        if (!stops || step != 9) continue;
        std::stringstream model, state;
        torch::save(m, model);
        torch::save(*optimizer, state);
        m = make();
        optimizer = build(m);
        train(m, *optimizer, comm.rank(), 50, 51);  // to be forgotten
        torch::load(m, model);                      // moves the parameters
        torch::load(*optimizer, state);
      }
      return values(m);
    };
    return std::vector<tensors>{trained(false), trained(true)};
  });
  for (const auto& x : finals) {
    CHECK(same(x[0], x[1]));
    CHECK(same(x[0], finals[0][0]));
  }
}

TEST_CASE("a load that cannot be is refused") {
  const auto said = on_ranks(2, [](onebit::threads comm) {
    net m;
    torch_optimizer optimizer(m->parameters(), AdamWOptions(1e-2), comm, adam);
    train(m, optimizer, comm.rank(), 0, 3);
    std::stringstream state, other;
    torch::save(optimizer, state);
    torch::save(m, other);
    train(m, optimizer, comm.rank(), 3, 4);
    const tensors before = values(m);
    std::string text = thrown<onebit::checkpoint_error>([&] { torch::load(optimizer, state); });
    if (text.find("parameters") == std::string::npos) text += " (parameters of another step)";
    text += thrown<onebit::checkpoint_error>([&] { torch::load(optimizer, other); });
    train(m, optimizer, comm.rank(), 4, 5);
    return text;
  });
  for (const std::string& text : said) {
    CHECK(text == contains{"parameter"});
    CHECK(text.find("thrown: ") == std::string::npos);
  }
}

TEST_CASE("all ranks start from rank 0's parameters") {
  const auto made = on_ranks(3, [](onebit::threads comm) {
    net m(static_cast<std::uint64_t>(comm.rank()) + 1);
    const at::Tensor gaps = random({9}, static_cast<std::uint64_t>(comm.rank())).slice(0, 0, 9, 2);
    tensors all = m->parameters();
    all.push_back(gaps.requires_grad_());
    torch_optimizer optimizer(all, AdamWOptions(1e-2), comm, adam);
    if (comm.rank() == 1) {  // and again, when it is asked for
      const torch::NoGradGuard no_grad;
      all[1].add_(1);
    }
    optimizer.broadcast_parameters();
    tensors now = values(m);
    now.push_back(gaps.detach().clone());
    return now;
  });
  CHECK(same(made[1], made[0]));
  CHECK(same(made[2], made[0]));
  const auto text = on_ranks(2, [](onebit::threads comm) {
    net m(static_cast<std::uint64_t>(comm.rank()) + 1);
    return thrown<onebit::rank_mismatch>([&] {
      const torch_optimizer optimizer(m->parameters(), AdamWOptions(1e-2), comm, adam,
                                      {.broadcast = false});
    });
  });
  for (const std::string& t : text) CHECK(t == contains{"other initial parameter values"});
  const auto sizes = on_ranks(2, [](onebit::threads comm) {
    const tensors one{random({comm.rank() + 3}, 1).requires_grad_()};
    return thrown<onebit::rank_mismatch>(
        [&] { const torch_optimizer optimizer(one, AdamWOptions(1e-2), comm, adam); });
  });
  for (const std::string& t : sizes) CHECK(t == contains{"of the same sizes"});
}

TEST_CASE("memory that moves changes no bit, and what cannot be followed is an error") {
  onebit::run_threads(1, [](onebit::threads comm) {
    net a, b;
    torch_optimizer still(a->parameters(), AdamWOptions(1e-2), comm, adam);
    torch_optimizer moved(b->parameters(), AdamWOptions(1e-2), comm, adam);
    std::vector<at::Tensor> old;  // that no memory is used again
    for (int step = 0; step < 10; ++step) {
      still.zero_grad(false);
      moved.zero_grad();
      a->loss(static_cast<std::uint64_t>(step)).backward();
      b->loss(static_cast<std::uint64_t>(step)).backward();
      for (at::Tensor& p : b->parameters()) {
        old.push_back(p.data());
        old.push_back(p.grad());
        const at::Tensor rows = p.data().clone();
        p.set_data(p.dim() == 2 && step % 3 == 0 ? rows.t().contiguous().t() : rows);
        p.mutable_grad() = p.grad().clone();
      }
      still.step();
      moved.step();
      for (at::Tensor& p : b->parameters()) p.set_data(p.data().contiguous());
    }
    CHECK(same(values(a), values(b)));

    b->to(at::kDouble);
    CHECK(thrown<onebit::invalid_input>([&] { train(b, moved, 0, 0, 1); }) ==
          contains{"build a new optimizer after to()"});
    b->to(at::kFloat);
    train(b, moved, 0, 0, 1);  // as it was
  });
}

TEST_CASE("a scaled loss trains to the same bits") {
  onebit::run_threads(1, [](onebit::threads comm) {
    net a, b;
    torch_optimizer plain(a->parameters(), AdamWOptions(1e-2), comm, adam);
    torch_optimizer scaled(b->parameters(), AdamWOptions(1e-2), comm, adam);
    scaled.set_loss_scale(1024);
    for (std::uint64_t step = 0; step < 10; ++step) {
      plain.zero_grad();
      scaled.zero_grad();
      a->loss(step).backward();
      (1024 * b->loss(step)).backward();
      plain.step();
      scaled.step();
      CHECK(scaled.last().step == step);
      CHECK_FALSE(scaled.last().skipped);
    }
    CHECK(same(values(a), values(b)));
    b->first->weight.mutable_grad().fill_(std::nanf(""));
    const tensors before = values(b);
    scaled.step();
    CHECK(scaled.last().skipped);
    CHECK(same(values(b), before));
  });
}

TEST_CASE("autograd hears of steps") {
  onebit::run_threads(1, [](onebit::threads comm) {
    const at::Tensor x = random({3}, 1).requires_grad_();
    torch_optimizer optimizer(tensors{x}, AdamWOptions(1e-2), comm, adam);
    const at::Tensor loss = (x * x).sum();
    x.mutable_grad() = torch::ones({3});
    optimizer.step();
    CHECK_THROWS_AS(loss.backward(), c10::Error);  // x is not what it was then
    const at::Tensor from_closure = optimizer.step([&] {
      optimizer.zero_grad();
      const at::Tensor again = (x * x).sum();
      again.backward();
      return again;
    });
    CHECK(from_closure.item<float>() > 0);
    optimizer.zero_grad();
    CHECK(thrown<onebit::invalid_input>([&] { optimizer.step(); }) ==
          contains{"without backward()"});
  });
}

TEST_CASE("parameters without a gradient: on all ranks, on some") {
  const auto run = [](onebit::undefined_gradient undefined, bool alike) {
    return on_ranks(2, [&](onebit::threads comm) {
      const tensors all{random({40}, 1).requires_grad_(), random({30}, 2).requires_grad_()};
      torch_optimizer optimizer(all, AdamWOptions(1e-2).weight_decay(0.1), comm, adam,
                                {.undefined = undefined});
      std::string text;
      for (std::uint64_t step = 0; step < 12 && text.empty(); ++step) {
        optimizer.zero_grad();
        all[0].mutable_grad() = random({40}, 10 * step);
        const bool mine = alike ? step % 2 == 0 : comm.rank() == 1;
        if (mine && step % 3 != 0) all[1].mutable_grad() = random({30}, 10 * step + 1);
        text = thrown<onebit::rank_mismatch>([&] { optimizer.step(); });
        if (text == "thrown: nothing") text.clear();
      }
      return std::pair(text, tensors{all[0].detach(), all[1].detach()});
    });
  };
  const auto reference = [](bool alike) {  // zeros of ranks that have none, where one has
    tensors all{random({40}, 1).requires_grad_(), random({30}, 2).requires_grad_()};
    torch::optim::AdamW adamw(all, AdamWOptions(1e-2).weight_decay(0.1));
    for (std::uint64_t step = 0; step < 12; ++step) {
      adamw.zero_grad();
      all[0].mutable_grad() = random({40}, 10 * step);
      if ((!alike || step % 2 == 0) && step % 3 != 0) {
        all[1].mutable_grad() = random({30}, 10 * step + 1) * (alike ? 1 : 0.5);
      }
      adamw.step();
    }
    return tensors{all[0].detach(), all[1].detach()};
  };
  using enum onebit::undefined_gradient;
  for (const auto& [text, x] : run(rests, true)) {
    CHECK(text.empty());
    CHECK(farthest(x, reference(true)) < rounding);
  }
  for (const auto& [text, x] : run(previous, false)) {
    CHECK(text.empty());
    CHECK(farthest(x, reference(false)) < rounding);
  }
  for (const auto& [text, x] : run(rests, false)) CHECK(text == contains{"rank"});
  for (const auto& [text, x] : run(zeros, false)) {
    CHECK(text.empty());
    CHECK(farthest(x, reference(false)) > 1e-3);  // decay and momentum go on
  }
}

TEST_CASE("groups may be added before the first step") {
  const auto finals = on_ranks(2, [](onebit::threads comm) {
    net m, whole;
    const auto first = m->first->parameters(), last = m->last->parameters();
    torch_optimizer optimizer(first, AdamWOptions(1e-2), comm, adam);
    optimizer.add_param_group(OptimizerParamGroup(tensors{last[0]}));
    static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(
        OptimizerParamGroup(tensors{last[1]}));  // noticed in the step
    torch_optimizer of_whole(whole->parameters(), AdamWOptions(1e-2), comm, adam);
    train(m, optimizer, comm.rank(), 0, 5);
    train(whole, of_whole, comm.rank(), 0, 5);
    return same(values(m), values(whole));
  });
  for (const bool equal : finals) CHECK(equal);
}

TEST_CASE("a group that a running job is given is an error, and the job goes on without it") {
  const auto finals = on_ranks(2, [](onebit::threads comm) {
    net m, undisturbed;
    torch_optimizer optimizer(m->parameters(), AdamWOptions(1e-2), comm, adam);
    torch_optimizer other(undisturbed->parameters(), AdamWOptions(1e-2), comm, adam);
    train(m, optimizer, comm.rank(), 0, 5);
    train(undisturbed, other, comm.rank(), 0, 10);
    const tensors late{random({40}, 9).requires_grad_()};
    CHECK(thrown<onebit::invalid_input>([&] {
            optimizer.add_param_group(OptimizerParamGroup(late));
          }) == contains{"other tensors after step 5; add groups before the first step"});
    CHECK(optimizer.param_groups().size() == 1);
    train(m, optimizer, comm.rank(), 5, 10);
    // The base class's takes the group unasked: the step tells, as often as it is called.
    static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(OptimizerParamGroup(late));
    for (int i = 0; i < 2; ++i) {
      CHECK(thrown<onebit::invalid_input>([&] { train(m, optimizer, comm.rank(), 10, 11); }) ==
            contains{"other tensors after step 10"});
    }
    return same(values(m), values(undisturbed));
  });
  for (const bool equal : finals) CHECK(equal);
}

TEST_CASE("what would train wrongly is an error") {
  onebit::run_threads(1, [](onebit::threads comm) {
    const auto building = [&](const tensors& params, const auto& options) {
      return thrown<onebit::invalid_input>(
          [&] { const torch_optimizer optimizer(params, options, comm, adam); });
    };
    const tensors fine{random({3}, 1).requires_grad_()};
    const AdamWOptions adamw(1e-2);
    CHECK(building({random({3}, 1).to(at::kDouble)}, adamw) == contains{"of Double; parameters"});
    CHECK(building({random({3, 1}, 1).expand({3, 4})}, adamw) == contains{"is expanded"});
    CHECK(building(fine, torch::optim::AdamOptions(1e-2).weight_decay(0.1)) ==
          contains{"give AdamWOptions"});
    CHECK(building(fine, torch::optim::AdamOptions(1e-2)) == "thrown: nothing");
    CHECK(building(fine, torch::optim::SGDOptions(1e-2)) == contains{"give torch::optim::AdamW"});
    CHECK(building(fine, AdamWOptions(1e-2).amsgrad(true)) == contains{"amsgrad"});
    CHECK(building(fine, AdamWOptions(-1)) == contains{"has lr -1"});
    CHECK(building({fine[0], fine[0].detach().view({3})}, adamw) == contains{"overlap in memory"});
    CHECK(thrown<onebit::invalid_input>([&] {
            const torch_optimizer optimizer(
                std::vector<OptimizerParamGroup>{OptimizerParamGroup(fine),
                                                 OptimizerParamGroup(fine)},
                adamw, comm, adam);
          }) == contains{"groups 0 and 1 have the same tensor"});
    CHECK(thrown<onebit::invalid_input>([&] {
            const torch_optimizer optimizer(fine, adamw, comm, adam, {.overlap = true});
          }) == contains{"give undefined_gradient::zeros"});
    CHECK(thrown<onebit::invalid_input>([&] {
            const torch_optimizer optimizer(fine, adamw, comm, adam, {.order = {random({3}, 1)}});
          }) == contains{"is not in torch_options::order"});
    CHECK(thrown<onebit::invalid_input>([&] {
            const torch_optimizer optimizer(tensors{fine[0].detach().to(at::kHalf)}, adamw, comm,
                                            adam_of_floats);
          }) == contains{"torch_groups"});
    CHECK(thrown<onebit::invalid_input>([&] {
            const torch_optimizer optimizer(
                fine, adamw, comm, adam_of_floats,
                {.undefined = onebit::undefined_gradient::zeros, .overlap = true});
          }) == contains{"torch_groups"});
  });
}

namespace {

constexpr onebit::torch_options overlapping{.undefined = onebit::undefined_gradient::zeros,
                                            .overlap = true};

/// 20 steps; some with two backward passes, some with gradients that stay where they are.
template <class T>
tensors trained(T comm, const onebit::torch_options& options) {
  net m;
  tensors params = m->parameters();
  params.push_back(random({100}, 5).requires_grad_());  // has no gradient
  params.push_back(random({100}, 5));                   // is frozen
  torch_optimizer optimizer(params, AdamWOptions(1e-2).weight_decay(0.1), comm, one_bit_adam,
                            options);
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad(step % 3 == 0);
    const auto seed = static_cast<std::uint64_t>(100 * step + comm.rank());
    if (step % 5 == 4) {
      optimizer.accumulate(true);
      (m->loss(seed + 50) / 2).backward();
      optimizer.accumulate(false);
    }
    m->loss(seed).backward();
    optimizer.step();
  }
  tensors all = values(m);
  for (const std::size_t t : {params.size() - 2, params.size() - 1}) {
    all.push_back(params[t].detach().clone());
  }
  return all;
}

}  // namespace

TEST_CASE("gradients that travel during the backward pass: the same bits") {
  onebit::torch_options at_once = overlapping;
  at_once.overlap = false;
  const auto expected = on_ranks(2, [&](auto comm) { return trained(comm, at_once); });
  CHECK(same(expected[0], expected[1]));
  CHECK(same(on_ranks(2, [&](auto comm) { return trained(comm, overlapping); })[1], expected[0]));
  CHECK(same(over_gloo(2, [&](auto comm) { return trained(comm, at_once); })[1], expected[0]));
  CHECK(same(over_gloo(2, [&](auto comm) { return trained(comm, overlapping); })[1], expected[0]));
}

TEST_CASE("gradients that change while they travel are errors") {
  onebit::run_threads(1, [](onebit::threads comm) {
    const auto attempt = [&](const auto& f) {
      net m;
      torch_optimizer optimizer(m->parameters(), AdamWOptions(1e-2), comm, one_bit_adam,
                                overlapping);
      train(m, optimizer, 0, 0, 3);
      m->loss(1).backward();  // no zero_grad: it adds
      return thrown<onebit::invalid_input>([&] { f(m, optimizer); });
    };
    CHECK(attempt([](net& m, auto&) { m->loss(2).backward(); }) == contains{"accumulate(true)"});
    CHECK(attempt([](net& m, auto& o) {
            torch::nn::utils::clip_grad_norm_(m->parameters(), 1e-3);
            o.step();
          }) == contains{"max_grad_norm"});
    CHECK(attempt([](net&, auto& o) {
            o.zero_grad();
            o.step();
          }) == contains{"was changed after backward()"});
    CHECK(attempt([](net&, auto& o) {
            o.param_groups()[0].options().set_lr(1);
            o.step();
          }) == contains{"begin() was told"});
    CHECK(attempt([](net&, auto& o) { o.step(); }) == "thrown: nothing");
  });
}

// -- the transport over c10d
// -----------------------------------------------------------------------

TEST_CASE("c10d carries what a transport must, on Gloo") {
  for (const int n : {1, 2, 3}) {
    const auto failures = over_gloo(n, [](onebit::c10d comm) {
      auto all = onebit_test::transport_failures(comm);
      for (const auto& f : onebit_test::request_failures(comm)) all.push_back(f);
      for (const auto& f : onebit_test::split_failures(comm)) all.push_back(f);
      if (comm.ranks_per_node() != comm.size()) all.push_back("ranks_per_node");
      if (thrown<onebit::invalid_input>([&] { (void)comm.split(-1, 0); }) !=
          contains{"must not be negative"}) {
        all.push_back("split: a negative color");
      }
      return all;
    });
    for (const auto& of_rank : failures) {
      for (const std::string& f : of_rank) FAIL_CHECK(f);
    }
  }
}

TEST_CASE("a duplicate of c10d conforms, and needs no common order with the transport") {
  const auto failures = over_gloo(2, [](onebit::c10d comm) {
    onebit::c10d other = comm.duplicate(), third = other.duplicate();
    auto all = onebit_test::transport_failures(other);
    for (const auto& f : onebit_test::split_failures(third)) all.push_back(f);
    std::vector<int> few(2), many(16);
    const std::vector<int> mine(8, 7 + comm.rank());
    const auto of_comm = [&] { return comm.start_all_gather(mine.data(), few.data(), 4); };
    const auto of_other = [&] { return other.start_all_gather(mine.data(), many.data(), 32); };
    if (comm.rank() == 0) {
      auto a = of_comm(), b = of_other();
      a.wait();
      b.wait();
    } else {
      auto b = of_other(), a = of_comm();
      b.wait();
      a.wait();
    }
    if (few != std::vector<int>{7, 8} || many[7] != 7 || many[8] != 8) all.push_back("gathers");
    return all;
  });
  for (const auto& of_rank : failures) {
    for (const std::string& f : of_rank) FAIL_CHECK(f);
  }
}

TEST_CASE("two optimizers over one c10d: announced in different orders on the ranks; over() too") {
  const auto digests = [](const auto& transport, bool swap) {
    const auto stores =
        std::pair(c10::make_intrusive<c10d::HashStore>(), c10::make_intrusive<c10d::HashStore>());
    return on_ranks(2, [&](onebit::threads self) {
      const auto gloo = [&](const auto& store) {
        auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
        return c10::make_intrusive<c10d::ProcessGroupGloo>(store, self.rank(), 2, options);
      };
      const onebit::c10d comm = transport(gloo(stores.first), gloo(stores.second), stores.first);
      onebit_test::training<> data_a, data_b({900, 3100, 40});
      const auto make = [&](auto& data) {
        return onebit::one_bit_adam(data.groups(), comm, onebit_test::frozen_after(2),
                                    onebit::gather_scatter{onebit::sign<>{}, 1000});
      };
      auto a = make(data_a), b = make(data_b);
      const auto announce = [](auto& optimizer, const auto& data) {
        for (std::size_t t = data.params.size(); t-- > 0;) optimizer.ready(t);
      };
      for (int step = 0; step < 6; ++step) {
        data_a.compute_gradients(comm.rank(), a.steps());
        data_b.compute_gradients(comm.rank(), b.steps());
        if (step >= 2) {
          a.begin(0.01F);
          b.begin(0.01F);
          const bool swapped = swap && comm.rank() == 1;
          if (swapped) announce(b, data_b);
          announce(a, data_a);
          if (!swapped) announce(b, data_b);
        }
        CHECK_FALSE(a.step(0.01F).skipped);
        CHECK_FALSE(b.step(0.01F).skipped);
      }
      a.verify();
      b.verify();
      return std::pair(data_a.digest(), data_b.digest());
    });
  };
  const auto split = [](const auto& first, const auto&, const auto& store) {
    return onebit::c10d(first, store);
  };
  const auto over = [](const auto& first, const auto& second, const auto&) {
    return onebit::c10d::over(first, second);
  };
  const auto expected = digests(split, false);
  CHECK(digests(split, true) == expected);
  CHECK(digests(over, false) == expected);
}

TEST_CASE("a rank that does not come is an error of the others, which name themselves") {
  const auto texts = over_gloo(
      2,
      [](onebit::c10d comm) -> std::string {
        float x = 1;
        comm.all_reduce_sum(&x, 1);
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(4));
          return "";
        }
        const auto sum = [&] { comm.all_reduce_sum(&x, 1); };
        const std::string first = thrown<onebit::transport_error>(sum);
        return first == thrown<onebit::transport_error>(sum) ? first : "another error";
      },
      std::chrono::seconds(2));
  CHECK(texts[0] == contains{"c10d: allreduce failed"});
  CHECK(texts[0] == contains{"[rank 0/2]"});
}
