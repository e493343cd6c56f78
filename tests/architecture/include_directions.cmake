# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Checks who includes whom under include/onebit, how long headers are, how long the longest chain of
# includes is, that the core knows no extra, that numbers become text in one header, and that comments
# speak of headers that exist; names every breach.
#
#   cmake [-DINCLUDE_DIR=<folder that holds onebit/>] -P include_directions.cmake

cmake_minimum_required(VERSION 3.25)

# -- the rules ---------------------------------------------------------------------------------

# A unit is a folder under onebit/, or one of the headers that lie in onebit/ itself or in extras/;
# communicator.hpp, any transport without its type, is a unit of its own. A unit may include itself and the
# units named here; a unit that is not named here may not exist.

# From the ground up: what knows no optimizer; what policies promise; what kernels see of a step; policies;
# a step; optimizers.
set(may_include_core "")
set(may_include_concepts core)
set(may_include_kernel core concepts)
set(may_include_communicator core concepts)
set(may_include_transport core concepts communicator)
set(may_include_backend core concepts kernel)
set(may_include_compressor core concepts kernel)
set(may_include_rule core concepts kernel)
set(may_include_schedule core concepts)
set(may_include_collective core concepts kernel communicator compressor)
set(may_include_step core concepts kernel communicator collective)
set(may_include_optimizer core concepts kernel communicator collective step)
set(may_include_compressed_allreduce core concepts kernel communicator backend compressor collective step)
set(may_include_algorithms core concepts kernel communicator backend compressor rule schedule collective optimizer)
set(may_include_any_optimizer core concepts kernel communicator step optimizer)
set(may_include_compiled core kernel communicator transport optimizer algorithms)
set(may_include_onebit algorithms compiled compressed_allreduce transport step ${may_include_algorithms})
set(core_units core concepts kernel communicator transport backend compressor rule schedule collective step optimizer
    compressed_allreduce algorithms compiled any_optimizer onebit)

# The extras: they include the units above, and none of these includes them.
set(may_include_papers ${core_units})
set(may_include_by_name ${core_units} papers)
set(may_include_checkpoint_directory core communicator)
set(may_include_checkpoint_files core communicator checkpoint_directory)
set(may_include_c ${core_units} by_name checkpoint_files checkpoint_directory)
set(may_include_torch core concepts kernel communicator step any_optimizer)
set(may_include_per_tensor core concepts kernel step any_optimizer)
set(may_include_sharded core concepts kernel communicator backend compressor collective step)

# The suites for users' own policies; what they print is for people, in any locale.
set(may_include_testing ${core_units})
set(speaks_to_people testing)

# No optimizer's words in the core.
set(words_of_optimizers "beta[12]?|momentum|moments?|message|exchange|step_plan")

# Words of the extras: no header of the core names them.
set(words_of_extras "torch|c10d|save_all|load_latest|make_optimizer|read_options|option_map|onebit_c|per_tensor")

# The one unit in which a system header may appear; none of them is reached from the umbrella.
set(system_headers mpi.h nccl.h cuda_runtime.h doctest.h)
set(home_of_mpi.h transport)
set(home_of_nccl.h transport)
set(home_of_cuda_runtime.h backend)
set(home_of_doctest.h testing)
# Those of torch begin with one of its folders.
set(torch_headers "^(torch|ATen|c10)/")
set(homes_of_torch torch)
set(umbrella onebit/onebit.hpp)

# Numbers become text in one header, and are never read or written by what follows a locale: streams (for
# bytes, write and read), printf (for texts, %s), strtod and its like.
set(home_of_numbers onebit/core/number_text.hpp)
set(names_of_formatting "to_chars|std::to_string|std::format|v?sn?printf|sscanf|strto[a-z]+|ato[fil]+|sto[dfil]|stold|stou?ll?"
    "|setprecision|ostringstream|[^i]stringstream")
string(JOIN "" names_of_formatting ${names_of_formatting})
set(printed_number "printf *\\([^)]*%[-+ #0-9.*]*[a-rt-zA-Z]")
set(written_to_a_stream "[^A-Za-z0-9_](out|os|log|file|stream|text|cout|cerr|clog)\\)? *<<[^=<]")
set(read_from_a_stream "[^A-Za-z0-9_](in|is|file|stream|cin)\\)? *>>[^=>]")
# Archives of torch hold bytes as strings.
set(string_streams_of onebit/torch/torch.hpp)

