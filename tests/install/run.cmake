# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Takes onebit as users do, and builds and runs a program of theirs. WHAT says how:
#
#   install                configures a fresh copy, which must need no package of the tests, installs
#                          it, moves the installation, and consumes it with find_package, with a
#                          compressor that is run through the installed suite, and with onebit::compiled; and
#                          as a subproject
#   install.pkg_config     consumes that installation with pkg-config and the compiler alone
#   install.single_header  makes the single header, and trains with it: the recorded bits; and with the
#                          optimizers compiled in one file
#   install.deb            makes the Debian package of that copy, unpacks it, and consumes it
#
#   cmake -DWHAT= -DSOURCE_DIR= -DWORK_DIR= -DCXX= -DGENERATOR= -DWITH_MPI= -DWITH_CUDA= -DWITH_NCCL=
#         -P run.cmake

cmake_minimum_required(VERSION 3.22)
include("${SOURCE_DIR}/cmake/version.cmake")
onebit_read_version("${SOURCE_DIR}/include/onebit/core/config.hpp" version)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed with status ${rc}: ${command}")
  endif()
endfunction()

set(configure "${CMAKE_COMMAND}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${CXX}")
set(fresh "${WORK_DIR}/fresh")
set(prefix "${WORK_DIR}/prefix")

# consume(<name> <more arguments for cmake>)
function(consume name)
  step(${configure} -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK_DIR}/${name}" ${ARGN})
  step("${CMAKE_COMMAND}" --build "${WORK_DIR}/${name}")
  step("${WORK_DIR}/${name}/consumer")
  step("${WORK_DIR}/${name}/consumer_compiled")
  if("-DWITH_CONFORMANCE=ON" IN_LIST ARGN)
    step("${WORK_DIR}/${name}/consumer_conformance")
  endif()
endfunction()

# consume_with_pkg_config(<name> <folder of onebit.pc>)
function(consume_with_pkg_config name folder)
  set(ENV{PKG_CONFIG_PATH} "${folder}")
  execute_process(
    COMMAND "${PKG_CONFIG}" --cflags --libs "onebit = ${version}" OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  step("${CXX}" -std=c++20 "${CMAKE_CURRENT_LIST_DIR}/main.cpp" -o "${WORK_DIR}/${name}" ${flags})
  step("${WORK_DIR}/${name}")
endfunction()

if(WHAT STREQUAL "install")
  file(REMOVE_RECURSE "${WORK_DIR}")
  set(without "")
  foreach(package IN ITEMS doctest benchmark CLI11 nlohmann_json Eigen3 MPI CUDAToolkit)
    list(APPEND without "-DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON")
  endforeach()
  step(${configure} -S "${SOURCE_DIR}" -B "${fresh}" -DONEBIT_CUDA=OFF ${without})
  step("${CMAKE_COMMAND}" --install "${fresh}" --prefix "${WORK_DIR}/first")
  file(RENAME "${WORK_DIR}/first" "${prefix}")

  consume(installed "-DVERSION=${version}" "-DCMAKE_PREFIX_PATH=${prefix}" -DWITH_MPI=${WITH_MPI}
          -DWITH_CUDA=${WITH_CUDA} -DWITH_NCCL=${WITH_NCCL} -DWITH_CONFORMANCE=ON)
  consume(subproject "-DONEBIT_SOURCE_DIR=${SOURCE_DIR}")

elseif(WHAT STREQUAL "install.pkg_config")
  find_program(PKG_CONFIG NAMES pkg-config pkgconf)
  if(NOT PKG_CONFIG)
    message(STATUS "skipped: there is no pkg-config")
    return()
  endif()
  consume_with_pkg_config(with_pkg_config "${prefix}/share/pkgconfig")

elseif(WHAT STREQUAL "install.single_header")
  # No other header of onebit's is where the compiler looks.
  set(single "${WORK_DIR}_single_header")
  step("${CMAKE_COMMAND}" "-DOUTPUT=${single}/onebit/onebit.hpp" -P
       "${SOURCE_DIR}/cmake/single_header.cmake")
  step("${CXX}" -std=c++20 "-I${single}" "${SOURCE_DIR}/tests/compilers/bits.cpp" -pthread -o
       "${single}/bits")
  step("${single}/bits")
  step("${CXX}" -std=c++20 -DONEBIT_COMPILED -DCOMPILE_HERE "-I${single}" "${CMAKE_CURRENT_LIST_DIR}/compiled.cpp"
       -pthread -o "${single}/compiled")
  step("${single}/compiled")

elseif(WHAT STREQUAL "install.deb")
  find_program(DPKG_DEB dpkg-deb)
  if(NOT DPKG_DEB)
    message(STATUS "skipped: there is no dpkg-deb")
    return()
  endif()
  set(deb "${WORK_DIR}/deb/onebit-dev_${version}_all.deb")
  set(root "${WORK_DIR}/deb/root")
  file(REMOVE_RECURSE "${WORK_DIR}/deb")
  step("${CMAKE_CPACK_COMMAND}" --config "${fresh}/CPackConfig.cmake" -B "${WORK_DIR}/deb")
  step("${DPKG_DEB}" --info "${deb}")
  step("${DPKG_DEB}" -x "${deb}" "${root}")
  consume(from_deb "-DVERSION=${version}" "-DCMAKE_PREFIX_PATH=${root}/usr")
  find_program(PKG_CONFIG NAMES pkg-config pkgconf)
  if(PKG_CONFIG)
    consume_with_pkg_config(from_deb_with_pkg_config "${root}/usr/share/pkgconfig")
  endif()

else()
  message(FATAL_ERROR "no test is called '${WHAT}'")
endif()
