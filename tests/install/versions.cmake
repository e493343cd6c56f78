# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Whatever names onebit's version must name the one of vocabulary.hpp.
#
#   cmake -DSOURCE_DIR= -P versions.cmake

cmake_minimum_required(VERSION 3.22)
include("${SOURCE_DIR}/cmake/version.cmake")
onebit_read_version("${SOURCE_DIR}/include/onebit/vocabulary.hpp" version)

foreach(line IN ITEMS "CITATION.cff: version: ${version}\n"
                      "cmake/packaging/vcpkg/vcpkg.json:  \"version\": \"${version}\",\n")
  string(REGEX MATCH "^([^:]+):( ?)(.*)$" matched "${line}")
  set(file "${CMAKE_MATCH_1}")
  set(expected "${CMAKE_MATCH_3}")
  file(READ "${SOURCE_DIR}/${file}" text)
  string(FIND "${text}" "${expected}" at)
  if(at LESS 0)
    message(FATAL_ERROR "${file} does not say: ${expected}")
  endif()
endforeach()
message(STATUS "versions: all say ${version}")
