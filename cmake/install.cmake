# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What is installed: the headers, among them the suites that a user's own policies are held to, what a
# trainer in libtorch needs to start ranks over Gloo, a package for find_package and one for pkg-config,
# all of which may be moved as a whole.

include(CMakePackageConfigHelpers)
set(onebit_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/onebit")

install(DIRECTORY "${onebit_include}/onebit" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh" PATTERN "*.h")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# onebit::gloo: what torch's ProcessGroupGloo.hpp includes and torch does not bring; and
# <ranks.hpp>, processes of one machine as ranks. See examples/libtorch/README.md.
set(onebit_data_dir "${CMAKE_INSTALL_DATADIR}/onebit")
add_library(onebit_installed_gloo INTERFACE)
set_target_properties(onebit_installed_gloo PROPERTIES EXPORT_NAME gloo)
target_include_directories(onebit_installed_gloo SYSTEM
                           INTERFACE "$<INSTALL_INTERFACE:${onebit_data_dir}/libtorch>")
install(DIRECTORY examples/libtorch/declarations/gloo DESTINATION "${onebit_data_dir}/libtorch")
install(FILES examples/libtorch/ranks.hpp DESTINATION "${onebit_data_dir}/libtorch")
install(TARGETS onebit_installed_gloo EXPORT onebit-targets)

# Several export sets, because a set can be loaded only where all that it links was found.
foreach(part IN ITEMS "" -mpi -cuda -nccl)
  string(REPLACE "-" "_" target "onebit${part}")
  install(TARGETS ${target} EXPORT onebit${part}-targets)
  install(EXPORT onebit${part}-targets NAMESPACE onebit:: DESTINATION "${onebit_package_dir}")
endforeach()

configure_package_config_file(cmake/onebit-config.cmake.in onebit-config.cmake
                              INSTALL_DESTINATION "${onebit_package_dir}")
configure_file(cmake/onebit-config-version.cmake.in onebit-config-version.cmake @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/onebit-config.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/onebit-config-version.cmake" cmake/compiled.cmake
              cmake/nccl.cmake
        DESTINATION "${onebit_package_dir}")

# Its prefix is told from where onebit.pc lies. An absolute folder of the headers stays what it is.
set(onebit_pkgconfig_dir "${CMAKE_INSTALL_DATADIR}/pkgconfig")
set(onebit_pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${onebit_pkgconfig_dir}")
  file(RELATIVE_PATH up "/prefix/${onebit_pkgconfig_dir}" "/prefix")
  string(REGEX REPLACE "/$" "" up "${up}")
  set(onebit_pc_prefix "\${pcfiledir}/${up}")
endif()
set(onebit_pc_includedir "\${prefix}")
cmake_path(APPEND onebit_pc_includedir "${CMAKE_INSTALL_INCLUDEDIR}")
configure_file(cmake/onebit.pc.in onebit.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/onebit.pc" DESTINATION "${onebit_pkgconfig_dir}")

# `cpack` in the build folder makes a Debian package.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON) # nothing that is built is installed
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME onebit-dev)
  set(CPACK_PACKAGE_CONTACT "The onebit authors")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "g++ (>= 4:11) | clang (>= 1:14)")
  set(CPACK_DEBIAN_PACKAGE_SUGGESTS "cmake, pkg-config, libopenmpi-dev")
  include(CPack)
endif()
