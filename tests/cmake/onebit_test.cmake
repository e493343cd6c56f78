# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# onebit_test(NAME source... [BRIEF] [LABELS label...] [LIBS target...] [MPI_RANKS n...]
#             [TIMEOUT seconds])
#
# Builds the doctest program test_NAME and registers it as the test NAME, labelled NAME and LABELS.
# BRIEF says that it computes little: it is built with ONEBIT_BRIEF_OPTIONS. Sources with a main of
# their own are built with OWN_MAIN; those that must see no header but their own, with NO_PCH. With
# MPI_RANKS the program runs once for each count n, as the test NAME.n, and must be given exactly n
# ranks. TIMEOUT is 900 s unless told. All these programs together are the target onebit_tests.

add_custom_target(onebit_tests)
add_library(onebit_test_main OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/../main.cpp")
target_link_libraries(onebit_test_main PRIVATE doctest::doctest)
target_compile_features(onebit_test_main PRIVATE cxx_std_20)

# The optimizers that several files train with are compiled once, and with optimisation (off: in each
# file that uses them, as it is compiled; less to build where only one test is wanted).
option(ONEBIT_TESTS_COMPILED "Compile the optimizers that tests share once" ON)
mark_as_advanced(ONEBIT_TESTS_COMPILED)
set(onebit_test_optimizers onebit)
if(ONEBIT_TESTS_COMPILED)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/../compiled/*.cpp")
  if(NOT all_tests)
    list(FILTER sources EXCLUDE REGEX "/emulated\\.cpp$")
  endif()
  add_library(onebit_test_optimizers STATIC EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(onebit_test_optimizers PUBLIC onebit PRIVATE onebit_warnings)
  target_compile_definitions(onebit_test_optimizers INTERFACE ONEBIT_TESTS_COMPILED)
  set(onebit_test_optimizers onebit_test_optimizers)
endif()

# onebit_use_compiled(target...): programs that say nothing of the compiled optimizers use them, too.
function(onebit_use_compiled)
  if(NOT ONEBIT_TESTS_COMPILED)
    return()
  endif()
  set(header "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../compiled/optimizers.hpp")
  foreach(target IN LISTS ARGN)
    target_link_libraries(${target} PRIVATE onebit_test_optimizers)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${header}>")
  endforeach()
endfunction()

# Nearly all tests include these: read once, not sixty times. That every header can be included alone
# is a test of its own.
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp" CONTENT "" @ONLY)
foreach(headers IN ITEMS onebit_test_headers onebit_test_headers_brief)
  add_library(${headers} OBJECT EXCLUDE_FROM_ALL "${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp")
  target_link_libraries(${headers} PRIVATE ${onebit_test_optimizers} onebit_warnings doctest::doctest)
  target_precompile_headers(${headers} PRIVATE <doctest/doctest.h> <onebit/onebit.hpp>
                            "${CMAKE_CURRENT_LIST_DIR}/../compiled/optimizers.hpp")
endforeach()
target_compile_options(onebit_test_headers_brief PRIVATE ${ONEBIT_BRIEF_OPTIONS})

# mpirun as tests need it: root allowed, more ranks than cores without spinning. By environment,
# because the names of the options differ between MPI implementations and versions.
set(onebit_mpi_environment
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe # Open MPI 5
    OMPI_MCA_hwloc_base_binding_policy=none
    OMPI_MCA_mpi_yield_when_idle=1)

# Sets the properties that every test run under mpirun needs.
function(onebit_mpi_test_properties name n_ranks expected_ranks)
  set_tests_properties(
    ${name}
    PROPERTIES PROCESSORS ${n_ranks}
               ENVIRONMENT "${onebit_mpi_environment};ONEBIT_EXPECT_RANKS=${expected_ranks}"
               # MPI leaks at exit by design; a colon separates the sanitizer's options.
               ENVIRONMENT_MODIFICATION ASAN_OPTIONS=path_list_append:detect_leaks=0)
endfunction()

function(onebit_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "BRIEF;OWN_MAIN;NO_PCH" "TIMEOUT" "LABELS;LIBS;MPI_RANKS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()

  add_executable(test_${name} ${arg_UNPARSED_ARGUMENTS})
  add_dependencies(onebit_tests test_${name})
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(test_${name} PRIVATE ${onebit_test_optimizers} onebit_warnings
                                             doctest::doctest ${arg_LIBS})
  if(NOT arg_OWN_MAIN)
    target_link_libraries(test_${name} PRIVATE onebit_test_main)
  endif()
  set(headers onebit_test_headers)
  if(arg_BRIEF)
    target_compile_options(test_${name} PRIVATE ${ONEBIT_BRIEF_OPTIONS})
    set(headers onebit_test_headers_brief)
  endif()
  if(NOT arg_NO_PCH)
    target_precompile_headers(test_${name} REUSE_FROM ${headers})
  endif()

  set(names "")
  if(arg_MPI_RANKS)
    foreach(n IN LISTS arg_MPI_RANKS)
      add_test(NAME ${name}.${n} COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} ${n}
                                         $<TARGET_FILE:test_${name}>)
      onebit_mpi_test_properties(${name}.${n} ${n} ${n})
      list(APPEND names ${name}.${n})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND test_${name})
    set(names ${name})
  endif()
  set_tests_properties(${names} PROPERTIES LABELS "${name};${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()

# onebit_run_on_device(TEST target [argument...])
# onebit_run_on_device(TEST target COMMAND command...)     another command, that runs `target`
#
# Programs for CUDA devices take long to compile, so that one is built only where it can run: the
# test TEST builds and runs `target` where there is a CUDA device, and is reported as skipped
# elsewhere.
function(onebit_run_on_device test target)
  if(ARGV2 STREQUAL "COMMAND")
    list(REMOVE_AT ARGN 0)
    set(command ${ARGN})
  else()
    set(command "$<TARGET_FILE:${target}>" ${ARGN})
  endif()
  if(NOT TARGET onebit_device_probe)
    file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/device_probe.cpp"
         CONTENT "#include <cuda_runtime.h>
int main() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess && n > 0 ? 0 : 1;
}
" @ONLY)
    add_executable(onebit_device_probe "${CMAKE_CURRENT_BINARY_DIR}/device_probe.cpp")
    target_link_libraries(onebit_device_probe PRIVATE CUDA::cudart)
  endif()
  set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  add_test(
    NAME ${test}
    COMMAND
      "${CMAKE_COMMAND}" "-DPROBE=$<TARGET_FILE:onebit_device_probe>"
      "-DBUILD_DIR=${PROJECT_BINARY_DIR}" -DTARGET=${target} -P
      "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/run_on_device.cmake" -- ${command})
  set_tests_properties(
    ${test} PROPERTIES TIMEOUT 1200 PROCESSORS 2
                       SKIP_REGULAR_EXPRESSION "skipped: there is no CUDA device")
endfunction()

# onebit_cuda_test(NAME source...)
#
# onebit_test for .cu files, built and run where there is a device. No part of onebit_tests.
function(onebit_cuda_test name)
  add_executable(test_${name} ${ARGN})
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(test_${name} PRIVATE onebit_cuda doctest::doctest)
  target_compile_features(test_${name} PRIVATE cuda_std_20)
  if(ONEBIT_WERROR)
    target_compile_options(test_${name} PRIVATE "SHELL:-Werror all-warnings")
  endif()
  onebit_run_on_device(${name} test_${name})
  set_tests_properties(${name} PROPERTIES LABELS ${name})
endfunction()
