# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The trainers of examples/ take Eigen 3.4 and 5, and refuse 3.3. A package of Eigen accepts requests
# for its own major version only.
#
#   cmake -DSOURCE_DIR= -DWORK_DIR= -P eigen_versions.cmake

cmake_minimum_required(VERSION 3.22)
include(CMakePackageConfigHelpers)

file(REMOVE_RECURSE "${WORK_DIR}")
# What else examples/common looks for, and compiles, is left out.
file(WRITE "${WORK_DIR}/CMakeLists.txt" "cmake_minimum_required(VERSION 3.22)
project(eigen_versions LANGUAGES NONE)
macro(find_package name)
  if(\"\${name}\" STREQUAL Eigen3)
    _find_package(\${ARGV} PATHS \"\${package}\" NO_DEFAULT_PATH)
  endif()
endmacro()
foreach(left_out IN ITEMS include check_cxx_compiler_flag add_library target_compile_features
                          target_include_directories target_link_libraries target_compile_options)
  function(\${left_out})
  endfunction()
endforeach()
add_subdirectory(\"${SOURCE_DIR}/examples/common\" common)
")
foreach(version IN ITEMS 5.0.1 3.4.0 3.3.9)
  set(package "${WORK_DIR}/${version}")
  file(WRITE "${package}/Eigen3Config.cmake" "")
  write_basic_package_version_file("${package}/Eigen3ConfigVersion.cmake" VERSION ${version}
                                   COMPATIBILITY SameMajorVersion ARCH_INDEPENDENT)
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${WORK_DIR}" -B "${package}/build"
                          "-Dpackage=${package}"
                  RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(version STREQUAL 3.3.9)
    if(NOT text MATCHES "need Eigen 3.4 or newer, not 3.3.9")
      message(FATAL_ERROR "Eigen ${version} is not refused in words:\n${text}")
    endif()
  elseif(failed)
    message(FATAL_ERROR "Eigen ${version} is refused:\n${text}")
  endif()
endforeach()
message(STATUS "eigen_versions: 3.4.0 and 5.0.1 are taken, 3.3.9 is refused")
