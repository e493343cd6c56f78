// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#ifndef ONEBIT_TESTS_SUPPORT_LOCALES_HPP
#define ONEBIT_TESTS_SUPPORT_LOCALES_HPP

#include <clocale>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <locale>
#include <stdexcept>
#include <string>

#include "scratch.hpp"

namespace onebit_test {

/// Prints 36804.5 as 36.804,5, as German and many other programs for people do.
class comma_and_groups : public std::numpunct<char> {
 protected:
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};
[[nodiscard]] inline std::locale german_numbers() {
  return {std::locale::classic(), new comma_and_groups};
}

/// The program's locale of C++ while it lives.
class global_locale {
 public:
  explicit global_locale(const std::locale& l) : before_(std::locale::global(l)) {}
  global_locale(const global_locale&) = delete;
  global_locale& operator=(const global_locale&) = delete;
  ~global_locale() { std::locale::global(before_); }

 private:
  std::locale before_;
};

/// Makes a locale of C with a decimal comma, which no machine needs to have installed, and finds it
/// while this object lives. Throws if localedef cannot make it: no test passes without it.
class made_locale {
 public:
  static constexpr const char* name = "comma";
  made_locale() {
    const auto source = folder_.path / "source", characters = folder_.path / "characters";
    std::ofstream(source) << "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\ngrouping 3;3\n"
                             "END LC_NUMERIC\n";
    std::ofstream map(characters);
    map << "<code_set_name> ANSI_X3.4-1968\n<comment_char> %\n<escape_char> /\nCHARMAP\n"
        << std::hex << std::uppercase << std::setfill('0');
    for (int c = 0; c < 128; ++c) {
      map << "<U" << std::setw(4) << c << "> /x" << std::setw(2) << c << " x\n";
    }
    map << "END CHARMAP\n";
    map.close();
    const std::string command = "localedef -c -i " + source.string() + " -f " +
                                characters.string() + " " + (folder_.path / name).string() + " >" +
                                (folder_.path / "said").string() + " 2>&1";
    (void)std::system(command.c_str());  // it warns of what is not defined
    setenv("LOCPATH", folder_.path.c_str(), 1);
    if (std::setlocale(LC_NUMERIC, name) == nullptr || *std::localeconv()->decimal_point != ',') {
      throw std::runtime_error("no locale with a decimal comma, which needs glibc's localedef: " +
                               command);
    }
    std::setlocale(LC_NUMERIC, "C");
  }
  made_locale(const made_locale&) = delete;
  made_locale& operator=(const made_locale&) = delete;
  ~made_locale() {
    std::setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
  }

 private:
  scratch folder_;
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_LOCALES_HPP
