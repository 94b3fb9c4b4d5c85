# The consumer as tests: install this build into a scratch prefix, move that somewhere else (an install tree
# holds no absolute path of its own), and build the consumer from there in each way. A layer takes part when
# tests/consumer/<layer>.cpp exists.

set(consumer_dir ${CMAKE_CURRENT_SOURCE_DIR}/consumer)
set(consumer_layers "")
foreach(layer IN LISTS RUNLOOM_LAYERS)
  if(EXISTS ${consumer_dir}/${layer}.cpp)
    list(APPEND consumer_layers ${layer})
  endif()
endforeach()

# A sanitizer's objects can't be linked by a program that is built without it.
if(NOT consumer_layers OR RUNLOOM_SANITIZE)
  return()
endif()
list(JOIN consumer_layers "," consumer_layers)
get_property(consumer_kinds GLOBAL PROPERTY RUNLOOM_KINDS)
find_program(RUNLOOM_PKG_CONFIG pkg-config)
mark_as_advanced(RUNLOOM_PKG_CONFIG)

set(work ${CMAKE_CURRENT_BINARY_DIR}/consumer)
add_test(NAME consumer.clean COMMAND ${CMAKE_COMMAND} -E rm -rf ${work}/first ${work}/prefix)
add_test(NAME consumer.install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${work}/first)
add_test(NAME consumer.move COMMAND ${CMAKE_COMMAND} -E rename ${work}/first ${work}/prefix)
set_tests_properties(consumer.clean PROPERTIES FIXTURES_SETUP consumer_clean)
set_tests_properties(consumer.install PROPERTIES
  FIXTURES_REQUIRED consumer_clean FIXTURES_SETUP consumer_installed)
set_tests_properties(consumer.move PROPERTIES FIXTURES_REQUIRED consumer_installed FIXTURES_SETUP consumer_prefix)
set(consumer_tests consumer.clean consumer.install consumer.move)

foreach(kind IN LISTS consumer_kinds)
  foreach(how IN ITEMS cmake pkgconfig)
    if(how STREQUAL "pkgconfig" AND NOT RUNLOOM_PKG_CONFIG)
      message(STATUS "tests: pkg-config is not installed; its consumer test is left out")
      continue()
    endif()
    set(test consumer.${how}.${kind})
    add_test(NAME ${test} COMMAND ${CMAKE_COMMAND}
      -D HOW=${how} -D KIND=${kind} -D PREFIX=${work}/prefix -D WORK=${work}/${how}-${kind}
      -D LAYERS=${consumer_layers} -D SOURCE=${consumer_dir} -D CXX=${CMAKE_CXX_COMPILER}
      -D LIBDIR=${CMAKE_INSTALL_LIBDIR} -P ${consumer_dir}/consumer_test.cmake)
    set_tests_properties(${test} PROPERTIES FIXTURES_REQUIRED consumer_prefix)
    list(APPEND consumer_tests ${test})
  endforeach()
endforeach()
set_tests_properties(${consumer_tests} PROPERTIES LABELS consumer TIMEOUT 120)
