// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// One rank of a job over MPI that is struck: see matrix.cpp, which runs it.
//
//   mpirun -n 3 kill_worker <kind> <what> <where> <victim> <step> <at> <after> <root> <deadline ms>
//
// Writes its digest to <root>/digest-<rank>; or, told of an error, how many ms it waited and the
// error to <root>/error-<rank>, waits for the others to have done so, and ends the job.

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <onebit/transport/mpi.hpp>
#include <thread>

#include "job.hpp"

using namespace onebit_test;
using clock_type = std::chrono::steady_clock;

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = path.string() + ".part";
  std::ofstream(part) << text << "\n";
  std::filesystem::rename(part, path);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 10) return EXIT_FAILURE;
  kill::fault f;
  const auto k = static_cast<kill::kind>(std::atoi(argv[1]));
  f.what = static_cast<kill::what>(std::atoi(argv[2]));
  f.where = static_cast<kill::where>(std::atoi(argv[3]));
  f.victim = std::atoi(argv[4]);
  f.step = static_cast<std::uint64_t>(std::atoll(argv[5]));
  f.at = std::atoi(argv[6]);
  f.after = std::atoi(argv[7]) != 0;
  const std::filesystem::path root = argv[8];
  const std::chrono::milliseconds deadline(std::atoi(argv[9]));

  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  // When this rank last did something: an upper bound of what it has waited since.
  auto alive = clock_type::now();
  try {
    struct noting {
      onebit::mpi inner;
      clock_type::time_point* alive;
      [[nodiscard]] int rank() const { return inner.rank(); }
      [[nodiscard]] int size() const { return inner.size(); }
      void all_to_all(const void* s, void* r, std::size_t n) {
        *alive = clock_type::now();
        inner.all_to_all(s, r, n);
      }
      void all_gather(const void* s, void* r, std::size_t n) {
        *alive = clock_type::now();
        inner.all_gather(s, r, n);
      }
      void all_reduce_sum(float* d, std::size_t n) {
        *alive = clock_type::now();
        inner.all_reduce_sum(d, n);
      }
      auto start_all_to_all(const void* s, void* r, std::size_t n) {
        *alive = clock_type::now();
        return inner.start_all_to_all(s, r, n);
      }
      auto start_all_gather(const void* s, void* r, std::size_t n) {
        *alive = clock_type::now();
        return inner.start_all_gather(s, r, n);
      }
      [[nodiscard]] noting split(int color, int key) const {
        *alive = clock_type::now();
        return {inner.split(color, key), alive};
      }
    };
    const noting transport{onebit::mpi(MPI_COMM_WORLD, deadline), &alive};
    write(root / ("digest-" + std::to_string(rank)),
          std::to_string(kill::run(k, transport, root / "saved", f)));
    MPI_Finalize();
    return EXIT_SUCCESS;
  } catch (const std::exception& e) {
    const auto waited =
        std::chrono::duration_cast<std::chrono::milliseconds>(clock_type::now() - alive);
    write(root / ("error-" + std::to_string(rank)),
          std::to_string(waited.count()) + " " + e.what());
  }
  // The first that ends the job ends the others: let them say what they were told.
  for (int i = 0; i < 300; ++i) {
    int told = 0;
    for (int r = 0; r < size; ++r) {
      told += std::filesystem::exists(root / ("error-" + std::to_string(r))) ? 1 : 0;
    }
    if (told >= (f.what == kill::what::stop ? size - 1 : size)) break;
    std::this_thread::sleep_for(deadline / 100);
  }
  MPI_Abort(MPI_COMM_WORLD, 3);
  return EXIT_FAILURE;
}
