# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Compiles one file and judges the outcome by what the file says it expects:
#
#   // expect: <text or regular expression>   compilation fails and says this (every such line)
#   // errors: <number>                       and in at most so many errors
#   // expect-ok                              compilation succeeds
#   // flags: <option>...                      it is compiled with these, too
#   // alone                                   it says something to headers: none is precompiled
#
#   cmake -DSOURCE=<file> -P check.cmake -- <compiler> [<option>...]

cmake_minimum_required(VERSION 3.25)

set(compiler "")
set(after_dashes FALSE)
math(EXPR last "${CMAKE_ARGC} - 1")
foreach(i RANGE ${last})
  if(after_dashes)
    list(APPEND compiler "${CMAKE_ARGV${i}}")
  elseif(CMAKE_ARGV${i} STREQUAL "--")
    set(after_dashes TRUE)
  endif()
endforeach()

file(STRINGS "${SOURCE}" expect_ok REGEX "^// expect-ok *$")
file(STRINGS "${SOURCE}" expectations REGEX "^// expect: ")
if((expect_ok AND expectations) OR (NOT expect_ok AND NOT expectations))
  message(FATAL_ERROR "${SOURCE} needs either lines '// expect: <text>' or a line '// expect-ok'")
endif()

file(STRINGS "${SOURCE}" flags REGEX "^// flags: ")
string(REGEX REPLACE "^// flags: *" "" flags "${flags}")
separate_arguments(flags)
execute_process(COMMAND ${compiler} ${flags} "${SOURCE}" RESULT_VARIABLE rc OUTPUT_VARIABLE out
                ERROR_VARIABLE out)
message("${out}")

if(expect_ok)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "${SOURCE} should compile")
  endif()
  return()
endif()
if(rc EQUAL 0)
  message(FATAL_ERROR "${SOURCE} should not compile")
endif()
foreach(expected IN LISTS expectations)
  string(REGEX REPLACE "^// expect: *" "" expected "${expected}")
  string(FIND "${out}" "${expected}" at)
  if(at EQUAL -1 AND NOT out MATCHES "${expected}")
    message(FATAL_ERROR "${SOURCE} does not compile, but for another reason than: ${expected}")
  endif()
endforeach()

# A message that a hundred others bury says nothing.
file(STRINGS "${SOURCE}" most REGEX "^// errors: [0-9]+$")
if(most)
  string(REGEX MATCH "[0-9]+$" most "${most}")
  string(REGEX MATCHALL "[^a-z]error: " errors "${out}")
  list(LENGTH errors n)
  if(n GREATER most)
    message(FATAL_ERROR "${SOURCE}: ${n} errors, where ${most} should say it")
  endif()
endif()
