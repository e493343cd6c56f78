# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D program=FILE -D host=FILE -D text=FILE -D out=DIRECTORY -P check.cmake
#
# The trainer on devices: the losses of the one on the host, but for rounding, with one process and
# with two; the same bits from graphs, and from a run that was left off and resumed. With one device
# there are no two processes, and it says so.

set(options --text "${text}" --steps 20 --width 16 --layers 1 --context 16 --freeze-after 10
            --algorithm adam --algorithm one_bit_adam)
file(REMOVE_RECURSE "${out}")
file(MAKE_DIRECTORY "${out}")

function(run what)
  execute_process(${ARGN} RESULTS_VARIABLE results OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  foreach(result IN LISTS results)
    if(NOT result EQUAL 0)
      message(FATAL_ERROR "${what}: ${results}\n${output}\n${errors}")
    endif()
  endforeach()
endfunction()

# n processes; each one's output goes into the next, which does not read it: rank 0, which alone prints,
# comes last.
function(train name n)
  set(commands "")
  math(EXPR last "${n} - 1")
  foreach(place RANGE ${last})
    math(EXPR rank "${last} - ${place}")
    list(APPEND commands COMMAND "${CMAKE_COMMAND}" -E env RANK=${rank} WORLD_SIZE=${n} "${program}"
         ${options} --matmul own --out "${out}/${name}" --json "${out}/${name}.json" --id-file
         "${out}/${name}.id" ${ARGN})
  endforeach()
  run("${name}" ${commands})
  message(STATUS "${name}: done")
endfunction()
function(train_on_host name n)
  run("${name}" COMMAND "${host}" ${options} --ranks ${n} --out "${out}/${name}" --json
      "${out}/${name}.json")
endfunction()

function(field to name i key)
  file(READ "${out}/${name}.json" runs)
  string(JSON value GET "${runs}" ${i} ${key})
  set(${to} "${value}" PARENT_SCOPE)
endfunction()
# In millionths.
function(micro to value)
  if(NOT value MATCHES "^([0-9]+)\\.([0-9]+)$")
    message(FATAL_ERROR "${value} is no loss")
  endif()
  string(SUBSTRING "${CMAKE_MATCH_2}000000" 0 6 digits)
  string(REGEX REPLACE "^0+" "" digits "${CMAKE_MATCH_1}${digits}")
  set(${to} ${digits} PARENT_SCOPE)
endfunction()
function(check_losses a b)
  foreach(i RANGE 1)
    field(x ${a} ${i} validation_loss)
    field(y ${b} ${i} validation_loss)
    micro(mx ${x})
    micro(my ${y})
    math(EXPR apart "(${mx} - ${my}) * (${mx} - ${my})")
    math(EXPR most "(${mx} / 1000) * (${mx} / 1000)")
    message(STATUS "${a} and ${b}: ${x} and ${y}")
    if(apart GREATER most)
      message(FATAL_ERROR "the losses differ by more than a thousandth")
    endif()
  endforeach()
endfunction()
function(check_bits a b)
  foreach(i RANGE 1)
    field(x ${a} ${i} parameters_hash)
    field(y ${b} ${i} parameters_hash)
    if(NOT x STREQUAL y)
      message(FATAL_ERROR "${a} and ${b}: ${x} and ${y}")
    endif()
  endforeach()
  message(STATUS "${a} and ${b}: the same bits")
endfunction()

train_on_host(host1 1)
train(one 1)
check_losses(host1 one)

execute_process(COMMAND "${CMAKE_COMMAND}" -E env RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "${program}"
                        --probe RESULT_VARIABLE alone)
set(n 2)
if(alone)
  set(n 1)
  message(STATUS "skipped: two processes: there is one CUDA device")
endif()
train_on_host(host 2)
train(processes ${n})
if(n EQUAL 2)
  check_losses(host processes)
endif()
train(graphs ${n} --graphs)
check_bits(processes graphs)
set(saved --checkpoint "${out}/saved" --checkpoint-every 7)
train(left_off ${n} ${saved} --stop-after 15)
train(resumed ${n} ${saved} --resume)
check_bits(processes resumed)
