# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Passes only if a command exits with an error and its output matches. (ctest's own
# PASS_REGULAR_EXPRESSION ignores the exit status, and WILL_FAIL the output.)
#
#   cmake -DEXPECT=<regex> -P expect_failure.cmake -- <command> [<argument>...]

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

execute_process(COMMAND ${command} RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
message("${out}")
string(REGEX REPLACE "[ \n]+" " " out "${out}") # CMake wraps its messages
if(rc EQUAL 0)
  message(FATAL_ERROR "the command should have failed, but exited with 0")
elseif(NOT out MATCHES "${EXPECT}")
  message(FATAL_ERROR "the command failed (status ${rc}), but its output does not match: ${EXPECT}")
endif()
