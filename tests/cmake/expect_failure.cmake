# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Passes only if a command exits with an error and its output has each of some texts or regular expressions
# in it; and, of a compiler, in at most ERRORS errors. (ctest's own PASS_REGULAR_EXPRESSION ignores the exit
# status, and WILL_FAIL the output.)
#
#   cmake "-DEXPECT=<text>[;<text>...]" [-DERRORS=<number>] -P expect_failure.cmake -- <command> [<argument>...]

cmake_minimum_required(VERSION 3.25)

if(NOT EXPECT)
  message(FATAL_ERROR "expect_failure.cmake needs -DEXPECT=<text>")
endif()
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/after_dashes.cmake")
execute_process(COMMAND ${command} RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
message("${out}")
if(rc EQUAL 0)
  message(FATAL_ERROR "the command should have failed, but exited with 0")
endif()
string(REGEX REPLACE "[ \n]+" " " out "${out}") # CMake wraps its messages
foreach(text IN LISTS EXPECT)
  string(FIND "${out}" "${text}" at)
  if(at EQUAL -1 AND NOT out MATCHES "${text}")
    message(FATAL_ERROR "the command failed (status ${rc}), but its output does not match: ${text}")
  endif()
endforeach()

# A message that a hundred others bury says nothing.
if(ERRORS)
  string(REGEX MATCHALL "[^a-z]error: " errors "${out}")
  list(LENGTH errors n)
  if(n GREATER ERRORS)
    message(FATAL_ERROR "${n} errors, where ${ERRORS} should say it")
  endif()
endif()
