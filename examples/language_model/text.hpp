// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The text to learn, as tokens (one per byte value that occurs), and the batches drawn from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace language_model {

struct batch {
  std::vector<int> input;   // whole sequences of `context` tokens, one after the other
  std::vector<int> target;  // for each input token, the token that follows
};

class text {
 public:
  // An empty path means the King James Bible as the program `bible` prints it.
  static text load(const std::string& path);

  // Returns all but the last fifth, and the last fifth: two texts with equal tokens.
  std::pair<text, text> split() const;

  // Number of tokens, rounded up to a multiple of 16 to align the rows of every matrix of the
  // model. The added tokens never occur.
  int vocabulary() const { return vocabulary_; }
  std::size_t size() const { return tokens_.size(); }
  std::uint64_t hash() const { return hash_; }

  // The last twentieth is held out for validation.
  std::size_t training_size() const { return tokens_.size() - tokens_.size() / 20; }

  // Draws a batch for this rank: windows that depend on (seed, step, rank) and nothing else.
  void draw(batch& to, int sequences, int context, std::uint64_t seed, std::uint64_t step,
            int rank) const;

  // Gets batch `index` of `count` batches, whose windows are spread evenly over the held-out part.
  void held_out(batch& to, int sequences, int context, int index, int count) const;

 private:
  explicit text(const std::string& bytes);
  void copy_window(batch& to, std::size_t at, std::size_t begin, int context) const;

  std::vector<unsigned char> tokens_;
  int vocabulary_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace language_model
