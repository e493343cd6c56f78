# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# conan create cmake/packaging/conan

import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load, rmdir


class Onebit(ConanFile):
    name = "onebit"
    description = "Distributed optimizers that communicate one bit per parameter"
    license = "Apache-2.0"
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    @property
    def _root(self):
        return os.path.normpath(os.path.join(self.recipe_folder, "..", "..", ".."))

    def set_version(self):
        header = load(self, os.path.join(self._root, "include", "onebit", "core", "config.hpp"))
        number = int(re.search(r"^#define ONEBIT_VERSION (\d+)", header, re.M).group(1))
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def export_sources(self):
        for part in ("CMakeLists.txt", "LICENSE", "include/*", "cmake/*", "examples/libtorch/*"):
            copy(self, part, self._root, self.export_sources_folder, excludes="cmake/packaging/*")

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "BENCH", "EXAMPLES"):
            toolchain.cache_variables[f"ONEBIT_BUILD_{part}"] = False
        toolchain.cache_variables["ONEBIT_CUDA"] = "OFF"
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        CMake(self).install()
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        # Conan makes these itself.
        for made in ("cmake", "doc", "pkgconfig"):
            rmdir(self, os.path.join(self.package_folder, "share", made))

    def package_id(self):
        self.info.clear()

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.system_libs = ["pthread"]
        self.cpp_info.set_property("cmake_file_name", "onebit")
        self.cpp_info.set_property("cmake_target_name", "onebit::onebit")
        self.cpp_info.set_property("pkg_config_name", "onebit")
