# Installs the build into a folder of its own; trains with the programs from there; and builds, in each way that the
# documents name and with each compiler that is there, a program that uses it.
function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(must_say text)
  must(${ARGN})
  if(NOT output MATCHES "${text}")
    message(FATAL_ERROR "${ARGN}\nprinted, without '${text}':\n${output}")
  endif()
endfunction()

function(must_refuse text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")   # CMake breaks its lines
  if(status EQUAL 0 OR NOT output MATCHES "${text}")
    message(FATAL_ERROR "${ARGN}\nended with ${status}, expected a refusal with '${text}':\n${output}")
  endif()
endfunction()

function(must_run_consumer program)
  must_say("rank 2 of 3: sum 6" "${program}")
  must("${PREFIX}/bin/lockstep" run -n 2 "${program}")
endfunction()

set(PREFIX "${WORK_FOLDER}/prefix")
unset(ENV{LD_LIBRARY_PATH})
file(REMOVE_RECURSE "${WORK_FOLDER}")
must(${CMAKE_COMMAND} --install "${BUILD_FOLDER}" --prefix "${PREFIX}")

# The programs find LibTorch and each other.
must_say("lockstep [0-9.]+" "${PREFIX}/bin/lockstep" --version)
foreach(ranks IN ITEMS 1 2)
  must_say("done: val_loss=[0-9.]+ steps=2 " "${PREFIX}/bin/lockstep" train mlp --out "${WORK_FOLDER}/run-${ranks}"
    --steps 2 -n ${ranks} --threads 1)
endforeach()
must_say("Usage: lockstep bench step" "${PREFIX}/bin/lockstep" bench step --help)
set(complete bash "${SOURCE_FOLDER}/completion.sh" "${PREFIX}")
must_say("^--ranks\n" ${complete} train mlp --ra)
must_say("^gpt\n" ${complete} train g)
must_say("^--node-rank\n" ${complete} run --node-)

# The manual names every command that is installed.
file(READ "${PREFIX}/share/man/man1/lockstep.1" manual)
must("${PREFIX}/bin/lockstep" help)
string(REGEX MATCHALL "\n  [a-z]+ " commands "${output}")
foreach(command IN LISTS commands)
  string(STRIP "${command}" command)
  if(NOT manual MATCHES "\n[.]B ${command}\n")
    message(FATAL_ERROR "lockstep.1 does not name the command ${command}")
  endif()
endforeach()

# A consumer, by CMake with both signatures of target_link_libraries(), and by pkg-config.
find_program(GXX g++)
set(CLANG "${CXX_COMPILER}")
if(NOT CLANG MATCHES "clang")
  unset(CLANG)
  find_program(CLANG NAMES clang++-16 clang++)
endif()
set(ENV{CMAKE_PREFIX_PATH} "${PREFIX}:${LIBTORCH_FOLDER}")
foreach(case IN ITEMS "plain|${GXX}" "keyword|${CLANG}")
  string(REPLACE "|" ";" case "${case}")
  list(GET case 0 signature)
  list(GET case 1 compiler)
  if(NOT compiler)
    message(STATUS "left out: a compiler for ${signature}")
    continue()
  endif()
  set(folder "${WORK_FOLDER}/${signature}")
  must(${CMAKE_COMMAND} -S "${SOURCE_FOLDER}/${signature}" -B "${folder}" -G Ninja -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_CXX_COMPILER=${compiler}" -DTORCH=${WITH_TORCH})
  must(${CMAKE_COMMAND} --build "${folder}")
  must_run_consumer("${folder}/consumer")
endforeach()
find_program(PKG_CONFIG pkg-config)
if(PKG_CONFIG AND GXX)
  set(ENV{PKG_CONFIG_PATH} "${PREFIX}/${LIBRARY_FOLDER}/pkgconfig")
  must(${PKG_CONFIG} --cflags --libs lockstep)
  string(STRIP "${output}" output)
  separate_arguments(flags UNIX_COMMAND "${output}")
  must(${GXX} -std=c++20 "${SOURCE_FOLDER}/consumer.cc" -o "${WORK_FOLDER}/by_pkg_config" ${flags})
  must_run_consumer("${WORK_FOLDER}/by_pkg_config")
endif()

unset(ENV{CMAKE_PREFIX_PATH})

# A LibTorch of another version is refused, by the consumer's project and by ours.
set(fake "${WORK_FOLDER}/fake")
file(WRITE "${fake}/include/torch/csrc/api/include/torch/torch.h" "")
file(WRITE "${fake}/include/torch/headeronly/version.h"
  "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n#define TORCH_VERSION_PATCH 0\n")
foreach(library IN ITEMS c10 torch_cpu)
  file(MAKE_DIRECTORY "${fake}/lib")
  file(CREATE_LINK "${LIBTORCH_FOLDER}/lib/lib${library}.so" "${fake}/lib/lib${library}.so" SYMBOLIC)
endforeach()
must_refuse("unsuitable version \"2.99.0\"" ${CMAKE_COMMAND} -S "${SOURCE_FOLDER}/keyword" -B "${WORK_FOLDER}/refused"
  -G Ninja "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DLibTorch_ROOT=${fake}")
must_refuse("unsuitable version \"2.99.0\"" ${CMAKE_COMMAND} -S "${SOURCE_FOLDER}/../.." -B "${WORK_FOLDER}/refused_here"
  -G Ninja "-DLibTorch_ROOT=${fake}" -DLOCKSTEP_TESTS=OFF)
message(STATUS "installed, found, built, run")
