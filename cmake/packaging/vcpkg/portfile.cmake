# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# An overlay port that lies inside the source it installs: vcpkg install --overlay-ports=cmake/packaging
cmake_path(SET SOURCE_PATH NORMALIZE "${CURRENT_PORT_DIR}/../../..")

set(VCPKG_BUILD_TYPE release) # headers only
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DONEBIT_BUILD_TESTS=OFF -DONEBIT_BUILD_BENCH=OFF -DONEBIT_BUILD_EXAMPLES=OFF -DONEBIT_CUDA=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/onebit)
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/doc")
