// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A job that is stopped, and resumes from its checkpoint with fewer ranks: least squares on four
// ranks, then on three. The guide quotes the lines between the markers.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/onebit.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr std::size_t n = 1000, n_rows = 20;
constexpr std::uint64_t n_steps = 400, steps_between_saves = 50;

/// Trains from the newest checkpoint up to step `end`. Returns the loss of rank 0.
float train(int n_ranks, std::uint64_t end, const std::filesystem::path& root) {
  float loss = 0;
  onebit::run_threads(n_ranks, [&](onebit::threads comm) {
    std::vector<float> x(n), grad(n);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, grad});
    onebit::one_bit_adam_options options;
    options.freeze.after = 60;
    auto optimizer = onebit::one_bit_adam(groups, comm, options);

    // [resume]
    const auto bytes = static_cast<std::streamsize>(n * sizeof(float));
    onebit::load_latest(optimizer, root, [&](std::istream& in) {  // nothing there: from the start
      in.read(reinterpret_cast<char*>(x.data()), bytes);
    });
    const auto save = [&] {
      onebit::save_all(optimizer, root, [&](std::ostream& out) {
        out.write(reinterpret_cast<const char*>(x.data()), bytes);
      });
    };
    // [/resume]
    if (comm.rank() == 0) {
      std::printf("%d ranks from step %d on\n", n_ranks, static_cast<int>(optimizer.steps()));
    }
    while (optimizer.steps() < end) {
      const auto step = optimizer.steps();
      std::mt19937 random(static_cast<unsigned>(step) * 64 + static_cast<unsigned>(comm.rank()));
      std::normal_distribution<float> normal;
      float sum = 0;
      grad.assign(n, 0);
      for (std::size_t row = 0; row < n_rows; ++row) {
        std::vector<float> a(n);
        float error = 0;
        for (std::size_t i = 0; i < n; ++i) error += (a[i] = normal(random)) * (x[i] - 1);
        for (std::size_t i = 0; i < n; ++i) grad[i] += error * a[i] / n_rows;
        sum += error * error / (n * n_rows);
      }
      (void)optimizer.step(step < 200 ? 0.1F : 0.01F);
      if (comm.rank() == 0) loss = sum;
      if (optimizer.steps() % steps_between_saves == 0) save();
    }
  });
  return loss;
}

}  // namespace

int main() {
  std::string root = (std::filesystem::temp_directory_path() / "onebit-resume-XXXXXX").string();
  if (mkdtemp(root.data()) == nullptr) return EXIT_FAILURE;
  const float before = train(4, 230, root);     // the job stops here
  const float after = train(3, n_steps, root);  // resumes the job
  std::printf("loss %.5f when it was stopped, %.5f at the end\n", before, after);
  std::filesystem::remove_all(root);
  return after < 0.01F ? EXIT_SUCCESS : EXIT_FAILURE;
}
