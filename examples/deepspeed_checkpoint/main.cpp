// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trains on where a DeepSpeed job with a 1-bit optimizer stopped, from what export.py wrote.
// docs/deepspeed.md quotes the lines between the markers. The model is that of
// tests/deepspeed/train.py: two linear layers on one input.
//
//     deepspeed_checkpoint FOLDER TYPE RANKS BATCHES OUT [NAME]
//
// FOLDER: of export.py. TYPE: of the parameters in training, fp32, bf16 or fp16. BATCHES: raw
// floats, a row of inputs and targets for each sample, rank and step. OUT: file for the parameters,
// raw floats. NAME: of the optimizer, in place of DeepSpeed's.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <onebit/extras/by_name.hpp>
#include <onebit/transport/threads.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

/// What export.py wrote.
struct exported {
  struct tensor {
    std::string name;
    std::size_t first, size;  ///< its elements in the three vectors
  };
  struct group {
    float weight_decay;
    std::vector<tensor> tensors;
  };
  std::uint64_t steps = 0;  ///< squares that exp_avg_sq averages
  std::vector<group> groups;
  std::vector<float> parameters, exp_avg, exp_avg_sq;
  std::string optimizer;
  onebit::option_map options;
};

std::vector<float> floats_in(const std::filesystem::path& file) {
  std::vector<float> values(std::filesystem::file_size(file) / sizeof(float));
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
  if (!in) throw std::runtime_error("cannot read " + file.string());
  return values;
}

