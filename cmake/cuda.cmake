# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Enables CUDA as option ONEBIT_CUDA asks, and then compiles every header with nvcc. Sets
# ONEBIT_CUDA_ENABLED. AUTO turns CUDA on only where it would build something: nvcc is there, and
# onebit is not a part of another project, which enables CUDA itself if it wants onebit::cuda.

find_program(ONEBIT_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda
             PATH_SUFFIXES bin)
mark_as_advanced(ONEBIT_NVCC)

set(ONEBIT_CUDA_ENABLED OFF)
if(ONEBIT_CUDA STREQUAL "AUTO")
  if(ONEBIT_NVCC AND PROJECT_IS_TOP_LEVEL)
    set(ONEBIT_CUDA_ENABLED ON)
  endif()
elseif(ONEBIT_CUDA)
  if(NOT ONEBIT_NVCC AND NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "onebit: ONEBIT_CUDA=${ONEBIT_CUDA}, but there is no nvcc: put it on PATH, "
                        "or set CMAKE_CUDA_COMPILER or CUDA_HOME")
  endif()
  set(ONEBIT_CUDA_ENABLED ON)
endif()
if(NOT ONEBIT_CUDA_ENABLED)
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER "${ONEBIT_NVCC}")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# CMake 3.25 knows no C++20 for CUDA: CUDA_STANDARD 20 fails when it generates, and cxx_std_20 of
# an interface library silently becomes C++17 in a .cu file.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
  set(CMAKE_CUDA20_COMPILE_FEATURES cuda_std_20)
endif()

# Every header alone through nvcc, warnings being errors: a user's .cu file includes them too. The
# MPI transport needs MPI's headers and is a host matter, and so are torch's; NCCL's is compiled where
# NCCL was found. The suites need doctest, and come with the tests for devices.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
     "${PROJECT_SOURCE_DIR}/include/onebit/*.hpp" "${PROJECT_SOURCE_DIR}/include/onebit/*.cuh")
list(FILTER headers EXCLUDE REGEX "(transport/mpi|/torch/|/testing/)[a-z0-9_]*\\.hpp$")
if(NOT TARGET NCCL::nccl)
  list(FILTER headers EXCLUDE REGEX "transport/nccl[a-z_]*\\.hpp$")
endif()
set(host_sources "")
set(device_sources "")
foreach(header IN LISTS headers)
  string(REGEX REPLACE "[/.]" "_" name "${header}")
  set(source "${PROJECT_BINARY_DIR}/cuda_headers/${name}.cu")
  file(CONFIGURE OUTPUT "${source}" CONTENT "#include <${header}>\n" @ONLY)
  if(header MATCHES "\\.cuh$")
    list(APPEND device_sources "${source}")
  else()
    list(APPEND host_sources "${source}")
  endif()
endforeach()
# Only .cuh files have code of their own for devices, so that only they are worth compiling for every
# architecture: a target of their own, whose CUDA_ARCHITECTURES may differ.
set(ONEBIT_CUDA_HEADER_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES}"
    CACHE STRING "What onebit_verify_cuda_headers compiles the .cuh files for")
add_library(onebit_verify_cuda_headers OBJECT EXCLUDE_FROM_ALL ${host_sources})
add_library(onebit_verify_cuda_device_headers OBJECT EXCLUDE_FROM_ALL ${device_sources})
set_target_properties(onebit_verify_cuda_device_headers
                      PROPERTIES CUDA_ARCHITECTURES "${ONEBIT_CUDA_HEADER_ARCHITECTURES}")
add_dependencies(onebit_verify_cuda_headers onebit_verify_cuda_device_headers)
foreach(target IN ITEMS onebit_verify_cuda_headers onebit_verify_cuda_device_headers)
  target_link_libraries(${target} PRIVATE onebit_cuda $<TARGET_NAME_IF_EXISTS:NCCL::nccl>)
  target_compile_features(${target} PRIVATE cuda_std_20)
  target_compile_options(${target} PRIVATE "SHELL:-Werror all-warnings")
endforeach()
