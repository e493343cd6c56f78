# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Checks who includes whom under include/onebit and how long headers are; names every breach.
#
#   cmake [-DINCLUDE_DIR=<folder that holds onebit/>] -P include_directions.cmake

cmake_minimum_required(VERSION 3.25)

# -- the rules ---------------------------------------------------------------------------------

# A unit is a folder under onebit/, or the stem of a header that lies in onebit/ itself; wire.hpp,
# any transport without its type, is a unit of its own, and so is onebit.h, which C programs include.
# A unit may include the units named here; a unit that is not named here may not exist.

# The core: each may include those before it.
set(core error vocabulary concepts element layout wide_lanes launches memory_view now numbers tensor layer_sums tiled
    clip)
set(before "")
foreach(unit IN LISTS core)
  set(may_include_${unit} ${unit} ${before})
  list(APPEND before ${unit})
endforeach()
set(may_include_policy_checks concepts wire)

# The policies know the core, or only its concepts, and not each other.
set(may_include_transport element error vocabulary concepts transport)
set(may_include_wire error vocabulary concepts)
set(may_include_schedule error vocabulary concepts schedule)
set(may_include_backend ${core} backend)
set(may_include_compress ${core} compress)
set(may_include_rule ${core} rule)
# Collectives compress, and send over a wire: over whatever transport, on whatever backend.
set(may_include_collective ${core} policy_checks compress wire collective)

# An optimizer: what its parts say to others, the parts, one step, and what a trainer holds.
set(may_include_digest "")
set(may_include_checkpoint error digest)
set(may_include_checkpoint_directory error digest)
set(may_include_checkpoint_files error vocabulary checkpoint_directory)
set(may_include_roll_call ${core} digest checkpoint wire)
set(may_include_report ${core} wire)
set(may_include_shards ${core} wire)
set(may_include_given_moments ${core})
set(may_include_flat_tensors error element tensor)
set(may_include_tensor_table ${core} digest flat_tensors)
set(may_include_engine ${core} flat_tensors tensor_table collective digest checkpoint roll_call shards wire)
set(may_include_owed ${core} collective)
set(may_include_restore ${core} collective checkpoint flat_tensors owed roll_call wire)
set(may_include_verify error digest checkpoint wire)
set(may_include_regroup ${may_include_restore} digest restore)
set(may_include_moving_state ${core} checkpoint)
set(may_include_change_tensors ${may_include_restore} digest moving_state restore)
set(may_include_rebind error element flat_tensors memory_view tensor)
set(may_include_own_card checkpoint roll_call verify)
set(may_include_step_in_progress ${core} report shards verify)
set(may_include_inspect ${core})
set(may_include_running error step_in_progress)
set(may_include_optimizer_class ${may_include_engine} ${may_include_step_in_progress} policy_checks engine restore
                                given_moments inspect regroup running)
set(may_include_optimizer ${may_include_optimizer_class} change_tensors own_card rebind optimizer_class)
set(may_include_algorithms ${may_include_optimizer} backend compress rule schedule optimizer)
set(may_include_onebit ${may_include_algorithms} transport algorithms)
set(may_include_own_part ${core} collective flat_tensors)
set(may_include_other_owners ${core} collective checkpoint moving_state own_card own_part roll_call running transport
                             wire)
set(may_include_sharded_parts ${may_include_optimizer} transport own_part rebind report running tensor_table verify)
set(may_include_sharded ${may_include_algorithms} algorithms other_owners sharded_parts)

# Faces of it: without its type, by name, from C.
set(may_include_any_optimizer ${may_include_optimizer} optimizer)
set(may_include_named_options error)
set(may_include_read_options ${may_include_sharded} named_options sharded)
set(may_include_make_optimizer ${may_include_read_options} any_optimizer read_options)
set(may_include_onebit_h "")
set(may_include_c_objects ${may_include_make_optimizer} make_optimizer onebit_h)
set(may_include_onebit_c ${may_include_c_objects} c_objects checkpoint_files transport)

# An adapter puts a face of another library on it.
set(may_include_adapter ${core} wire report any_optimizer adapter moving_state)

# The one unit in which a system header may appear; none of them is reached from the umbrella.
set(system_headers mpi.h nccl.h cuda_runtime.h)
set(home_of_mpi.h transport)
set(home_of_nccl.h transport)
set(home_of_cuda_runtime.h backend)
# Those of torch begin with one of its folders.
set(torch_headers "^(torch|ATen|c10)/")
set(homes_of_torch adapter transport)
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
  if(header STREQUAL "onebit/transport/wire.hpp")
    set(${result} wire PARENT_SCOPE)
  elseif(header STREQUAL "onebit/onebit.h")
    set(${result} onebit_h PARENT_SCOPE)
  elseif(header MATCHES "^onebit/([^/.]+)(/|\\.(hpp|cuh)$)")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

foreach(header IN LISTS headers)
  unit_of("${header}" unit)
  if(NOT header MATCHES "\\.(hpp|cuh)$" AND NOT unit STREQUAL "onebit_h")
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

    if(name MATCHES "${torch_headers}")
      list(APPEND includes_of_${header} "torch.h")
      if(NOT unit IN_LIST homes_of_torch)
        breach("${header}: includes ${name}, but torch's headers belong in ${homes_of_torch}")
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
  if(header IN_LIST system_headers OR header MATCHES "^torch\\.h$|\\.cuh$")
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
