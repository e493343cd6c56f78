// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Recorded cases: finding and loading them, making their inputs. Comparing is in
// golden_compare.hpp. What the files hold is written down in tests/golden/README.md.

#ifndef ONEBIT_TESTS_SUPPORT_GOLDEN_HPP
#define ONEBIT_TESTS_SUPPORT_GOLDEN_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "npy.hpp"

namespace onebit_test::golden {

// --- inputs -------------------------------------------------------------------------------

inline constexpr std::uint64_t golden_gamma = 0x9E3779B97F4A7C15u;

constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Stream s, tensor k, rank r, update t (from 1), element i.
constexpr std::uint64_t hash(std::uint64_t seed, std::uint64_t s, std::uint64_t k, std::uint64_t r,
                             std::uint64_t t, std::uint64_t i) {
  std::uint64_t h = mix(seed + golden_gamma);
  for (const std::uint64_t x : {s, k, r, t}) h = mix(h + golden_gamma * (x + 1));
  return mix(h + golden_gamma * (i + 1));
}

/// Uniform in [-1, 1), a multiple of 2^-23, hence exact.
constexpr float u(std::uint64_t seed, std::uint64_t s, std::uint64_t k, std::uint64_t r,
                  std::uint64_t t, std::uint64_t i) {
  const auto top = static_cast<std::int64_t>(hash(seed, s, k, r, t, i) >> 40);
  return static_cast<float>(top - (1 << 23)) * (1.0f / (1 << 23));
}

// --- cases --------------------------------------------------------------------------------

struct tensor_info {
  std::size_t size = 0;
  float param_scale = 0, target_scale = 0, noise_scale = 0, pull = 0;
  std::size_t mask_zero_from = 0;  // == size without a mask
  bool non_freeze = false;

  bool masked() const { return mask_zero_from < size; }
};

/// One recorded case. Arrays are read when asked for, and checked against the list in case.json.
/// Every error is a std::runtime_error (or one of nlohmann::json) that names the case.
class golden_case {
 public:
  explicit golden_case(const std::filesystem::path& directory) : directory_(directory) {
    const std::filesystem::path file = directory / "case.json";
    std::ifstream in(file);
    if (!in) throw std::runtime_error("golden: " + file.string() + ": cannot be opened");
    try {
      json_ = nlohmann::json::parse(in);
      name_ = json_.at("case").get<std::string>();
      optimizer_ = json_.at("optimizer").get<std::string>();
      world_size_ = json_.at("world_size").get<std::size_t>();
      if (json_.contains("tensors")) read_tensors();
    } catch (const std::exception& e) {
      throw std::runtime_error("golden: " + file.string() + ": " + e.what());
    }
    if (world_size_ == 0) throw std::runtime_error("golden: " + name_ + ": no ranks");
  }

  const std::string& name() const { return name_; }
  const std::string& optimizer() const { return optimizer_; }
  std::size_t world_size() const { return world_size_; }
  const nlohmann::json& json() const { return json_; }
  const std::vector<tensor_info>& tensors() const { return tensors_; }

  std::size_t updates() const { return json_.at("updates").get<std::size_t>(); }
  std::vector<std::size_t> recorded_updates() const {
    return json_.at("recorded_updates").get<std::vector<std::size_t>>();
  }
  std::string phases() const { return json_.at("phases").get<std::string>(); }
  bool has_masks() const {
    return std::any_of(tensors_.begin(), tensors_.end(), [](auto& t) { return t.masked(); });
  }

  /// Whether chunks of whole words of 32 elements, without padding, are the recorded chunks. What
  /// is compressed as one has to divide evenly: LAMB all tensors, the others each tensor.
  bool has_word_chunks() const {
    const auto divides = [&](std::size_t n) {
      return world_size_ == 1 || n % (32 * world_size_) == 0;
    };
    if (optimizer_ == "compressed_allreduce") return divides(json_.at("size").get<std::size_t>());
    std::size_t n_all = 0;
    bool each = true, aligned = true;
    for (const tensor_info& t : tensors_) {
      n_all += t.size;
      each = each && divides(t.size);
      aligned = aligned && t.size % 32 == 0;
    }
    return optimizer_ == "onebit_lamb" ? aligned && divides(n_all) : each;
  }

  /// [t, k] of every compressed call; k = -1 stands for all tensors together.
  std::vector<std::pair<std::int64_t, std::int64_t>> compressed_calls() const {
    if (!json_.contains("compressed_calls")) return {};
    return json_.at("compressed_calls").get<std::vector<std::pair<std::int64_t, std::int64_t>>>();
  }

  template <class T = double>
  T hyper(const char* key) const {
    return json_.at("hyper").at(key).get<T>();
  }
  double beta1() const { return json_.at("hyper").at("betas").at(0).get<double>(); }
  double beta2() const { return json_.at("hyper").at("betas").at(1).get<double>(); }

  /// The learning rate of update t, counted from 1.
  double lr(std::size_t t) const {
    if (!json_.contains("lr_per_update")) return hyper("lr");
    return json_.at("lr_per_update").at(t - 1).get<double>();
  }

  // -- arrays; names are those of the files, without .npy

  std::vector<std::string> array_names() const {
    std::vector<std::string> names;
    for (const auto& [file, entry] : json_.at("files").items()) {
      names.push_back(file.substr(0, file.rfind(".npy")));
    }
    return names;
  }
  bool has_array(const std::string& array) const {
    return json_.at("files").contains(array + ".npy");
  }
  std::string array_type(const std::string& array) const {
    return entry(array).at("dtype").get<std::string>();
  }
  std::vector<std::size_t> shape(const std::string& array) const {
    return entry(array).at("shape").get<std::vector<std::size_t>>();
  }

