# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds TARGET in BUILD_DIR and runs the command, if PROBE finds a CUDA device. Where the environment
# has ONEBIT_BUILT, it is built already.
#
#   cmake -DPROBE=... -DBUILD_DIR=... -DTARGET=... -P run_on_device.cmake -- <command...>

if(NOT EXISTS "${PROBE}")
  message(FATAL_ERROR "${PROBE} is not built: nobody knows whether there is a device")
endif()
execute_process(COMMAND "${PROBE}" RESULT_VARIABLE no_device)
if(no_device)
  message("skipped: there is no CUDA device")
  return()
endif()
if("$ENV{ONEBIT_BUILT}" STREQUAL "")
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD_DIR}" --parallel 2 --target "${TARGET}"
                          COMMAND_ERROR_IS_FATAL ANY)
endif()

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
execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)
