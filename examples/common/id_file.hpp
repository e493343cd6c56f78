// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Passes a few secret bytes from one process to others through a file that all see. A reader gets
// all bytes, and only bytes that a process of the same user wrote in the same run.

#ifndef ONEBIT_EXAMPLES_COMMON_ID_FILE_HPP
#define ONEBIT_EXAMPLES_COMMON_ID_FILE_HPP

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <thread>

namespace common {

/// Largest age of a file that is accepted: ranks start at about the same time.
inline constexpr std::time_t stale_after_seconds = 600;

/// Writes the file: readable by its owner alone, complete or absent. Throws if the file exists
/// already or cannot be written.
inline void publish(const std::string& file, const void* bytes, std::size_t n) {
  const auto fail = [&](const std::string& path) {
    throw std::runtime_error(path + ": " + std::strerror(errno));
  };
  const std::string part = file + "." + std::to_string(::getpid());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) fail(part);
  const bool written = ::write(fd, bytes, n) == static_cast<ssize_t>(n) && ::fsync(fd) == 0;
  const bool closed = ::close(fd) == 0;
  // link() replaces nothing, unlike rename(): the name must be new
  const bool named = written && closed && ::link(part.c_str(), file.c_str()) == 0;
  const int error = errno;
  ::unlink(part.c_str());
  if (named) return;
  errno = error;
  if (error == EEXIST) throw std::runtime_error(file + " is there already; remove it");
  fail(written && closed ? file : part);
}

/// Waits for the file, and reads its n bytes. Throws if the file does not appear in time, or if
/// `publish` did not write it: other owner, open to others, other length, or stale.
inline void await(const std::string& file, void* bytes, std::size_t n,
                  std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  int fd = -1;
  while ((fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0) {
    if (errno != ENOENT) throw std::runtime_error(file + ": " + std::strerror(errno));
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error(file + ": rank 0 has not written it");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  struct stat s {};
  const bool known = ::fstat(fd, &s) == 0;
  const bool read = known && ::read(fd, bytes, n) == static_cast<ssize_t>(n);
  ::close(fd);
  const auto refuse = [&](const std::string& why) { throw std::runtime_error(file + " " + why); };
  if (!known || !S_ISREG(s.st_mode)) refuse("is no file");
  if (s.st_uid != ::geteuid()) refuse("belongs to another user");
  if ((s.st_mode & 0077) != 0) refuse("may be read or written by others");
  if (std::time(nullptr) - s.st_mtime > stale_after_seconds) refuse("is of an earlier run");
  if (!read || s.st_size != static_cast<off_t>(n)) {
    refuse("has " + std::to_string(s.st_size) + " bytes, not " + std::to_string(n));
  }
}

}  // namespace common

#endif  // ONEBIT_EXAMPLES_COMMON_ID_FILE_HPP
