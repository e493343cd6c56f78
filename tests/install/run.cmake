# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Installs onebit to an empty prefix, then configures, builds and runs the project beside this
# file: against the installation, and once more against the source as a subproject.
#
#   cmake -DBUILD_DIR= -DSOURCE_DIR= -DWORK_DIR= -DCXX= -DGENERATOR= -DWITH_MPI= -DWITH_CUDA=
#         -DWITH_NCCL= -P run.cmake

cmake_minimum_required(VERSION 3.25)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed with status ${rc}: ${command}")
  endif()
endfunction()

set(prefix "${WORK_DIR}/prefix")
set(configure "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${CMAKE_CURRENT_LIST_DIR}"
              "-DCMAKE_CXX_COMPILER=${CXX}")

file(REMOVE_RECURSE "${WORK_DIR}")
step("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")

step(${configure} -B "${WORK_DIR}/installed" "-DCMAKE_PREFIX_PATH=${prefix}" -DWITH_MPI=${WITH_MPI}
     -DWITH_CUDA=${WITH_CUDA} -DWITH_NCCL=${WITH_NCCL})
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/installed")
step("${WORK_DIR}/installed/consumer")

step(${configure} -B "${WORK_DIR}/subproject" "-DONEBIT_SOURCE_DIR=${SOURCE_DIR}")
step("${CMAKE_COMMAND}" --build "${WORK_DIR}/subproject")
step("${WORK_DIR}/subproject/consumer")
