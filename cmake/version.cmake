# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Reads the version from the only place that states it, ONEBIT_VERSION in config.hpp
# (major * 10000 + minor * 100 + patch), and sets `result` to major.minor.patch.
function(onebit_read_version header result)
  file(STRINGS "${header}" line REGEX "^#define ONEBIT_VERSION [0-9]+")
  if(NOT line MATCHES "^#define ONEBIT_VERSION ([0-9]+)")
    message(FATAL_ERROR "onebit: no line '#define ONEBIT_VERSION <number>' in ${header}")
  endif()
  set(number ${CMAKE_MATCH_1})
  math(EXPR major "${number} / 10000")
  math(EXPR minor "${number} / 100 % 100")
  math(EXPR patch "${number} % 100")
  set(${result} "${major}.${minor}.${patch}" PARENT_SCOPE)
endfunction()
