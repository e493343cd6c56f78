# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D json=FILE [-D same=FILE] [-D accuracy=LEAST] -P check_json.cmake
#
# Checks what a trainer wrote: every algorithm is there, learned something if `accuracy` is given,
# and ended with the same parameters as in the file `same`.

file(READ "${json}" runs)
string(JSON count LENGTH "${runs}")
if(NOT count EQUAL 9)
  message(FATAL_ERROR "${json} has ${count} algorithms, expected 9")
endif()
if(same)
  file(READ "${same}" others)
endif()
foreach(i RANGE 8)
  string(JSON name GET "${runs}" ${i} algorithm)
  string(JSON hash GET "${runs}" ${i} parameters_hash)
  string(JSON loss GET "${runs}" ${i} validation_loss)
  if(NOT loss GREATER 0)
    message(FATAL_ERROR "${name}: the validation loss is ${loss}")
  endif()
  if(accuracy)
    string(JSON reached GET "${runs}" ${i} test_accuracy)
    if(reached LESS accuracy)
      message(FATAL_ERROR "${name}: accuracy ${reached}, expected at least ${accuracy}")
    endif()
  endif()
  if(same)
    string(JSON other_name GET "${others}" ${i} algorithm)
    string(JSON other_hash GET "${others}" ${i} parameters_hash)
    if(NOT "${name} ${hash}" STREQUAL "${other_name} ${other_hash}")
      message(FATAL_ERROR "${json}: ${name} ${hash}, but ${same}: ${other_name} ${other_hash}")
    endif()
  endif()
  message(STATUS "${name} ${hash}")
endforeach()
