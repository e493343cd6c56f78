# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Writes onebit as one header: the headers in ENTRIES and all of onebit's that they include, each
# once, where it is included first.
#
#   cmake [-DOUTPUT=build/onebit_single.hpp] [-DENTRIES="onebit/onebit.hpp;onebit/transport/mpi.hpp"]
#         -P cmake/single_header.cmake
#
# By default the umbrella header and the checkpoints in files. No .cuh: nvcc takes the headers as they are.

cmake_minimum_required(VERSION 3.22)

get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
if(NOT OUTPUT)
  set(OUTPUT "${root}/build/onebit_single.hpp")
endif()
if(NOT ENTRIES)
  set(ENTRIES onebit/onebit.hpp onebit/extras/checkpoint_files.hpp)
endif()
include("${CMAKE_CURRENT_LIST_DIR}/version.cmake")
onebit_read_version("${root}/include/onebit/core/config.hpp" version)

set_property(GLOBAL PROPERTY onebit_done "")
set_property(GLOBAL PROPERTY onebit_only_under_if "")

# Sets `result` to the header's text with what it includes, or to nothing where that is there already.
# What is included under an #if may bring nothing with it, and nobody else may include it: they would
# lack it where the condition does not hold.
function(expand header conditional result)
  set(${result} "" PARENT_SCOPE)
  get_property(done GLOBAL PROPERTY onebit_done)
  if(header IN_LIST done)
    return()
  elseif(NOT EXISTS "${root}/include/${header}")
    message(FATAL_ERROR "single header: there is no ${header}")
  endif()
  set_property(GLOBAL APPEND PROPERTY onebit_done "${header}")
  file(READ "${root}/include/${header}" text)
  string(REPLACE "#pragma once\n" "" text "${text}")

  # Lists do not like brackets and semicolons; directives need neither.
  string(REGEX REPLACE "[][;\\\\]" "_" plain "\n${text}")
  string(REGEX MATCHALL "\n#[ ]*(if|endif|include [<\"]onebit/)[^\n]*" directives "${plain}")
  set(depth 0)
  foreach(directive IN LISTS directives)
    if(directive MATCHES "#[ ]*if")
      math(EXPR depth "${depth} + 1")
    elseif(directive MATCHES "#[ ]*endif")
      math(EXPR depth "${depth} - 1")
    elseif(directive MATCHES "\n(#[ ]*include [<\"](onebit/[^>\"]+)[>\"])(.*)$")
      set(line "${CMAKE_MATCH_1}${CMAKE_MATCH_3}")
      set(included "${CMAKE_MATCH_2}")
      get_property(done GLOBAL PROPERTY onebit_done)
      if(conditional AND NOT included IN_LIST done)
        message(FATAL_ERROR "single header: ${header} is included under an #if, and includes "
                            "${included}, which nothing before it does")
      endif()
      get_property(only_under_if GLOBAL PROPERTY onebit_only_under_if)
      if(depth GREATER 0 AND NOT included IN_LIST done)
        set_property(GLOBAL APPEND PROPERTY onebit_only_under_if "${included}")
        expand("${included}" TRUE inner)
      elseif(depth EQUAL 0 AND included IN_LIST only_under_if)
        message(FATAL_ERROR "single header: ${header} includes ${included}, which is there under an "
                            "#if only")
      else()
        expand("${included}" ${conditional} inner)
      endif()
      string(FIND "\n${text}" "\n${line}\n" at)
      string(LENGTH "${line}" length)
      if(at LESS 0)
        message(FATAL_ERROR "single header: cannot find '${line}' in ${header} again")
      endif()
      string(SUBSTRING "${text}" 0 ${at} before)
      math(EXPR at "${at} + ${length} + 1")
      string(SUBSTRING "${text}" ${at} -1 after)
      set(text "${before}${inner}${after}")
    endif()
  endforeach()
  set(${result} "\n// ---- ${header}\n\n${text}" PARENT_SCOPE)
endfunction()

set(all "")
foreach(entry IN LISTS ENTRIES)
  expand("${entry}" FALSE one)
  string(APPEND all "${one}")
endforeach()

# The licence once, at the top, for all of them.
set(licence "// SPDX-FileCopyrightText: 2026 The onebit authors\n// SPDX-License-Identifier: Apache-2.0\n")
string(REPLACE "${licence}" "" all "${all}")
if(all MATCHES "\n// SPDX-[^\n]*")
  message(FATAL_ERROR "single header: a header has another licence line:${CMAKE_MATCH_0}")
endif()
if(all MATCHES "\n#[ ]*include [<\"]onebit/[^\n]*")
  message(FATAL_ERROR "single header: left over:${CMAKE_MATCH_0}")
endif()
string(REGEX REPLACE "\n\n\n+" "\n\n" all "${all}")
list(JOIN ENTRIES " and " entries)
file(WRITE "${OUTPUT}" "${licence}
// onebit ${version} as one header, made by cmake/single_header.cmake from
// ${entries}.
#pragma once
${all}")
file(SIZE "${OUTPUT}" size)
message(STATUS "single header: ${OUTPUT}, ${size} bytes")
