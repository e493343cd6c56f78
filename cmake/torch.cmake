# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Finds libtorch as ONEBIT_TORCH says, and makes the target onebit::libtorch: a folder with include/ and
# lib/, which is an unpacked libtorch or the folder torch/ of a wheel. AUTO looks in build/torch, where
# examples/libtorch/get_torch.sh puts it, and where LIBTORCH in the environment says. Without it there is
# no target. A project that has called find_package(Torch) already gets that one.
#
# torch's own package asks for the CUDA toolkit that it was built with, and stops without it. What is here
# trains on the host, for which two of its libraries are enough.

if(NOT ONEBIT_TORCH)
  return()
endif()

# Gloo's headers do not come with torch.
add_library(onebit_gloo_declarations INTERFACE)
target_include_directories(onebit_gloo_declarations SYSTEM
                           INTERFACE "${PROJECT_SOURCE_DIR}/examples/libtorch/declarations")

if(TARGET torch)
  add_library(onebit_libtorch INTERFACE)
  target_link_libraries(onebit_libtorch INTERFACE torch)
  add_library(onebit::libtorch ALIAS onebit_libtorch)
  return()
endif()
set(given "")
if(NOT ONEBIT_TORCH STREQUAL "AUTO")
  get_filename_component(given "${ONEBIT_TORCH}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
endif()
if(given AND NOT EXISTS "${given}/include/torch/csrc")
  message(FATAL_ERROR "onebit: ONEBIT_TORCH=${ONEBIT_TORCH}, but there is no include/torch/csrc in it: give "
                      "the folder of libtorch that has include/ and lib/, or AUTO, or OFF")
endif()
set(places "${given}" "$ENV{LIBTORCH}" "${PROJECT_SOURCE_DIR}/build/torch/torch")
foreach(place IN LISTS places)
  if(place AND EXISTS "${place}/include/torch/csrc" AND EXISTS "${place}/lib/libtorch_cpu.so")
    add_library(onebit_libtorch INTERFACE)
    target_include_directories(onebit_libtorch SYSTEM INTERFACE "${place}/include"
                                                                "${place}/include/torch/csrc/api/include")
    target_compile_definitions(onebit_libtorch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
    target_link_libraries(onebit_libtorch INTERFACE "${place}/lib/libtorch_cpu.so" "${place}/lib/libc10.so")
    # It brings or asks for libraries of CUDA by paths of its own, of which ld knows nothing.
    target_link_options(onebit_libtorch INTERFACE "LINKER:--allow-shlib-undefined" "LINKER:-rpath,${place}/lib")
    add_library(onebit::libtorch ALIAS onebit_libtorch)
    break()
  endif()
endforeach()
if(NOT TARGET onebit::libtorch AND PROJECT_IS_TOP_LEVEL) # not into a consumer's log
  message(STATUS "onebit: libtorch not found, so nothing that needs onebit::torch is built")
endif()
