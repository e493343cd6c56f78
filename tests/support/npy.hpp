// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A reader for NumPy files, just wide enough for the recorded trajectories: format 1.0,
// little-endian, C order, of type <f4, <f8 or |u1.

#ifndef ONEBIT_TESTS_SUPPORT_NPY_HPP
#define ONEBIT_TESTS_SUPPORT_NPY_HPP

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace onebit_test {

static_assert(std::endian::native == std::endian::little, "the arrays are read without swapping");

template <class T>
struct npy_array {
  std::vector<std::size_t> shape;
  std::vector<T> values;  // C order: the last dimension runs fastest
};

template <class T>
constexpr std::string_view npy_type() {
  if constexpr (std::is_same_v<T, float>)
    return "<f4";
  else if constexpr (std::is_same_v<T, double>)
    return "<f8";
  else {
    static_assert(std::is_same_v<T, std::uint8_t>, "npy: float, double and uint8_t are readable");
    return "|u1";
  }
}

inline std::size_t element_count(const std::vector<std::size_t>& shape) {
  std::size_t n = 1;
  for (const std::size_t extent : shape) n *= extent;
  return n;
}

inline std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

namespace detail {

// The text behind `'key': ` in the header, which is the literal of a Python dictionary.
inline std::string_view npy_field(std::string_view header, std::string_view key,
                                  const std::string& file) {
  const std::string quoted = "'" + std::string(key) + "':";
  const std::size_t at = header.find(quoted);
  if (at == std::string_view::npos) {
    throw std::runtime_error("npy: " + file + ": the header has no field " + quoted);
  }
  std::string_view rest = header.substr(at + quoted.size());
  const std::size_t start = rest.find_first_not_of(' ');
  return start == std::string_view::npos ? std::string_view{} : rest.substr(start);
}

inline std::vector<std::size_t> npy_shape(std::string_view text, const std::string& file) {
  const std::size_t end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) {
    throw std::runtime_error("npy: " + file + ": the shape is not a tuple");
  }
  std::vector<std::size_t> shape;
  bool in_number = false;
  for (const char c : text.substr(1, end - 1)) {
    if (c >= '0' && c <= '9') {
      if (!in_number) shape.push_back(0);
      shape.back() = shape.back() * 10 + static_cast<std::size_t>(c - '0');
      in_number = true;
    } else if (c == ',' || c == ' ') {
      in_number = false;
    } else {
      throw std::runtime_error("npy: " + file + ": unexpected '" + c + "' in the shape");
    }
  }
  return shape;
}

}  // namespace detail

/// Reads one array. Throws std::runtime_error, naming the file, for anything but what is
/// announced above, for another element type than T and for missing or surplus bytes.
template <class T>
npy_array<T> read_npy(const std::filesystem::path& path) {
  const std::string file = path.string();
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("npy: " + file + ": cannot be opened");
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};

  constexpr std::size_t preamble_bytes = 10;  // magic, version, length of the header
  if (bytes.size() < preamble_bytes || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0) {
    throw std::runtime_error("npy: " + file + ": not a .npy file (" + std::to_string(bytes.size()) +
                             " bytes)");
  }
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(bytes[i]));
  };
  if (byte(6) != 1 || byte(7) != 0) {
    throw std::runtime_error("npy: " + file + ": format " + std::to_string(byte(6)) + "." +
                             std::to_string(byte(7)) + ", expected 1.0");
  }
  const std::size_t header_bytes = byte(8) + 256 * byte(9);
  if (bytes.size() < preamble_bytes + header_bytes) {
    throw std::runtime_error("npy: " + file + ": the header is cut off");
  }
  const std::string_view header(bytes.data() + preamble_bytes, header_bytes);

  const std::string quoted_type = "'" + std::string(npy_type<T>()) + "'";
  const std::string_view type = detail::npy_field(header, "descr", file);
  if (!type.starts_with(quoted_type)) {
    throw std::runtime_error("npy: " + file + ": element type " +
                             std::string(type.substr(0, type.find(','))) + ", expected " +
                             quoted_type);
  }
  if (!detail::npy_field(header, "fortran_order", file).starts_with("False")) {
    throw std::runtime_error("npy: " + file + ": not in C order");
  }

  npy_array<T> array;
  array.shape = detail::npy_shape(detail::npy_field(header, "shape", file), file);
  const std::size_t data_bytes = bytes.size() - preamble_bytes - header_bytes;
  const std::size_t n = element_count(array.shape);
  if (data_bytes != n * sizeof(T)) {
    throw std::runtime_error("npy: " + file + ": " + std::to_string(data_bytes) +
                             " bytes of data, expected " + std::to_string(n * sizeof(T)) +
                             " for shape " + shape_text(array.shape));
  }
  array.values.resize(n);
  if (n > 0) std::memcpy(array.values.data(), bytes.data() + bytes.size() - data_bytes, data_bytes);
  return array;
}

/// The common CRC-32 (that of zlib) of some bytes.
inline std::uint32_t crc32(const void* data, std::size_t n_bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1u) != 0 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      made[i] = c;
    }
    return made;
  }();
  std::uint32_t crc = 0xFFFFFFFFu;
  const auto* p = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < n_bytes; ++i) crc = table[(crc ^ p[i]) & 0xFFu] ^ (crc >> 8);
  return crc ^ 0xFFFFFFFFu;
}

template <class T>
std::uint32_t crc32(const std::vector<T>& values) {
  return crc32(values.data(), values.size() * sizeof(T));
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_NPY_HPP
