// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <onebit/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Options by their names, as configuration files and command lines have them.
namespace onebit::inline v0_1 {

/// Key -> value, each as JSON writes it: "0.001", "true", "[0.9, 0.999]", "nccl". A JSON object of
/// a well-kept library becomes one in a line: strings as they are, everything else dumped.
using option_map = std::map<std::string, std::string>;

namespace detail {

/// Letters to insert, to drop or to exchange, from one word to the other.
[[nodiscard, gnu::cold]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t least = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
      const std::size_t exchanged = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], least < exchanged ? least : exchanged);
    }
  }
  return row[b.size()];
}

[[nodiscard, gnu::cold]] inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

/// Reads an algorithm's options one after the other: each call names a key, so that what was not
/// named at the end is unknown. Everything throws invalid_input that names algorithm and key.
class option_reader {
 public:
  using keys = std::initializer_list<const char*>;

  [[gnu::cold]] option_reader(std::string algorithm, const option_map& given)
      : algorithm_(std::move(algorithm)), given_(given) {}

  /// A value under one of several names of the same thing, into `target` if it is there.
  [[gnu::cold]] bool read(keys names, double& target) {
    const std::string* text = find(names);
    if (text != nullptr) target = number(*text);
    return text != nullptr;
  }
  [[gnu::cold]] bool read(keys names, std::uint64_t& target) {
    const std::string* text = find(names);
    if (text == nullptr) return false;
    const double x = number(*text);  // 1e5 is a count too; above 2^53 none is meant
    if (!(x >= 0 && x <= 0x1p53 && x == std::floor(x))) wrong(*text, "a count: 0, 1, 2, ...");
    target = static_cast<std::uint64_t>(x);
    return true;
  }
  [[gnu::cold]] bool read(keys names, bool& target) {
    const std::string* text = find(names);
    if (text == nullptr) return false;
    const std::string lower = lower_case(*text);
    if (lower != "true" && lower != "false" && lower != "0" && lower != "1") {
      wrong(*text, "true or false");
    }
    target = lower == "true" || lower == "1";
    return true;
  }
  /// Two numbers, in brackets or not.
  [[gnu::cold]] bool read_pair(keys names, double& first, double& second) {
    const std::string* text = find(names);
    if (text == nullptr) return false;
    std::string_view inner = trimmed(*text);
    const auto within = [&](char open, char close) {
      return inner.size() >= 2 && inner.front() == open && inner.back() == close;
    };
    if (within('[', ']') || within('(', ')')) inner = inner.substr(1, inner.size() - 2);
    const std::size_t comma = inner.find(',');
    if (comma == std::string_view::npos) wrong(*text, "two numbers, as in [0.9, 0.999]");
    first = number(inner.substr(0, comma));
    second = number(inner.substr(comma + 1));
    return true;
  }
  /// One of several words: its place among them.
  [[gnu::cold]] std::optional<std::size_t> read_word(keys names, keys words) {
    const std::string* text = find(names);
    if (text == nullptr) return std::nullopt;
    std::size_t place = 0;
    std::string all;
    for (const char* word : words) {
      if (*text == word) return place;
      all += (place++ == 0 ? "" : ", ") + std::string(word);
    }
    wrong(*text, ("one of: " + all).c_str());
  }

  /// Must have this value, if it is there: `why` says what to do.
  [[gnu::cold]] void only(const char* name, bool value, const char* why) {
    bool read_value = value;
    if (read({name}, read_value) && read_value != value) {
      fail({name, " is ", read_value ? "true" : "false", ": ", why});
    }
  }
  /// May be there, as true or false, and changes nothing.
  [[gnu::cold]] void ignore(const char* name) {
    bool value = false;
    (void)read({name}, value);
  }
  /// Must not be there: `why` says what to do.
  [[gnu::cold]] void refuse(const char* name, const char* why) {
    if (find({name}) != nullptr) fail({name, ": ", why});
  }
  /// All that was not named is unknown.
  [[gnu::cold]] void finish() const {
    for (const auto& [key, value] : given_) {
      std::size_t least = ~std::size_t{0};
      std::string_view nearest;
      for (const std::string& name : known_) {
        const std::size_t distance = edit_distance(lower_case(key), name);
        if (distance < least) {
          least = distance;
          nearest = name;
        }
        if (name == key) least = 0;
      }
      if (least == 0 && nearest == key) continue;
      std::string all;
      for (const std::string& name : known_) all += (all.empty() ? "" : ", ") + name;
      const bool is_near = least <= 2 + key.size() / 4;
      fail({"there is no option ", key, is_near ? "; did you mean " : "", is_near ? nearest : "",
            is_near ? "?" : ".", " It knows: ", all});
    }
  }
  [[noreturn, gnu::cold]] void fail(std::initializer_list<text_part> parts) const {
    throw invalid_input(message("make_optimizer: ", algorithm_, ": ", join(9, parts)));
  }

 private:
  [[nodiscard, gnu::cold]] const std::string* find(keys names) {
    const std::string* text = nullptr;
    for (const char* name : names) {
      known_.emplace_back(name);
      const auto place = given_.find(name);
      if (place == given_.end()) continue;
      if (text != nullptr) fail({name_, " and ", name, " are the same option; give one of them"});
      text = &place->second;
      name_ = name;
    }
    return text;
  }
  [[nodiscard, gnu::cold]] double number(std::string_view text) const {
    const std::string_view t = trimmed(text);
    double x = 0;
    const auto end = t.data() + t.size();
    const auto parsed = std::from_chars(t.data(), end, x);
    if (parsed.ec != std::errc() || parsed.ptr != end || !std::isfinite(x)) {
      wrong(text, text == "auto" ? "a number (who calls must fill in what is auto)" : "a number");
    }
    return x;
  }
  [[nodiscard]] static std::string_view trimmed(std::string_view t) {
    while (!t.empty() && (t.front() == ' ' || t.front() == '+')) t.remove_prefix(1);
    while (!t.empty() && t.back() == ' ') t.remove_suffix(1);
    return t;
  }
  [[noreturn, gnu::cold]] void wrong(std::string_view text, const char* wanted) const {
    fail({name_, " is '", text, "', must be ", wanted});
  }

  std::string algorithm_;
  const option_map& given_;
  std::vector<std::string> known_;
  const char* name_ = "";  ///< of what was found last
};

}  // namespace detail
}  // namespace onebit::inline v0_1
