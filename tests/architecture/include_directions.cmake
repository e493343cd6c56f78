# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Checks who includes whom under include/onebit and how long headers are; names every breach.
#
#   cmake [-DINCLUDE_DIR=<folder that holds onebit/>] -P include_directions.cmake

cmake_minimum_required(VERSION 3.25)

# -- the rules ---------------------------------------------------------------------------------

# A unit is a folder under onebit/, or the stem of a header that lies in onebit/ itself. A unit may
# include the units named here; a unit that is not named here may not exist.
set(core error concepts element layout step tensor)
set(leaves backend transport compress schedule rule)

foreach(unit IN LISTS core)
  set(may_include_${unit} ${core})
endforeach()
foreach(unit IN LISTS leaves)
  set(may_include_${unit} ${core} ${unit})
endforeach()
set(may_include_collective ${core} ${leaves} collective)
# What the loop is made of besides: checkpoints, the checks at construction, the report of a step.
set(may_include_state ${core} state)
set(may_include_roll_call ${core} state roll_call)
set(may_include_report ${core} transport report)
set(may_include_loop ${may_include_collective} roll_call state report loop)
set(may_include_optimizer ${may_include_loop} optimizer)
# Arithmetic on sizes and counts: it needs none of the policies that it predicts.
set(may_include_cost_model ${core} cost_model)
set(may_include_algorithms ${may_include_optimizer} algorithms)
set(may_include_onebit ${may_include_algorithms} onebit)

# The one unit in which a system header may appear; none of them is reached from the umbrella.
set(system_headers mpi.h nccl.h cuda_runtime.h)
set(home_of_mpi.h transport)
set(home_of_nccl.h transport)
set(home_of_cuda_runtime.h backend)
set(umbrella onebit/onebit.hpp)

set(max_lines 350)

# -- the check ---------------------------------------------------------------------------------

if(NOT INCLUDE_DIR)
  cmake_path(SET INCLUDE_DIR NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../include")
endif()
set(breaches "")
macro(breach)
  string(APPEND breaches "  " ${ARGN} "\n")
endmacro()

file(GLOB_RECURSE headers RELATIVE "${INCLUDE_DIR}" "${INCLUDE_DIR}/onebit/*")
list(LENGTH headers n_headers)
if(n_headers EQUAL 0)
  message(FATAL_ERROR "include directions: no headers in ${INCLUDE_DIR}/onebit")
endif()

# onebit/rule/adam.hpp -> rule, onebit/error.hpp -> error
function(unit_of header result)
  if(header MATCHES "^onebit/([^/.]+)(/|\\.(hpp|cuh)$)")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

foreach(header IN LISTS headers)
  unit_of("${header}" unit)
  if(NOT header MATCHES "\\.(hpp|cuh)$")
    breach("${header}: is neither .hpp nor .cuh")
    continue()
  elseif(NOT DEFINED may_include_${unit})
    breach("${header}: no rule knows the unit '${unit}'")
    continue()
  endif()

  # Brackets and semicolons would upset lists; includes and line counts need neither.
  file(READ "${INCLUDE_DIR}/${header}" text)
  string(REGEX REPLACE "[][;\\\\]" "_" text "${text}")
  string(REGEX MATCHALL "\n" newlines "${text}")
  list(LENGTH newlines n_lines)
  if(n_lines GREATER max_lines)
    breach("${header}: has ${n_lines} lines, more than ${max_lines}")
  endif()

  string(REGEX MATCHALL "(^|\n)[ \t]*#[ \t]*include[ \t]*[<\"][^>\"\n]+" lines "${text}")
  set(includes_of_${header} "")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "([<\"])([^>\"\n]+)$" matched "${line}")
    set(quote "${CMAKE_MATCH_1}")
    set(name "${CMAKE_MATCH_2}")
    get_filename_component(base "${name}" NAME)
    if(base IN_LIST system_headers)
      list(APPEND includes_of_${header} "${base}")
      if(NOT unit STREQUAL home_of_${base})
        breach("${header}: includes ${base}, which belongs in ${home_of_${base}}/ alone")
      endif()
      continue()
    endif()

    # A quoted name is looked for beside the file first, as the compiler does.
    get_filename_component(folder "${header}" DIRECTORY)
    cmake_path(SET beside NORMALIZE "${folder}/${name}")
    if(quote STREQUAL "\"" AND EXISTS "${INCLUDE_DIR}/${beside}")
      set(name "${beside}")
    endif()
    if(NOT name MATCHES "^onebit/")
      if(quote STREQUAL "\"")
        breach("${header}: includes \"${name}\", which does not exist")
      endif()
      continue()
    endif()
    list(APPEND includes_of_${header} "${name}")
    unit_of("${name}" included)
    if(NOT EXISTS "${INCLUDE_DIR}/${name}")
      breach("${header}: includes ${name}, which does not exist")
    elseif(NOT included IN_LIST may_include_${unit})
      breach("${header}: ${unit} may not include ${included} (${name})")
    endif()
  endforeach()
endforeach()

set(reached "")
set(next "${umbrella}")
while(next)
  list(POP_FRONT next header)
  list(APPEND reached "${header}")
  if(header IN_LIST system_headers OR header MATCHES "\\.cuh$")
    breach("${umbrella}: reaches ${header}")
  endif()
  foreach(included IN LISTS includes_of_${header})
    if(NOT included IN_LIST reached AND NOT included IN_LIST next)
      list(APPEND next "${included}")
    endif()
  endforeach()
endwhile()

if(breaches)
  message(FATAL_ERROR "include directions:\n${breaches}")
endif()
message(STATUS "include directions: ${n_headers} headers keep to the rules")
