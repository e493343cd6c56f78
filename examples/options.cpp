// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Each optimizer with options that differ from the defaults, and the time line of a run with the
// defaults: what each of its 400 steps is, and how many bytes a rank sends in it. The pages of the
// optimizers (docs/) quote the lines between the markers, and the time lines that this prints.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

namespace {

constexpr int n_ranks = 4, n_steps = 400;

/// Model whose loss is |x - 1|^2 / 2; ranks see other noise in each step.
struct toy_model {
  std::vector<float> x, g;
  unsigned random;

  toy_model(std::size_t n, int rank) : x(n, 2.0F), g(n), random(static_cast<unsigned>(rank) + 1) {}
  std::vector<onebit::param_group<>> groups() {
    std::vector<onebit::param_group<>> all(1);
    all[0].tensors.push_back({x, g});
    return all;
  }
  void backward() {
    for (std::size_t i = 0; i < x.size(); ++i) {
      random = 1664525 * random + 1013904223;
      g[i] = x[i] - 1 + 0.25F * (static_cast<float>(random >> 16U) / 32768 - 1);
    }
  }
  [[nodiscard]] double distance() const {
    double sum = 0;
    for (const float value : x) sum += std::fabs(static_cast<double>(value) - 1);
    return sum / static_cast<double>(x.size());
  }
};

float rate(int step) { return step < 200 ? 0.01F : 0.002F; }

void one_bit_adam(onebit::threads comm, toy_model& model) {
  // [one_bit_adam]
  auto optimizer = onebit::one_bit_adam(
      model.groups(), comm,
      {.adam = {.beta2 = 0.99, .max_grad_norm = 100},  // the rest of Adam's options: defaults
       .freeze = {.after = 10},                        // ten dense steps, for five
       .refreshes = 8,                                 // v is averaged more often
       .warm_up_sum = onebit::dense_sum::in_bf16},     // dense steps send half of their bytes
      onebit::gather_scatter{onebit::sign<>{}, onebit::default_bucket_elements});  // in buckets
  for (int step = 0; step < 400; ++step) {
    model.backward();  // writes this rank's own gradient: do not average it
    (void)optimizer.step(rate(step));
  }
  // [/one_bit_adam]
}

void one_bit_lamb(onebit::threads comm, toy_model& model) {
  // [one_bit_lamb]
  auto optimizer = onebit::one_bit_lamb(
      model.groups(), comm,
      {.lamb = {.beta2 = 0.99, .min_coeff = 0.01, .max_coeff = 0.3},  // as in the runs of BERT
       .freeze = {.after = 10},                                       // ten dense steps, for five
       .refreshes = 16});  // norms are averaged more often
  for (int step = 0; step < 400; ++step) {
    model.backward();  // writes this rank's own gradient: do not average it
    (void)optimizer.step(10 * rate(step));
  }
  // [/one_bit_lamb]
}

void zero_one_adam(onebit::threads comm, toy_model& model) {
  // [zero_one_adam]
  auto optimizer = onebit::zero_one_adam(
      model.groups(), comm,
      {.adam = {.beta2 = 0.99},
       .schedule = {.warmup_steps = 40,    // all of these exchange: the warm-up of the rate
                    .max_interval = 4,     // later exchanges: every 2nd step, then every 4th
                    .also_every = 100}});  // an exchange in the steps 99, 199, ...: evaluate there
  for (int step = 0; step < 400; ++step) {
    model.backward();  // writes this rank's own gradient: do not average it
    (void)optimizer.step(rate(step));
  }
  // [/zero_one_adam]
}

void adam(onebit::threads comm, toy_model& model) {
  // [adam]
  auto optimizer = onebit::adam(model.groups(), comm, {.beta2 = 0.99, .max_grad_norm = 100},
                                onebit::dense_sum::in_bf16);  // averages send half of their bytes
  for (int step = 0; step < 400; ++step) {
    model.backward();  // writes this rank's own gradient: do not average it
    (void)optimizer.step(rate(step));
  }
  // [/adam]
}

void lamb(onebit::threads comm, toy_model& model) {
  // [lamb]
  auto optimizer = onebit::lamb(model.groups(), comm, {.min_coeff = 0.01, .max_coeff = 0.3});
  // [/lamb]
  for (int step = 0; step < n_steps; ++step) {
    model.backward();
    (void)optimizer.step(10 * rate(step));
  }
}

/// What a step was, as a letter: see `kinds`.
char letter(const onebit::report& r) {
  if (r.phase == onebit::phase::dense) return 'D';
  if (r.phase == onebit::phase::local) return r.refreshed ? 'r' : '.';
  return r.refreshed ? 'R' : 'c';
}
constexpr struct {
  char letter;
  const char* meaning;
} kinds[] = {{'D', "dense"},
             {'c', "compressed"},
             {'R', "compressed, and a refresh of v"},
             {'.', "local"},
             {'r', "local, and a refresh of v"}};

/// Trains with an optimizer's defaults, and prints what its steps were and what they sent.
template <class Make>
void print_time_line(const char* name, Make make) {
  constexpr std::size_t n = 20000;
  onebit::run_threads(n_ranks, [&](onebit::threads comm) {
    toy_model model(n, comm.rank());
    auto optimizer = make(model.groups(), comm);
    std::string letters, refreshes;
    std::vector<std::uint64_t> bytes, collectives;
    for (int step = 0; step < n_steps; ++step) {
      model.backward();
      const onebit::report done = optimizer.step(rate(step));
      letters += letter(done);
      bytes.push_back(done.bytes_sent);
      collectives.push_back(done.collectives);
      if (done.refreshed) refreshes += " " + std::to_string(step);
    }
    if (comm.rank() != 0) return;
    std::printf("\n%s, defaults, %d ranks, %zu parameters, %d steps\n", name, n_ranks, n, n_steps);
    for (std::size_t step = 0; step < letters.size(); ++step) {
      if (step % 16 == 0) std::printf("%s%5zu to %3zu ", step == 0 ? "" : "\n", step, step + 15);
      std::printf(" %c", letters[step]);
    }
    std::printf("\n refreshes:%s\n", refreshes.c_str());
    std::uint64_t sum = 0;
    for (const auto& kind : kinds) {
      std::uint64_t steps = 0, of_kind = 0, calls = 0;
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (letters[i] != kind.letter) continue;
        ++steps;
        of_kind += bytes[i];
        calls = collectives[i];
      }
      if (steps == 0) continue;
      std::printf(" %c  %3d steps %9.0f bytes, %d collectives each  %s\n", kind.letter,
                  static_cast<int>(steps),
                  static_cast<double>(of_kind) / static_cast<double>(steps),
                  static_cast<int>(calls), kind.meaning);
      sum += of_kind;
    }
    const double dense = n_steps * 8.0 * n * (n_ranks - 1) / n_ranks;
    std::printf(" %.0f bytes in all, %.1f%% of a dense fp32 run's\n", static_cast<double>(sum),
                100 * static_cast<double>(sum) / dense);
  });
}

