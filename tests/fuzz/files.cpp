// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A directory of checkpoints with any bytes behind its checksums, of 1 to 4 ranks: refused with
// nothing changed, or loaded, by a job of 2 ranks, and then the next steps are safe. The first byte
// is the kind of optimizer, the second the number of ranks and what is damaged; then 8 bytes, the
// length of the trainer's part, and the optimizer's part behind its card.

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <onebit/extras/checkpoint_files.hpp>
#include <sstream>
#include <utility>

#include "../support/scratch.hpp"
#include "bytes.hpp"

using namespace onebit_test;
namespace files = onebit::detail::files;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t head = 24 + sizeof(onebit::detail::checkpoint_header);

/// What a rank of so many saves at the start of its file, up to the end of the card.
const std::string& head_of(std::size_t kind, int rank, int size) {
  static std::map<std::pair<std::size_t, std::pair<int, int>>, std::string> known;
  std::string& s = known[{kind, {rank, size}}];
  if (!s.empty()) return s;
  training<> data(fuzz::sizes());
  s = fuzz::with_optimizer(kind, data, fuzz::echo(nullptr, rank, size),
                           [](auto& o) { return saved(o).substr(0, head); });
  return s;
}

struct input {
  std::size_t kind = 0;
  int n_ranks = 2;
  int damage = 0;  ///< 0: none; else what is missing or another
  std::size_t odd_byte = 0;
  std::string length, state;
};

void write_all(const fs::path& root, const input& in, std::uint64_t step) {
  const fs::path directory = root / files::step_name(step);
  fs::create_directories(directory);
  const training<> data(fuzz::sizes());
  std::vector<files::file_sum> sums;
  for (int r = 0; r < in.n_ranks; ++r) {
    const fs::path file = directory / files::rank_name(static_cast<std::size_t>(r));
    std::ofstream out(file, std::ios::binary);
    out << in.length;
    for (const auto& p : data.params) {
      out.write(reinterpret_cast<const char*>(p.data()),
                static_cast<std::streamsize>(p.size() * sizeof(float)));
    }
    std::string own = head_of(in.kind, r, in.n_ranks);
    const std::uint64_t length = own.size() - 24 + in.state.size();
    std::memcpy(own.data() + 16, &length, sizeof length);
    std::string state = in.state;
    if (in.damage == 5) own[24 + offsetof(onebit::detail::checkpoint_header, ranks_per_node)] = 2;
    if (in.damage == 6 && r + 1 == in.n_ranks && !state.empty()) {
      state[in.odd_byte % state.size()] ^= 1;  // of the last rank
    }
    out << own << state;
    out.close();
    sums.push_back(*files::sum_of(file));
  }
  if (in.damage == 1) fs::remove(directory / files::rank_name(0));
  if (in.damage == 2) fs::resize_file(directory / files::rank_name(0), 4);
  if (in.damage == 3) sums.clear();
  if (in.damage == 7) {  // two ranks' files have changed places
    const fs::path last = directory / files::rank_name(sums.size() - 1);
    fs::rename(last, root / "last");
    if (sums.size() > 1) fs::rename(directory / files::rank_name(0), last);
    fs::rename(root / "last", directory / files::rank_name(0));
  }
  if (in.damage != 4) std::ofstream(directory / "manifest") << files::manifest_of(step, sums);
}

void run(const input& in) {
  const scratch root;
  write_all(root.path, in, 3);
  fs::create_directories(root.path / "step-x");
  training<> data(fuzz::sizes());
  fuzz::with_optimizer(in.kind, data, fuzz::echo(), [&](auto& o) {
    const std::string before = saved(o);
    std::optional<std::uint64_t> step;
    try {
      step = onebit::load_latest(o, root.path, [&](std::istream& from) {
        for (auto& p : data.params) {
          from.read(reinterpret_cast<char*>(p.data()),
                    static_cast<std::streamsize>(p.size() * sizeof(float)));
        }
      });
    } catch (const onebit::checkpoint_error&) {
    }
    if (!step) {
      if (saved(o) != before) std::abort();
      return 0;
    }
    const bool is_swapped = in.damage == 7 && in.n_ranks > 1;
    if (*step != 3 || in.damage == 1 || in.damage == 2 || is_swapped) std::abort();
    try {
      for (int i = 0; i < 2; ++i) (void)train(o, data);
    } catch (const onebit::error&) {
    }
    return 0;
  });
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (std::size_t k = 0; k < fuzz::n_kinds; ++k) {
    for (int n = 1; n <= 4; ++n) {
      training<> data(fuzz::sizes());
      fuzz::with_optimizer(k, data, fuzz::echo(nullptr, 0, n), [&](auto& o) {
        std::uint64_t length = 0;
        for (const auto& p : data.params) length += p.size() * sizeof(float);
        for (int i = 0; i < 7; ++i) {
          std::string seed{static_cast<char>(k), static_cast<char>(n - 1)};
          seed.append(reinterpret_cast<const char*>(&length), sizeof length);
          seed += saved(o).substr(head);
          for (char damage = 0; damage < (i == 4 && n > 1 ? 8 : 1); ++damage) {
            seed[1] = static_cast<char>(n - 1 + 4 * damage);
            fuzz::write_seed("files-" + std::to_string(k) + "-" + std::to_string(n) + "-" +
                                 std::to_string(i) + "-" + std::to_string(damage),
                             seed);
          }
          // a rate of 0: the parameters stay what the files have
          data.compute_gradients(0, o.steps());
          (void)o.step(0.0F);
        }
        return 0;
      });
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 10) return 0;
  input in;
  in.kind = data[0] % fuzz::n_kinds;
  in.n_ranks = 1 + data[1] % 4;
  in.damage = data[1] / 4 % 8;
  in.length.assign(reinterpret_cast<const char*>(data) + 2, 8);
  in.odd_byte = data[0] / 8 + 8 * data[9];
  in.state.assign(reinterpret_cast<const char*>(data) + 10, size - 10);
  run(in);
  return 0;
}
