# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# onebit::compiled, the optimizers of <onebit/compiled.hpp>, which the project that links it compiles
# once, with its own compiler and flags, and only then. Also part of the installed package.

# onebit_compiled_source(<name> <result>): a file that compiles this part.
function(onebit_compiled_source name result)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/onebit_compiled/${name}.cpp")
  set(text "#include <onebit/compiled.hpp>\n")
  if(name STREQUAL "mpi")
    string(APPEND text "#include <onebit/transport/mpi.hpp>\n")
  endif()
  file(CONFIGURE OUTPUT "${file}" CONTENT "${text}ONEBIT_COMPILE(${name})\n" @ONLY)
  set(${result} "${file}" PARENT_SCOPE)
endfunction()

function(onebit_add_compiled)
  if(TARGET onebit_compiled)
    return()
  endif()
  set(sources "")
  foreach(name IN ITEMS adam lamb one_bit_adam one_bit_lamb zero_one_adam threads)
    onebit_compiled_source(${name} source)
    list(APPEND sources "${source}")
  endforeach()
  add_library(onebit_compiled STATIC EXCLUDE_FROM_ALL ${sources})
  add_library(onebit::compiled ALIAS onebit_compiled)
  target_link_libraries(onebit_compiled PUBLIC onebit::onebit)
  target_compile_definitions(onebit_compiled INTERFACE ONEBIT_COMPILED)
  set_target_properties(onebit_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
endfunction()

# What it has of MPI: a file of the library that does not make programs without onebit::mpi link MPI.
function(onebit_add_compiled_mpi)
  if(TARGET onebit_compiled_mpi)
    return()
  endif()
  onebit_compiled_source(mpi source)
  add_library(onebit_compiled_mpi OBJECT EXCLUDE_FROM_ALL "${source}")
  target_link_libraries(onebit_compiled_mpi PRIVATE onebit::mpi)
  set_target_properties(onebit_compiled_mpi PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_sources(onebit_compiled PRIVATE $<TARGET_OBJECTS:onebit_compiled_mpi>)
  target_compile_definitions(onebit_compiled INTERFACE ONEBIT_COMPILED_MPI)
endfunction()