exported read(const std::filesystem::path& folder) {
  exported all;
  all.parameters = floats_in(folder / "parameters.f32");
  all.exp_avg = floats_in(folder / "exp_avg.f32");
  all.exp_avg_sq = floats_in(folder / "exp_avg_sq.f32");
  std::ifstream in(folder / "tensors.txt");
  std::size_t n = 0;
  for (std::string word; in >> word;) {
    if (word == "steps") in >> all.steps;
    if (word == "group") in >> all.groups.emplace_back().weight_decay;
    if (word == "tensor") {
      exported::tensor t{{}, n, 0};
      std::getline(in >> t.size >> std::ws, t.name);
      n += t.size;
      all.groups.at(all.groups.size() - 1).tensors.push_back(t);
    }
  }
  if (n == 0 || n != all.parameters.size() || n != all.exp_avg.size() ||
      n != all.exp_avg_sq.size()) {
    throw std::runtime_error(folder.string() + ": tensors.txt and the floats differ in size");
  }
  const auto config = nlohmann::json::parse(std::ifstream(folder / "optimizer.json"));
  all.optimizer = config.at("type");
  for (const auto& [key, value] : config.at("params").items()) {
    all.options[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return all;
}

/// Two linear layers on one input, with parameters of type P: mean squared error, halved.
template <class P>
class model {
 public:
  static constexpr std::size_t rows = 8, inputs = 40, outputs = 24 + 9;

  explicit model(const exported& from) : from_(from), masters_(from.parameters) {
    for (const float x : masters_) params_.push_back(onebit::from_float<P>(x));
    grads_.resize(params_.size());
    for (const auto& g : from.groups) {
      for (const auto& t : g.tensors) place_[t.name] = t;
    }
  }

  std::vector<onebit::param_group<P>> groups() {
    std::vector<onebit::param_group<P>> groups;
    for (const auto& g : from_.groups) {
      auto& group = groups.emplace_back();
      group.weight_decay = g.weight_decay;
      for (const auto& [name, first, size] : g.tensors) {
        onebit::tensor<P> t{std::span(params_).subspan(first, size),
                            std::span(grads_).subspan(first, size)};
        if constexpr (sizeof(P) == 2) t.master = std::span(masters_).subspan(first, size);
        group.tensors.push_back(t);
      }
    }
    return groups;
  }

  /// Computes the gradients of one rank's batch: rows of inputs and targets.
  void differentiate(const float* batch) {
    std::vector<float> sums(grads_.size());
    for (std::size_t row = 0; row < rows; ++row, batch += inputs + outputs) {
      layer("first", 0, 24, batch, sums);
      layer("second", 24, outputs, batch, sums);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) grads_[i] = onebit::from_float<P>(sums[i] / rows);
  }
  /// Returns the parameters in the order of the module.
  std::vector<float> values() const {
    std::vector<float> all;
    for (const char* name : {"first.weight", "first.bias", "second.weight", "second.bias"}) {
      const exported::tensor& t = place_.at(name);
      for (std::size_t i = 0; i < t.size; ++i) {
        all.push_back(onebit::to_float(params_[t.first + i]));
      }
    }
    return all;
  }

 private:
  void layer(const std::string& name, std::size_t begin, std::size_t end, const float* x,
             std::vector<float>& sums) const {
    const std::size_t weight = place_.at(name + ".weight").first;
    const std::size_t bias = place_.at(name + ".bias").first;
    const auto rounded = [&](std::size_t i) {
      return onebit::to_float(onebit::from_float<P>(x[i]));
    };
    for (std::size_t o = 0; o < end - begin; ++o) {
      const std::size_t w = weight + o * inputs;
      float y = onebit::to_float(params_[bias + o]);
      for (std::size_t i = 0; i < inputs; ++i) y += onebit::to_float(params_[w + i]) * rounded(i);
      const float wrong = onebit::to_float(onebit::from_float<P>(y)) - x[inputs + begin + o];
      for (std::size_t i = 0; i < inputs; ++i) sums[w + i] += wrong * rounded(i);
      sums[bias + o] += wrong;
    }
  }

  const exported& from_;
  std::vector<P> params_, grads_;
  std::vector<float> masters_;
  std::map<std::string, exported::tensor> place_;
};

/// Trains on all batches. Returns rank 0's parameters.
template <class P>
std::vector<float> train_on(const exported& from, int n_ranks, const std::vector<float>& batches) {
  std::vector<float> result;
  onebit::run_threads(n_ranks, [&](onebit::threads comm) {
    model<P> m(from);
    // [start]
    auto optimizer = onebit::make_optimizer(from.optimizer, from.options, m.groups(), comm);
    std::vector<onebit::given_moments> moments;
    for (const auto& g : from.groups) {
      for (const auto& [name, first, size] : g.tensors) {
        moments.push_back({std::span(from.exp_avg).subspan(first, size),
                           std::span(from.exp_avg_sq).subspan(first, size)});
      }
    }
    optimizer.start_from(moments, from.steps);
    // [/start]
    const auto lr = static_cast<float>(onebit::read_options(from.optimizer, from.options).lr);
    const std::size_t of_a_rank = m.rows * (m.inputs + m.outputs);
    const std::size_t of_a_step = of_a_rank * static_cast<std::size_t>(n_ranks);
    std::size_t n_dense = 0;
    for (std::size_t at = 0; at + of_a_step <= batches.size(); at += of_a_step) {
      m.differentiate(batches.data() + at + of_a_rank * static_cast<std::size_t>(comm.rank()));
      n_dense += optimizer.step(lr).phase == onebit::phase::dense ? 1U : 0U;
    }
    optimizer.verify();
    if (comm.rank() != 0) return;
    std::printf("%d steps on %d ranks, %zu dense: %s\n", static_cast<int>(optimizer.steps()),
                n_ranks, n_dense, from.optimizer.c_str());
    result = m.values();
  });
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: deepspeed_checkpoint FOLDER TYPE RANKS BATCHES OUT [NAME]\n");
    return 2;
  }
  try {
    exported from = read(argv[1]);
    if (argc > 6) from.optimizer = argv[6];
    const std::string type = argv[2];
    const int n_ranks = std::stoi(argv[3]);
    const std::vector<float> batches = floats_in(argv[4]);
    if (type != "fp32" && type != "bf16" && type != "fp16") {
      throw std::invalid_argument("the type is " + type + ", must be fp32, bf16 or fp16");
    }
    const std::vector<float> values = type == "fp32" ? train_on<float>(from, n_ranks, batches)
                                      : type == "bf16"
                                          ? train_on<onebit::bf16>(from, n_ranks, batches)
                                          : train_on<onebit::fp16>(from, n_ranks, batches);
    std::ofstream out(argv[5], std::ios::binary);
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
    if (!out.flush()) throw std::runtime_error(std::string("cannot write ") + argv[5]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "deepspeed_checkpoint: %s\n", error.what());
    return 1;
  }
}
