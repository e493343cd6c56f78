# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# onebit_reference: the reference of the public names by Doxygen, in reference/html of the build
# folder. Fails where one of them is not documented, or a comment refers to what is not there.
# onebit_site: README and docs/ as pages, with the reference behind them, in site/html. Debian's
# doxygen-awesome-css, if it is there, makes it readable on a phone.

find_package(Doxygen 1.9.1 QUIET)
if(NOT DOXYGEN_FOUND)
  message(STATUS "onebit: Doxygen 1.9.1 not found, so there is no target onebit_reference")
  return()
endif()

set(onebit_reference "${CMAKE_CURRENT_BINARY_DIR}/reference")
file(MAKE_DIRECTORY "${onebit_reference}")
configure_file(cmake/Doxyfile.in reference/Doxyfile @ONLY)
add_custom_target(
  onebit_reference
  COMMAND Doxygen::doxygen reference/Doxyfile
  WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
  COMMENT "The reference, into ${onebit_reference}/html"
  VERBATIM)

set(onebit_site "${CMAKE_CURRENT_BINARY_DIR}/site")
file(MAKE_DIRECTORY "${onebit_site}")
find_file(ONEBIT_SITE_THEME doxygen-awesome.css PATHS /usr/share/doxygen-awesome-css)
mark_as_advanced(ONEBIT_SITE_THEME)
set(onebit_theme "")
if(ONEBIT_SITE_THEME)
  set(onebit_theme "\"${ONEBIT_SITE_THEME}\"")
endif()
configure_file(cmake/site.in site/Doxyfile @ONLY)
add_custom_target(
  onebit_site
  COMMAND Doxygen::doxygen site/Doxyfile
  WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
  COMMENT "The site, into ${onebit_site}/html"
  VERBATIM)
