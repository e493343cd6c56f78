# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds TARGET in BUILD_DIR and runs PROGRAM, if PROBE finds a CUDA device.

execute_process(COMMAND "${PROBE}" RESULT_VARIABLE no_device)
if(no_device)
  message("skipped: there is no CUDA device")
  return()
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD_DIR}" --parallel 2 --target "${TARGET}"
                        COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${PROGRAM}" COMMAND_ERROR_IS_FATAL ANY)