  /// An array in its own type, shape and CRC-32 verified.
  template <class T>
  std::vector<T> array(const std::string& array) const {
    npy_array<T> read = read_npy<T>(directory_ / (array + ".npy"));
    if (read.shape != shape(array)) {
      throw std::runtime_error("golden: " + name_ + "/" + array + ".npy: shape " +
                               shape_text(read.shape) + ", case.json says " +
                               shape_text(shape(array)));
    }
    const auto expected = entry(array).at("crc32").get<std::uint32_t>();
    if (const std::uint32_t found = crc32(read.values); found != expected) {
      throw std::runtime_error("golden: " + name_ + "/" + array + ".npy: CRC-32 " +
                               std::to_string(found) + ", case.json says " +
                               std::to_string(expected));
    }
    return std::move(read.values);
  }

  /// The same, whatever its type, as doubles.
  std::vector<double> values(const std::string& name) const {
    const std::string type = array_type(name);
    if (type == "float64") return array<double>(name);
    if (type == "float32") return widened(array<float>(name));
    if (type == "uint8") return widened(array<std::uint8_t>(name));
    throw std::runtime_error("golden: " + name_ + "/" + name + ".npy: unknown type " + type);
  }

  /// Reads every array, and sees that the directory has no array that case.json does not list.
  void verify_files() const {
    std::set<std::string> listed;
    for (const std::string& name : array_names()) {
      values(name);
      listed.insert(name + ".npy");
    }
    for (const auto& file : std::filesystem::directory_iterator(directory_)) {
      const std::string name = file.path().filename().string();
      if (name != "case.json" && !listed.contains(name)) {
        throw std::runtime_error("golden: " + name_ + "/" + name + ": not listed in case.json");
      }
    }
  }

  // -- inputs of the optimizer cases

  float initial_param(std::size_t k, std::size_t i) const {
    return tensors_[k].param_scale * u(seed_, 0, k, 0, 0, i);
  }
  float target(std::size_t k, std::size_t i) const {
    return tensors_[k].target_scale * u(seed_, 1, k, 0, 0, i);
  }
  template <class T = float>
  std::vector<T> initial_params(std::size_t k) const {
    std::vector<T> p(tensors_[k].size);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = static_cast<T>(initial_param(k, i));
    return p;
  }

  /// Element i of rank r's gradient of tensor k for update t, where that rank's parameter is p.
  template <class T>
  T gradient(std::size_t k, std::size_t r, std::size_t t, std::size_t i, T p) const {
    const tensor_info& info = tensors_[k];
    if (i >= info.mask_zero_from) return T(0);
    const T noise = static_cast<T>(info.noise_scale * u(seed_, 2, k, r, t, i));
    return noise + static_cast<T>(info.pull) * (p - static_cast<T>(target(k, i)));
  }
  template <class T>
  std::vector<T> gradient(std::size_t k, std::size_t r, std::size_t t,
                          const std::vector<T>& params) const {
    std::vector<T> g(params.size());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = gradient(k, r, t, i, params[i]);
    return g;
  }

 private:
  void read_tensors() {
    seed_ = json_.at("seed").get<std::uint64_t>();
    for (const auto& entry : json_.at("tensors")) {
      tensor_info info;
      info.size = entry.at("size").get<std::size_t>();
      info.param_scale = entry.at("param_scale").get<float>();
      info.target_scale = entry.at("target_scale").get<float>();
      info.noise_scale = entry.at("noise_scale").get<float>();
      info.pull = entry.at("pull").get<float>();
      info.mask_zero_from = entry.value("mask_zero_from", info.size);
      info.non_freeze = entry.value("non_freeze", false);
      tensors_.push_back(info);
    }
  }
  const nlohmann::json& entry(const std::string& array) const {
    const auto& files = json_.at("files");
    const auto found = files.find(array + ".npy");
    if (found == files.end()) {
      throw std::runtime_error("golden: " + name_ + " has no array " + array);
    }
    return *found;
  }
  template <class T>
  static std::vector<double> widened(const std::vector<T>& from) {
    return std::vector<double>(from.begin(), from.end());
  }

  std::filesystem::path directory_;
  nlohmann::json json_;
  std::string name_, optimizer_;
  std::size_t world_size_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<tensor_info> tensors_;
};

/// ONEBIT_GOLDEN_DIR of the environment, else the directory that the build gives.
inline std::filesystem::path default_directory() {
  if (const char* given = std::getenv("ONEBIT_GOLDEN_DIR"); given != nullptr && *given != '\0') {
    return given;
  }
#ifdef ONEBIT_GOLDEN_DEFAULT_DIR
  return ONEBIT_GOLDEN_DEFAULT_DIR;
#else
  throw std::runtime_error("golden: set ONEBIT_GOLDEN_DIR to the directory of the cases");
#endif
}

/// The directories of all cases, sorted by name. Every subdirectory counts, so that a broken one
/// fails when it is loaded instead of passing unseen. Throws if there is none.
inline std::vector<std::filesystem::path> list_cases(
    const std::filesystem::path& directory = default_directory()) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_directory()) found.push_back(entry.path());
  }
  if (found.empty()) {
    throw std::runtime_error("golden: " + directory.string() + " holds no cases");
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace onebit_test::golden

#endif  // ONEBIT_TESTS_SUPPORT_GOLDEN_HPP
