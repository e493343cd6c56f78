// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint: one per rank, ALGORITHM.stepN.rankK.checkpoint. A crash between two
// ranks' writes must not lose the run, so the files of the step before stay until all are written.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace language_model {

// Names and values of everything that must be the same for a resumed run to be the same run.
using fingerprint = std::vector<std::pair<std::string, std::string>>;

class checkpoint_files {
 public:
  checkpoint_files(std::string directory, std::string algorithm, int rank);

  // The steps for which this rank has a file, ascending.
  std::vector<std::int64_t> steps() const;

  // Writes a temporary file and renames it, so that a file of that name is always whole.
  void write(std::int64_t step, const fingerprint& run, const std::string& content) const;

  // Throws where the file is damaged or was written by a different run.
  std::string read(std::int64_t step, const fingerprint& run) const;

  void remove_before(std::int64_t step) const;

 private:
  std::string path(std::int64_t step) const;

  std::string directory_;
  std::string prefix_;
  std::string suffix_;
};

}  // namespace language_model
