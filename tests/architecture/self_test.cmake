# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Proves that include_directions.cmake passes a tree that keeps to its rules and finds each kind
# of breach, by breaking a copy of a small tree in one place at a time.
#
#   cmake -DWORK_DIR=<scratch folder> -P self_test.cmake

cmake_minimum_required(VERSION 3.25)

function(write_good_tree)
  file(REMOVE_RECURSE "${WORK_DIR}")
  file(WRITE "${WORK_DIR}/onebit/error.hpp" "#include <string>\n")
  file(WRITE "${WORK_DIR}/onebit/vocabulary.hpp" "#include <cstddef>\n")
  file(WRITE "${WORK_DIR}/onebit/concepts.hpp" "#include <onebit/vocabulary.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/tiled.hpp" "#include <onebit/concepts.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/rule/adam.hpp" "#include \"../tiled.hpp\"\n")
  file(WRITE "${WORK_DIR}/onebit/transport/threads.hpp" "#include \"onebit/error.hpp\"\n")
  file(WRITE "${WORK_DIR}/onebit/transport/wire.hpp" "#include <onebit/concepts.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/transport/mpi.hpp" "#include <mpi.h>\n")
  file(WRITE "${WORK_DIR}/onebit/transport/c10d.hpp" "#include <torch/csrc/c10d.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/collective/dense.hpp" "#include <onebit/transport/wire.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/checkpoint.hpp" "#include <onebit/error.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/engine.hpp"
       "#include <onebit/checkpoint.hpp>\n#include <onebit/collective/dense.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/step_in_progress.hpp" "#include <onebit/tiled.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/running.hpp" "#include <onebit/step_in_progress.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/optimizer.hpp"
       "#include <onebit/engine.hpp>\n#include <onebit/running.hpp>\n")
  file(WRITE "${WORK_DIR}/onebit/onebit.hpp"
       "#include <onebit/optimizer.hpp>\n#include <onebit/rule/adam.hpp>\n")
endfunction()

function(check what expected)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DINCLUDE_DIR=${WORK_DIR}" -P
            "${CMAKE_CURRENT_LIST_DIR}/include_directions.cmake"
    RESULT_VARIABLE rc OUTPUT_VARIABLE out ERROR_VARIABLE out)
  string(REGEX REPLACE "[ \n]+" " " out "${out}") # CMake wraps long messages
  string(FIND "${out}" "${expected}" at)
  if(expected STREQUAL "" AND rc EQUAL 0)
    message(STATUS "${what}: passes, as it must")
  elseif(NOT expected STREQUAL "" AND NOT rc EQUAL 0 AND NOT at EQUAL -1)
    message(STATUS "${what}: found")
  else()
    message(SEND_ERROR "${what}: wanted '${expected}', got status ${rc} and: ${out}")
  endif()
endfunction()

# what, header to append to, text, message
function(check_breach what header text expected)
  write_good_tree()
  file(APPEND "${WORK_DIR}/onebit/${header}" "${text}")
  check("${what}" "${expected}")
endfunction()

write_good_tree()
check("a tree that keeps to the rules" "")

check_breach("leaf includes leaf" rule/adam.hpp "#include <onebit/transport/threads.hpp>\n"
             "rule may not include transport")
check_breach("leaf includes leaf, by a relative path" rule/adam.hpp
             "#  include \"../transport/threads.hpp\"\n" "rule may not include transport")
check_breach("core includes leaf" error.hpp "#include <onebit/rule/adam.hpp>\n"
             "error may not include rule")
check_breach("core includes what comes after it" concepts.hpp "#include <onebit/tiled.hpp>\n"
             "concepts may not include tiled")
check_breach("collective includes a transport" collective/dense.hpp
             "#include <onebit/transport/threads.hpp>\n" "collective may not include transport")
check_breach("rule includes the wire" rule/adam.hpp "#include <onebit/transport/wire.hpp>\n"
             "rule may not include wire")
check_breach("the wire includes a transport" transport/wire.hpp "#include \"threads.hpp\"\n"
             "wire may not include transport")
check_breach("checkpoint includes the core" checkpoint.hpp "#include <onebit/concepts.hpp>\n"
             "checkpoint may not include concepts")
check_breach("engine includes a rule" engine.hpp "#include <onebit/rule/adam.hpp>\n"
             "engine may not include rule")
check_breach("step includes the engine" step_in_progress.hpp "#include <onebit/engine.hpp>\n"
             "step_in_progress may not include engine")
check_breach("collective includes optimizer" collective/dense.hpp
             "#include <onebit/optimizer.hpp>\n" "collective may not include optimizer")
check_breach("optimizer includes the umbrella" optimizer.hpp "#include <onebit/onebit.hpp>\n"
             "optimizer may not include onebit")
check_breach("MPI outside its folder" optimizer.hpp "#include <mpi.h>\n"
             "includes mpi.h, which belongs in transport/ alone")
check_breach("CUDA outside its folder" transport/threads.hpp "#include <cuda_runtime.h>\n"
             "includes cuda_runtime.h, which belongs in backend/ alone")
check_breach("torch outside its folders" engine.hpp "#include <ATen/ATen.h>\n"
             "includes ATen/ATen.h, but torch's headers belong in")
check_breach("the umbrella reaches torch" onebit.hpp "#include <onebit/transport/c10d.hpp>\n"
             "onebit/onebit.hpp: reaches torch.h")
check_breach("the umbrella reaches MPI" onebit.hpp "#include <onebit/transport/mpi.hpp>\n"
             "onebit/onebit.hpp: reaches mpi.h")
check_breach("an unknown folder" detail/misc.hpp "\n" "no rule knows the unit 'detail'")
check_breach("a header that is not there" rule/adam.hpp "#include <onebit/layout.hpp>\n"
             "which does not exist")
string(REPEAT "// a line; with [brackets\n" 351 long)
check_breach("a long header" rule/adam.hpp "${long}" "has 352 lines, more than 350")
