# Each program of examples/cpp is run by a client from outside: tests/examples/<stem>_test.py is started with
# the path of the program, starts that on port 0, and talks to it. It uses nothing but Python's standard library,
# so that it can drive a build under any sanitizer. An example without such a file fails.

if(NOT RUNLOOM_EXAMPLES OR NOT Python3_Interpreter_FOUND)
  return()
endif()
file(GLOB examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/cpp/*.cpp)
foreach(example IN LISTS examples)
  cmake_path(GET example STEM stem)
  add_test(NAME example.${stem} COMMAND Python3::Interpreter -B
    ${CMAKE_CURRENT_LIST_DIR}/${stem}_test.py $<TARGET_FILE:example_${stem}>)
  set_tests_properties(example.${stem} PROPERTIES
    LABELS example TIMEOUT ${test_timeout} ENVIRONMENT "${sanitizer_environment}")
endforeach()
