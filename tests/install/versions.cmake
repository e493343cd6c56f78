# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Whatever names onebit's version must name the one of config.hpp.
#
#   cmake -DSOURCE_DIR= -P versions.cmake

cmake_minimum_required(VERSION 3.22)
include("${SOURCE_DIR}/cmake/version.cmake")
onebit_read_version("${SOURCE_DIR}/include/onebit/core/config.hpp" version)

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

# Names of another version are other names: minor versions differ in their interfaces before 1.0.
string(REGEX REPLACE "^([0-9]+)\\.([0-9]+)\\..*" "v\\1_\\2" namespace "${version}")
file(GLOB_RECURSE headers "${SOURCE_DIR}/include/onebit/*.hpp" "${SOURCE_DIR}/include/onebit/*.cuh")
foreach(header IN LISTS headers)
  file(STRINGS "${header}" opened REGEX "^namespace onebit")
  foreach(line IN LISTS opened)
    if(NOT line MATCHES "^namespace onebit { inline namespace ${namespace} {")
      message(FATAL_ERROR "${header}: '${line}' does not say inline namespace ${namespace}")
    endif()
  endforeach()
endforeach()
message(STATUS "versions: all say ${version}")
