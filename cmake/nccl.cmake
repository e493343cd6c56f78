# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Finds NCCL, which has no package file of its own, and makes the target NCCL::nccl, which brings
# the CUDA runtime with it. Without one of them there is no target. Also part of the installed
# package. NCCL_ROOT, in CMake or the environment, says where to look first: the folder nvidia/nccl
# of a Python package has libnccl.so.2 alone.

if(TARGET NCCL::nccl)
  return()
endif()
find_package(CUDAToolkit QUIET)
if(NOT TARGET CUDA::cudart)
  return()
endif()

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
             HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
                                              INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
  target_link_libraries(NCCL::nccl INTERFACE CUDA::cudart)
endif()