/// Trains with the options that a page shows. Returns the exit code of an example.
template <class Train>
int learns(const char* name, Train train) {
  double distance = 0;
  onebit::run_threads(n_ranks, [&](onebit::threads comm) {
    toy_model model(5000, comm.rank());
    train(comm, model);
    if (comm.rank() == 0) distance = model.distance();
  });
  std::printf("%-14s ends %.4f from the minimum\n", name, distance);
  return distance < 0.02 ? 0 : 1;
}

}  // namespace

int main() {
  const int wrong = learns("adam", adam) + learns("lamb", lamb) +
                    learns("one_bit_adam", one_bit_adam) + learns("one_bit_lamb", one_bit_lamb) +
                    learns("zero_one_adam", zero_one_adam);
  print_time_line("adam", [](const auto& groups, auto comm) { return onebit::adam(groups, comm); });
  print_time_line("one_bit_adam",
                  [](const auto& groups, auto comm) { return onebit::one_bit_adam(groups, comm); });
  print_time_line("one_bit_lamb",
                  [](const auto& groups, auto comm) { return onebit::one_bit_lamb(groups, comm); });
  print_time_line("zero_one_adam", [](const auto& groups, auto comm) {
    return onebit::zero_one_adam(groups, comm);
  });
  return wrong == 0 ? 0 : 1;
}
