# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Copies the repository to a folder, with the faults of mutants.cmake in its headers, all switched off: a
# program of that copy runs with fault n where the environment variable ONEBIT_PLANTED is n.
#
#   cmake -DTO=<folder> -P tests/mutants/plant.cmake
#
# The list of faults goes to <folder>/planted.txt: number, header and name, with tabs between them. Files
# that have not changed are left alone, and so is <folder>/build: what was built there is built on.

cmake_minimum_required(VERSION 3.22)

if(NOT TO)
  message(FATAL_ERROR "plant.cmake: give the folder: -DTO=<folder>")
endif()
get_filename_component(to "${TO}" ABSOLUTE)
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

# Leaves a file that says the same already as it is, and as old as it is.
function(write_if_other file text)
  set(old "")
  if(EXISTS "${file}")
    file(READ "${file}" old)
  endif()
  if(NOT EXISTS "${file}" OR NOT "x${old}" STREQUAL "x${text}")
    file(WRITE "${file}" "${text}")
  endif()
endfunction()

# -- the faults --------------------------------------------------------------------------------

set_property(GLOBAL PROPERTY n_planted 0)
set_property(GLOBAL PROPERTY planted_headers "onebit/core/config.hpp")
set_property(GLOBAL PROPERTY planted_list "")

# The text of a header with what is planted in it so far.
function(read_header header result)
  get_property(text GLOBAL PROPERTY "text of ${header}")
  if("x${text}" STREQUAL "x")
    if(NOT EXISTS "${root}/include/${header}")
      message(FATAL_ERROR "plant.cmake: there is no include/${header}")
    endif()
    file(READ "${root}/include/${header}" text)
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# mutant(name header old new): see mutants.cmake.
function(mutant name header old new)
  get_property(n GLOBAL PROPERTY n_planted)
  math(EXPR n "${n} + 1")
  set(fault "mutants.cmake: fault ${n}, \"${name}\"")
  file(READ "${root}/include/${header}" original)
  string(FIND "${original}" "${old}" first)
  string(FIND "${original}" "${old}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "${fault}: ${header} must have its old text exactly once:\n${old}")
  endif()
  string(FIND "${new}" "PLANTED" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${fault}: its new text does not say PLANTED")
  endif()
  read_header("${header}" text)
  string(FIND "${text}" "${old}" first)
  if(first EQUAL -1)
    message(FATAL_ERROR "${fault}: another fault has replaced its old text in ${header}")
  endif()
  string(REPLACE "PLANTED" "(::onebit_planted == ${n})" new "${new}")
  string(REPLACE "${old}" "${new}" text "${text}")

  set_property(GLOBAL PROPERTY "text of ${header}" "${text}")
  set_property(GLOBAL PROPERTY n_planted ${n})
  set_property(GLOBAL APPEND PROPERTY planted_headers "${header}")
  set_property(GLOBAL APPEND_STRING PROPERTY planted_list "${n}\t${header}\t${name}\n")
endfunction()

include("${CMAKE_CURRENT_LIST_DIR}/mutants.cmake")

# -- the switch --------------------------------------------------------------------------------

set(switch [==[
#include <cstdlib>

/// The fault that is switched on; 0: none.
inline const int onebit_planted = [] {
  const char* const n = std::getenv("ONEBIT_PLANTED");
  return n != nullptr ? std::atoi(n) : 0;
}();

]==])
read_header(onebit/core/config.hpp config)
set(opening "namespace onebit::inline v0_2 {\n")
string(FIND "${config}" "${opening}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "plant.cmake: core/config.hpp does not open the namespace as expected")
endif()
string(SUBSTRING "${config}" 0 ${at} before)
string(SUBSTRING "${config}" ${at} -1 after)
set_property(GLOBAL PROPERTY "text of onebit/core/config.hpp" "${before}${switch}${after}")

get_property(headers GLOBAL PROPERTY planted_headers)
list(REMOVE_DUPLICATES headers)
foreach(header IN LISTS headers)
  read_header("${header}" text)
  if(NOT header STREQUAL "onebit/core/config.hpp")
    string(REPLACE "#pragma once\n" "#pragma once\n\n#include <onebit/core/config.hpp>\n" text "${text}")
  endif()
  write_if_other("${to}/include/${header}" "${text}")
endforeach()

# -- the rest of the copy ----------------------------------------------------------------------

execute_process(
  COMMAND git -c core.quotePath=false ls-files --cached --others --exclude-standard --deduplicate
  WORKING_DIRECTORY "${root}"
  OUTPUT_VARIABLE files
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "\n$" "" files "${files}")
string(REPLACE "\n" ";" files "${files}")
foreach(file IN LISTS files)
  string(REGEX REPLACE "^include/" "" header "${file}")
  if(NOT EXISTS "${root}/${file}" OR IS_DIRECTORY "${root}/${file}" OR header IN_LIST headers)
    continue() # removed and not committed; another repository; written above
  endif()
  get_filename_component(folder "${to}/${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  file(COPY_FILE "${root}/${file}" "${to}/${file}" ONLY_IF_DIFFERENT)
  execute_process(COMMAND test -x "${root}/${file}" RESULT_VARIABLE plain)
  if(plain EQUAL 0)
    file(CHMOD "${to}/${file}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                           WORLD_READ WORLD_EXECUTE)
  endif()
endforeach()

# What an earlier copy had and this one has not.
file(GLOB entries RELATIVE "${to}" "${to}/*" "${to}/.*")
foreach(entry IN LISTS entries)
  if(entry STREQUAL "build" OR entry STREQUAL "planted.txt")
    continue()
  endif()
  set(there "${entry}")
  if(IS_DIRECTORY "${to}/${entry}")
    file(GLOB_RECURSE there RELATIVE "${to}" "${to}/${entry}/*" "${to}/${entry}/.*")
  endif()
  foreach(file IN LISTS there)
    if(NOT file IN_LIST files OR NOT EXISTS "${root}/${file}")
      file(REMOVE "${to}/${file}")
    endif()
  endforeach()
endforeach()

get_property(list GLOBAL PROPERTY planted_list)
get_property(n GLOBAL PROPERTY n_planted)
write_if_other("${to}/planted.txt" "${list}")
message(STATUS "planted ${n} faults in ${to}")
