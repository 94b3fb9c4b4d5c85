// Imports from fibers.
//
// importlib has a lock for each module that is being imported. Its owner is known by the thread's
// ident, and the lock may be taken again by its owner; so for importlib two fibers of one thread
// are one, and a second fiber would get the module half-made while the first one waits in the
// module's body. Waiting for it would stop the whole thread, too. Therefore importlib gets idents
// that tell fibers apart, and locks that park. Its own rules stay: a lock a module, and a circle of
// imports that wait for each other is cut by letting one see the module as it is.
#pragma once

namespace runloom::python {

// False with an exception set on failure.
bool guard_imports();

}  // namespace runloom::python