set(max_lines 600)
set(max_floors 15)

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

# onebit/rule/adam.hpp -> rule, onebit/optimizer.hpp -> optimizer
function(unit_of header result)
  if(header STREQUAL "onebit/transport/communicator.hpp")
    set(${result} communicator PARENT_SCOPE)
  elseif(header MATCHES "^onebit/extras/([^/.]+)\\.hpp$")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  elseif(header MATCHES "^onebit/([^/.]+)(/|\\.(hpp|cuh)$)")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

foreach(header IN LISTS headers)
  unit_of("${header}" unit)
  if(NOT header MATCHES "\\.(hpp|cuh)$" AND NOT header STREQUAL "onebit/c/onebit.h")
    breach("${header}: is neither .hpp nor .cuh")
    continue()
  elseif(NOT DEFINED may_include_${unit})
    breach("${header}: no rule knows the unit '${unit}'")
    continue()
  endif()

  # Brackets and semicolons would upset lists; includes and line counts need neither.
  file(READ "${INCLUDE_DIR}/${header}" text)
  string(REGEX REPLACE "[][;\\\\]" " " text "${text}")
  string(REGEX MATCHALL "\n" newlines "${text}")
  list(LENGTH newlines n_lines)
  if(n_lines GREATER max_lines)
    breach("${header}: has ${n_lines} lines, more than ${max_lines}")
  endif()

  string(REGEX REPLACE "//[^\n]*" "" code "${text}")
  if(unit IN_LIST core_units AND code MATCHES "[^A-Za-z0-9_](${words_of_extras})[^A-Za-z0-9_]")
    breach("${header}: names '${CMAKE_MATCH_1}', which is an extra's")
  endif()
  if(unit STREQUAL "core" AND code MATCHES "[^A-Za-z0-9_:](${words_of_optimizers})[^A-Za-z0-9_(]")
    breach("${header}: names '${CMAKE_MATCH_1}', which is an optimizer's")
  endif()

  string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" "" code "${code}")
  if(header IN_LIST string_streams_of)
    string(REPLACE "std::ostringstream" "" code "${code}")
  endif()
  if(unit IN_LIST speaks_to_people)
    set(code "")
  endif()
  if(NOT header STREQUAL home_of_numbers AND code MATCHES "[^A-Za-z0-9_](${names_of_formatting})[^A-Za-z0-9_]")
    breach("${header}: formats or reads numbers by '${CMAKE_MATCH_1}'; ${home_of_numbers} does that")
  endif()
  foreach(what IN ITEMS printed_number written_to_a_stream read_from_a_stream)
    if(code MATCHES "${${what}}")
      breach("${header}: '${CMAKE_MATCH_0}' follows a locale if it is a number; see ${home_of_numbers}")
    endif()
  endforeach()

  string(REGEX MATCHALL "//[^\n]*" comments "${text}")
  string(REGEX MATCHALL "[a-z0-9_/]+\\.(hpp|cuh)" named "${comments}")
  foreach(name IN LISTS named)
    if(NOT ";${headers};" MATCHES "[/;]${name};")
      breach("${header}: a comment speaks of ${name}, which does not exist")
    endif()
  endforeach()

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
    elseif(NOT included STREQUAL unit AND NOT included IN_LIST may_include_${unit})
      breach("${header}: ${unit} may not include ${included} (${name})")
    endif()
  endforeach()
endforeach()

# The floor of a header is one above the highest of those that it includes.
set(top 0)
foreach(header IN LISTS headers)
  set(floor_of_${header} 1)
endforeach()
set(changed TRUE)
while(changed AND top LESS 100)
  set(changed FALSE)
  foreach(header IN LISTS headers)
    foreach(included IN LISTS includes_of_${header})
      if(DEFINED floor_of_${included} AND NOT floor_of_${header} GREATER floor_of_${included})
        math(EXPR floor_of_${header} "${floor_of_${included}} + 1")
        set(changed TRUE)
        if(floor_of_${header} GREATER top)
          set(top "${floor_of_${header}}")
          set(highest "${header}")
        endif()
      endif()
    endforeach()
  endforeach()
endwhile()
if(top GREATER max_floors)
  breach("${highest}: a chain of ${top} includes, more than ${max_floors} (or one that ends nowhere)")
endif()

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
message(STATUS "include directions: ${n_headers} headers on ${top} floors keep to the rules")
