# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Compiles with nvcc, prints the registers of each kernel and fails if one spills any: such a kernel
# moves more bytes than its arithmetic says. Needs no GPU.
#
#   cmake -P check_spills.cmake -- <nvcc> [<argument>...]

cmake_minimum_required(VERSION 3.25)

set(command "")
set(after_dashes FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(after_dashes)
    list(APPEND command "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(after_dashes TRUE)
  endif()
endforeach()
list(APPEND command -Xptxas -v)

execute_process(COMMAND ${command} RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
if(NOT rc EQUAL 0)
  message(FATAL_ERROR "nvcc failed (status ${rc}):\n${out}")
endif()

# One line for each function, after its name: "... N bytes spill stores, N bytes spill loads", and
# one "Used N registers".
string(REGEX REPLACE "[][;\\\\]" "_" out "${out}")
string(REGEX MATCHALL "Function properties for [^\n]+\n[^\n]+\n[^\n]+" functions "${out}")
list(LENGTH functions n)
if(n EQUAL 0)
  message(FATAL_ERROR "ptxas reports no function:\n${out}")
endif()
find_program(CXXFILT c++filt)
set(spilling 0)
foreach(function IN LISTS functions)
  string(REGEX MATCH "for ([^\n]+)" name "${function}")
  set(name "${CMAKE_MATCH_1}")
  if(CXXFILT)
    execute_process(COMMAND "${CXXFILT}" "${name}" OUTPUT_VARIABLE name
                    OUTPUT_STRIP_TRAILING_WHITESPACE)
  endif()
  string(REGEX REPLACE "^void onebit::detail::run_on_warps<(.*)>\\(.*$" "\\1" name "${name}")
  string(REGEX MATCH "Used ([0-9]+) registers" registers "${function}")
  set(registers "${CMAKE_MATCH_1}")
  if(NOT function MATCHES "([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads")
    message(FATAL_ERROR "cannot read: ${function}")
  endif()
  set(line "${registers} registers: ${name}")
  if(CMAKE_MATCH_1 GREATER 0 OR CMAKE_MATCH_2 GREATER 0)
    message("SPILLS ${CMAKE_MATCH_1} + ${CMAKE_MATCH_2} bytes, ${line}")
    math(EXPR spilling "${spilling} + 1")
  else()
    message("${line}")
  endif()
endforeach()
if(spilling GREATER 0)
  message(FATAL_ERROR "${spilling} of ${n} kernels spill registers")
endif()
message("none of ${n} kernels spills registers")
