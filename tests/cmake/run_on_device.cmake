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

include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/after_dashes.cmake")
execute_process(COMMAND ${command} COMMAND_ERROR_IS_FATAL ANY)
