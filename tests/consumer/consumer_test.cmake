# Builds and runs the consumer from an install tree. Called as
#   cmake -D HOW=cmake|pkgconfig -D KIND=static|shared -D PREFIX=dir -D WORK=dir -D LAYERS=a,b
#         -D SOURCE=dir -D CXX=compiler -D LIBDIR=lib -P consumer_test.cmake

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "`${command}` failed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# Whether the program needs our shared library has to follow the kind, or the test tested something else.
function(check_kind program)
  run(readelf -d ${program})
  if(output MATCHES "NEEDED.*librunloom_")
    set(found shared)
  else()
    set(found static)
  endif()
  if(NOT found STREQUAL KIND)
    message(FATAL_ERROR "${program} was linked with the ${found} library instead of the ${KIND} one.")
  endif()
endfunction()

string(REPLACE "," ";" layers "${LAYERS}")
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

if(HOW STREQUAL "cmake")
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK} -D CMAKE_PREFIX_PATH=${PREFIX} -D CMAKE_CXX_COMPILER=${CXX}
      -D LAYERS=${LAYERS} -D KIND=${KIND})
  run(${CMAKE_COMMAND} --build ${WORK})
else()
  set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
  set(ENV{LD_LIBRARY_PATH} ${PREFIX}/${LIBDIR})
  if(KIND STREQUAL "static")
    set(static --static)
    set(link -static)
  endif()
  foreach(layer IN LISTS layers)
    run(pkg-config --cflags --libs ${static} runloom-${layer})
    separate_arguments(flags UNIX_COMMAND "${output}")
    run(${CXX} -std=c++20 ${SOURCE}/${layer}.cpp -o ${WORK}/consumer_${layer} ${flags} ${link})
  endforeach()
endif()

foreach(layer IN LISTS layers)
  check_kind(${WORK}/consumer_${layer})
  run(${WORK}/consumer_${layer})
endforeach()
